#!/usr/bin/env python3
"""Says whether PyTorch reads the same tensors from two step folders.

    .venv-peer/bin/python tests/checkpoint/read_with_pytorch.py A [B]

Loads each folder whole with torch.distributed.checkpoint and its
HuggingFaceStorageReader, which knows nothing of manifests, and compares names,
dtypes, shapes and bits. With A alone, compares what PyTorch reads with the
shapes and dtypes of A's manifest. Exit 0: equal; 1: not; 2: usage.
"""

import json
import logging
import pathlib
import sys
import warnings

import torch
import torch.distributed.checkpoint as dcp

# Names of safetensors' dtypes that a manifest may have.
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}


def filled(size, dtype):
    """A tensor of ones in every bit: what is not loaded shows."""
    count = torch.Size(size).numel() * dtype.itemsize
    if dtype == torch.bool:
        return torch.ones(size, dtype=dtype)
    raw = torch.full((count,), 255, dtype=torch.uint8)
    return raw.view(dtype).reshape(size) if count else torch.empty(size, dtype=dtype)


def load(folder):
    """All tensors of a step folder by name, through PyTorch alone."""
    reader = dcp.HuggingFaceStorageReader(str(folder))
    metadata = reader.read_metadata().state_dict_metadata
    state = {name: filled(m.size, m.properties.dtype) for name, m in metadata.items()}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(folder)))
    return state


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def differences(a, b):
    for name in sorted(a.keys() | b.keys()):
        if name not in a or name not in b:
            yield f"{name}: only in {'A' if name in a else 'B'}"
        elif (a[name].dtype, a[name].shape) != (b[name].dtype, b[name].shape):
            yield (
                f"{name}: {a[name].dtype} {list(a[name].shape)} vs "
                f"{b[name].dtype} {list(b[name].shape)}"
            )
        elif not torch.equal(bits(a[name]), bits(b[name])):
            yield f"{name}: values differ"


def manifest_differences(state, folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    # One without elements may be known to Weft only.
    wanted = {n: t for n, t in manifest["tensors"].items() if t["chunks"]}
    for name in sorted(state.keys() ^ wanted.keys()):
        yield f"{name}: only {'read' if name in state else 'in the manifest'}"
    for name in sorted(state.keys() & wanted.keys()):
        said = (DTYPES[wanted[name]["dtype"]], wanted[name]["shape"])
        read = (state[name].dtype, list(state[name].shape))
        if said != read:
            yield f"{name}: the manifest says {said}, PyTorch read {read}"


def main():
    folders = [pathlib.Path(arg) for arg in sys.argv[1:]]
    if len(folders) not in (1, 2) or not all(f.is_dir() for f in folders):
        print(__doc__, file=sys.stderr)
        return 2
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    states = [load(folder) for folder in folders]
    found = []
    for state, folder in zip(states, folders):
        found += [f"{folder}: {d}" for d in manifest_differences(state, folder)]
    if len(states) == 2:
        found += differences(*states)
    for difference in found:
        print(difference)
    size = sum(t.numel() * t.element_size() for t in states[0].values())
    verdict = f"{len(found)} found to differ" if found else "equal"
    print(f"{verdict}: {len(states[0])} tensors, {size} bytes, torch {torch.__version__}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

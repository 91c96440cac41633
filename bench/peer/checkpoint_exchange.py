"""PyTorch and Weft read each other's checkpoints: every tensor, bit for bit.

    python bench/peer/checkpoint_exchange.py [--bin build/bin]

PyTorch writes: processes of meshes 1x1, 2x1, 1x2 and 2x2 over gloo save with
torch.distributed.checkpoint and HuggingFaceStorageWriter (in shards,
consolidated, and by rank 0 alone), and safetensors writes a single file. Weft
reads each twice: into tensors of other meshes, by checkpoint::load() on the
files as they are (checkpoint_exchange_state, a program of Weft's tests), and by
`weft checkpoint import`, whose tensors `weft checkpoint export` hands back.

Weft writes: the same tensors from those meshes, and runs of `weft train`.
PyTorch reads each with HuggingFaceStorageReader into DTensors of all meshes.

The tensors are those of tests/checkpoint/oracle/tensors.json, whose bytes a
formula gives, so both sides know them: many dtypes, sizes that no mesh divides,
shards that are empty, strided shards as ZeRO cuts them. Prints a table and the
number of comparisons; exit 1 if one differs.

    python bench/peer/checkpoint_exchange.py --store tests/checkpoint/oracle

writes the files of PyTorch's that the tests of Weft read without Python.
"""

import argparse
import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

ROOT = pathlib.Path(__file__).resolve().parents[2]
TENSORS = ROOT / "tests/checkpoint/oracle/tensors.json"
MESHES = ((1, 1), (2, 1), (1, 2), (2, 2))
DTYPES = safetensors.torch._TYPES


def describe():
    """The tensors as (name, dtype, shape, cut, values)."""
    result = []
    for index, entry in enumerate(json.loads(TENSORS.read_text())):
        dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
        count = torch.Size(shape).numel() * dtype.itemsize
        raw = ((torch.arange(count) * 7 + index * 13 + 3) % 251).to(torch.uint8)
        if dtype == torch.bool:
            raw &= 1
        values = raw.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
        result.append((entry["name"], dtype, shape, entry["cut"], values))
    return result


def placements_of(cut, tp):
    return {
        "none": None,
        "replicated": (Replicate(), Replicate()),
        "rows": (Replicate(), Shard(0)),
        "columns": (Replicate(), Shard(1)),
        "dp_rows": (Shard(0), Replicate()),
        "both": (Shard(0), Shard(1)),
        "nested": (Shard(0), Shard(0)),
        # Cut over tp first, and what is left over dp.
        "strided": (_StridedShard(0, split_factor=tp), Shard(0)),
    }[cut]


def part(values, dim, shards, index):
    chunks = torch.chunk(values, shards, dim) if values.shape[dim] else (values,)
    return chunks[index] if index < len(chunks) else values.narrow(dim, 0, 0)


def local_of(values, cut, mesh):
    """What this rank holds. No collective, so that every dtype works."""
    (dp, tp), (i, j) = mesh.shape, mesh.get_coordinate()
    order = {
        "rows": ((0, tp, j),),
        "columns": ((1, tp, j),),
        "dp_rows": ((0, dp, i),),
        "both": ((0, dp, i), (1, tp, j)),
        "nested": ((0, dp, i), (0, tp, j)),
        "strided": ((0, tp, j), (0, dp, i)),
    }.get(cut, ())
    for dim, shards, index in order:
        values = part(values, dim, shards, index)
    return values.contiguous()


def consolidable(dtype, shape):
    """PyTorch 2.15 fails on others: dtypes that are not floating point raise, and
    of a tensor of no dims zero is written."""
    return dtype.is_floating_point and len(shape) > 0


def make_state(mesh, fill, is_consolidated=False):
    state = {}
    for name, dtype, shape, cut, values in describe():
        if is_consolidated and not consolidable(dtype, shape):
            continue
        local = local_of(values, cut, mesh)
        local = local.clone() if fill else torch.zeros_like(local)
        placements = placements_of(cut, mesh.shape[1])
        state[name] = (
            local
            if placements is None
            else DTensor.from_local(
                local, mesh, placements, run_check=False,
                shape=values.size(), stride=values.stride())
        )
    return state


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def saves_of(folder, dp, tp):
    base = folder / f"torch_{dp}x{tp}"
    return base / "sharded", base / "consolidated", base / "rank0"


def save_all(rank, dp, tp, folder, store):
    begin(rank, dp, tp, store)
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    sharded, consolidated, rank0 = saves_of(folder, dp, tp)
    write = dcp.HuggingFaceStorageWriter
    dcp.save(
        make_state(mesh, True),
        storage_writer=write(str(sharded), save_distributed=True))
    dcp.save(
        make_state(mesh, True, is_consolidated=True),
        storage_writer=write(
            str(consolidated), save_distributed=True, enable_consolidation=True))
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        whole = {name: values for name, _, _, _, values in describe()}
        dcp.save(whole, storage_writer=write(str(rank0)), no_dist=True)


def wrong_in(folder, state, truth):
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(folder)))
    return sorted(name for name in state if not same(local(state[name]), truth[name]))


def read_all(rank, dp, tp, folders, runs, answer, store):
    """Loads folders of Weft's into a mesh; writes what differs on any rank."""
    begin(rank, dp, tp, store)
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    wrong = {}
    for folder in folders:
        # Of a tensor without elements a save has no chunk, so no file names it.
        truth = {name: local(t) for name, t in make_state(mesh, True).items() if t.numel()}
        state = {name: t for name, t in make_state(mesh, False).items() if name in truth}
        wrong[str(folder)] = wrong_in(folder, state, truth)
    for folder in runs:
        wholes = safetensors.torch.load_file(folder.parent / f"{folder.name}.safetensors")
        state, truth = {}, {}
        for name, values in wholes.items():
            cut = ("both", "nested", "rows")[len(state) % 3] if values.dim() > 1 else "none"
            truth[name] = local_of(values, cut, mesh)
            zeros = torch.zeros_like(truth[name])
            state[name] = zeros if cut == "none" else DTensor.from_local(
                zeros, mesh, placements_of(cut, tp), run_check=False,
                shape=values.size(), stride=values.stride())
        wrong[str(folder)] = wrong_in(folder, state, truth)
    gathered = [None] * (dp * tp)
    dist.all_gather_object(gathered, wrong)
    if rank == 0:
        answer.write_text(json.dumps(
            {f: sorted({n for w in gathered for n in w[f]}) for f in gathered[0]}))
    dist.destroy_process_group()


def begin(rank, dp, tp, store):
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=dp * tp)


def spawn(function, dp, tp, *arguments):
    with tempfile.TemporaryDirectory() as scratch:
        torch.multiprocessing.spawn(
            function, args=(dp, tp, *arguments, f"{scratch}/store"), nprocs=dp * tp)


class Weft:
    def __init__(self, binaries):
        self.binaries = pathlib.Path(binaries).resolve()

    def call(self, program, *words, ranks=0):
        command = [str(self.binaries / program), *map(str, words)]
        if ranks > 1:
            command = [str(self.binaries / "weftrun"), "--nproc-per-node", str(ranks), "--", *command]
        done = subprocess.run(
            command, capture_output=True, text=True,
            env=dict(os.environ, OMP_NUM_THREADS="1"))
        said = (done.stderr.strip() or done.stdout.strip() or "it failed").splitlines()
        return done.returncode, said[-1]

    def checkpoint(self, *words):
        code, error = self.call("weft", "checkpoint", *words)
        if code != 0:
            raise RuntimeError(f"weft checkpoint {' '.join(map(str, words))}: {error}")


class Table:
    def __init__(self):
        self.count = self.wrong = 0

    def add(self, writer, reader, tensors, wrong):
        self.count += tensors
        self.wrong += len(wrong)
        verdict = "equal" if not wrong else f"DIFFER: {', '.join(wrong)}"
        print(f"{writer:34} {reader:34} {tensors:4}  {verdict}", flush=True)


def read_by_weft(weft, table, source, label, folder, is_consolidated):
    wanted = {
        name: values for name, dtype, shape, _, values in describe()
        if not is_consolidated or consolidable(dtype, shape)}
    for dp, tp in MESHES:
        words = ["load", source, dp, tp] + (["--consolidated"] if is_consolidated else [])
        code, error = weft.call("checkpoint_exchange_state", *words)
        table.add(label, f"weft load {dp}x{tp}", len(wanted), [error] if code else [])
    name = label.replace(" ", "_")
    out, back = folder / f"import_{name}", folder / f"{name}.safetensors"
    weft.checkpoint("import", source, out, "--as", "tensors")
    weft.checkpoint("verify", out / "step-0")
    weft.checkpoint("export", out / "step-0", back, "--format", "safetensors")
    got = safetensors.torch.load_file(back)
    wrong = [n for n in sorted(got.keys() ^ wanted.keys())]
    wrong += [n for n in sorted(got.keys() & wanted.keys()) if not same(got[n], wanted[n])]
    table.add(label, "weft import, verify, export", len(wanted), wrong)


def train(weft, folder, dp, tp):
    """A short run, whose newest step is exported whole for comparison."""
    (folder / "text.txt").write_text("the quick brown fox jumps over it\n" * 200)
    name = f"run_{dp}x{tp}"
    (folder / f"{name}.yaml").write_text(
        "model: {type: llama, dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn_dim: 48}\n"
        f"data: {{paths: [{folder}/text.txt], sequence_length: 16}}\n"
        "train: {steps: 3, global_batch_size: 4}\n"
        "eval: {batches: 0}\n"
        f"output_dir: {folder}/{name}\n")
    code, error = weft.call(
        "weft", "train", folder / f"{name}.yaml", f"mesh.dp={dp}", f"mesh.tp={tp}",
        ranks=dp * tp)
    if code != 0:
        raise RuntimeError(f"weft train {dp}x{tp}: {error}")
    step = folder / name / "checkpoints/step-3"
    weft.checkpoint(
        "export", step, step.parent / "step-3.safetensors", "--format", "safetensors")
    return step


def store_fixtures(folder):
    with tempfile.TemporaryDirectory() as scratch:
        spawn(save_all, 2, 2, pathlib.Path(scratch))
        for source in saves_of(pathlib.Path(scratch), 2, 2):
            target = folder / f"torch_{source.name}"
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            for file in source.iterdir():
                if file.is_file() and not file.name.startswith("."):
                    shutil.copyfile(file, target / file.name)
    safetensors.torch.save_file(
        {name: values for name, _, _, _, values in describe()},
        folder / "single.safetensors")


def exchange(weft, folder):
    table = Table()
    single = folder / "single.safetensors"
    safetensors.torch.save_file({n: v for n, _, _, _, v in describe()}, single)
    read_by_weft(weft, table, single, "safetensors file", folder, False)
    for dp, tp in MESHES:
        spawn(save_all, dp, tp, folder)
        for source in saves_of(folder, dp, tp):
            label = f"torch {dp}x{tp} {source.name}"
            read_by_weft(weft, table, source, label, folder, source.name == "consolidated")
    states, runs = [], []
    for dp, tp in MESHES:
        code, error = weft.call(
            "checkpoint_exchange_state", "save", folder / f"weft_{dp}x{tp}", dp, tp)
        if code != 0:
            raise RuntimeError(error)
        states.append(folder / f"weft_{dp}x{tp}/step-7")
        runs.append(train(weft, folder, dp, tp))
    weft.checkpoint("reshard", states[0], folder / "weft_reshard", "--mesh", "dp=2,tp=3")
    states.append(folder / "weft_reshard/step-7")
    for dp, tp in MESHES:
        answer = folder / "answer.json"
        spawn(read_all, dp, tp, states, runs, answer)
        for source, wrong in json.loads(answer.read_text()).items():
            path = pathlib.Path(source)
            is_run = path in runs
            count = (len(safetensors.torch.load_file(path.parent / "step-3.safetensors"))
                     if is_run else sum(v.numel() > 0 for *_, v in describe()))
            writer = path.parents[1].name if is_run else path.parent.name
            table.add(writer.replace("run_", "weft train "), f"torch load {dp}x{tp}", count, wrong)
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", default=ROOT / "build/bin")
    parser.add_argument("--store", type=pathlib.Path, help="write the tests' files there")
    arguments = parser.parse_args()
    if arguments.store:
        store_fixtures(arguments.store)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        table = exchange(Weft(arguments.bin), pathlib.Path(folder))
    verdict = "all equal" if not table.wrong else f"{table.wrong} DIFFER"
    print(f"{table.count} tensors compared, torch {torch.__version__}: {verdict}")
    return 1 if table.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

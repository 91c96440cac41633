"""Compares which headers Weft takes with what `safetensors`, the reader in
Rust, takes: every input of tests/fuzz/corpus/header/, or of the folders given.

    scripts/fuzz.sh 1 header        # builds build-fuzz/header
    .venv-peer/bin/python bench/peer/safetensors_parity.py [--json] [FOLDER...]

Weft refuses more: names, sizes and placements that a checkpoint cannot have.
Exit 1: it takes a file that the other refuses.
"""

import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys

import safetensors

ROOT = pathlib.Path(__file__).parents[2]
HEAD = 10  # of an input: see tests/fuzz/fuzz_input.h


def file_of(content):
    if len(content) < HEAD:
        return content
    lie, data = struct.unpack("<QH", content[:HEAD])
    text = content[HEAD:]
    length = (len(text) + lie) % 2**64
    return struct.pack("<Q", length) + text + bytes(data)


def theirs(content):
    try:
        safetensors.deserialize(file_of(content))
        return "accepted"
    except Exception as error:
        return str(error).splitlines()[0][:120]


def ours(program, paths):
    """One verdict an input: "accepted", or why not."""
    verdicts = []
    batch = 200
    for at in range(0, len(paths), batch):
        some = paths[at:at + batch]
        done = subprocess.run(
            [program, "-detect_leaks=0", *map(str, some)], check=True,
            env={**os.environ, "WEFT_FUZZ_VERDICT": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        lines = done.stdout.decode(errors="replace").splitlines()
        verdicts += lines[-len(some):]  # libFuzzer tries an empty one first
    return verdicts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("folders", nargs="*", type=pathlib.Path,
                        default=[ROOT / "tests/fuzz/corpus/header"])
    options = parser.parse_args()
    program = ROOT / "build-fuzz/header"
    if not program.exists():
        sys.exit(f"{program} is missing: run scripts/fuzz.sh 1 header")
    paths = sorted(path for folder in options.folders
                   for path in folder.iterdir())
    stricter, laxer = [], []
    for path, our in zip(paths, ours(program, paths), strict=True):
        their = theirs(path.read_bytes())
        if our != "accepted" and their == "accepted":
            stricter.append((path.name, our.removeprefix("[checkpoint] ")))
        elif our == "accepted" and their != "accepted":
            laxer.append((path.name, their))
    differ = len(stricter) + len(laxer)
    result = {"headers": len(paths),
              "agree_percent": round(100 * (1 - differ / len(paths)), 1),
              "weft_alone_refuses": dict(stricter),
              "weft_alone_accepts": dict(laxer)}
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{result['agree_percent']} % of {len(paths)} headers")
        for what, names in (("Weft alone refuses", stricter),
                            ("Weft alone accepts", laxer)):
            for name, why in names:
                print(f"{what} {name}: {why[:140]}")
    return 1 if laxer else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs `weft bench checkpoint` and PyTorch's DCP in turn and prints a table.

    .venv-peer/bin/python bench/compare_checkpoint.py [--peer bench/peer/checkpoint.py]
        [--pairs 3] [--mb 768] [--folder DIR]

Ratios are of medians. DIR is where both write, on the same disk.
"""

import argparse
import os
import shutil
import sys
import tempfile

from compare import median, run

ROWS = [
    ("save, fsync", "save_s", "save_s"),
    ("save, no fsync", "save_nosync_s", "save_s"),
    ("load, same layout", "load_same_s", "load_same_s"),
    ("load, all or nothing", "load_same_all_or_nothing_s", "load_same_s"),
    ("load, other layout", "load_reshard_s", "load_reshard_s"),
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", default="bench/peer/checkpoint.py")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--mb", type=int, default=768)
    parser.add_argument("--folder", default=".")
    options = parser.parse_args()
    work = tempfile.mkdtemp(prefix=".weft_bench_", dir=options.folder)
    target = os.path.join(work, "state")
    torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
    commands = {
        "weft": ["build/bin/weftrun", "--nproc-per-node=4", "--",
                 "build/bin/weft", "bench", "checkpoint", target,
                 str(options.mb), "--json"],
        "peer": [torchrun, "--nproc-per-node=4", options.peer, target,
                 str(options.mb)],
    }
    results = {"weft": [], "peer": []}
    try:
        for pair in range(options.pairs):
            for side in sorted(commands, reverse=pair % 2 == 0):
                shutil.rmtree(target, ignore_errors=True)
                results[side].append(run(commands[side]))
                print(side, results[side][-1], file=sys.stderr)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print("| | Weft s | DCP s | ratio |")
    print("|---|---|---|---|")
    for name, ours, theirs in ROWS:
        weft, peer = median(results["weft"], ours), median(results["peer"], theirs)
        print(f"| {name} | {weft:.2f} | {peer:.2f} | {peer / weft:.2f} |")
    floor = median(results["weft"], "raw_write_s")
    print(f"\nA plain write of it: {floor:.2f} s; a copy in memory: "
          f"{median(results['weft'], 'memcpy_s'):.2f} s.")


if __name__ == "__main__":
    main()

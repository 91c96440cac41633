"""Runs `weft bench redistribute` and PyTorch's in turn and prints a table.

    .venv-peer/bin/python bench/compare_redistribute.py [--pairs 5] [--ranks 2]
        [--peer bench/peer/redistribute.py]

Each cell is the median of the pairs; the range is that of the pairs' ratios.
"""

import argparse
import os
import sys

from compare import median, run


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", default="bench/peer/redistribute.py")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
    ranks = f"--nproc-per-node={options.ranks}"
    commands = {
        "weft": ["build/bin/weftrun", ranks, "--",
                 "build/bin/weft", "bench", "redistribute", "--json"],
        "peer": [torchrun, ranks, options.peer],
    }
    results = {"weft": [], "peer": []}
    for pair in range(options.pairs):
        for side in sorted(commands, reverse=pair % 2 == 0):
            results[side].append(run(commands[side]))
            print(side, results[side][-1], file=sys.stderr)
    print("| move | Weft us | PyTorch us | ratio | range |")
    print("|---|---|---|---|---|")
    for key in results["weft"][0]:
        if not key.endswith("_us") or key not in results["peer"][0]:
            continue
        ours, theirs = (median(results[side], key) for side in ("weft", "peer"))
        ratios = sorted(b[key] / a[key]
                        for a, b in zip(results["weft"], results["peer"]))
        print(f"| {key.removesuffix('_us')} | {ours:.0f} | {theirs:.0f} "
              f"| {theirs / ours:.2f} | {ratios[0]:.2f} to {ratios[-1]:.2f} |")


if __name__ == "__main__":
    main()

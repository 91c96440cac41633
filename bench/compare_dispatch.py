"""Runs `weft bench dispatch` and PyTorch's DTensor in turn and prints a table.

    .venv-peer/bin/python bench/compare_dispatch.py [--peer bench/peer/dispatch.py]
        [--pairs 3]

`over` is what the DTensor costs beyond the plain op, in microseconds; the ratio
is of these, and none where a DTensor costs no more than a plain tensor. Keys
that the peer does not have are left out of its columns.
"""

import argparse
import os
import statistics
import sys

from compare import median, run


def over(results, op):
    if f"{op}_local_us" not in results[0]:
        return None
    # Of each run by itself: the machine is not equally fast in all of them.
    return statistics.median(
        result[f"{op}_dtensor_us"] - result[f"{op}_local_us"]
        for result in results)


def row(op, ours, theirs):
    comparable = theirs is not None and ours > 0
    ratio = f"{theirs / ours:.0f}" if comparable else "-"
    peer = f"{theirs:.2f}" if theirs is not None else "-"
    return f"| {op} | {ours:.2f} | {peer} | {ratio} |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", default="bench/peer/dispatch.py")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
    commands = {
        "weft": ["build/bin/weft", "bench", "dispatch", "--json"],
        "peer": [torchrun, "--nproc-per-node=2", options.peer],
    }
    results = {"weft": [], "peer": []}
    for pair in range(options.pairs):
        for side in sorted(commands, reverse=pair % 2 == 0):
            results[side].append(run(commands[side]))
            print(side, results[side][-1], file=sys.stderr)
    print("| op | Weft over us | PyTorch over us | ratio |")
    print("|---|---|---|---|")
    for key in results["weft"][0]:
        if key.endswith("_dtensor_us"):
            op = key.removesuffix("_dtensor_us")
            print(row(op, over(results["weft"], op), over(results["peer"], op)))
    print(row("from_local", median(results["weft"], "from_local_us"),
              median(results["peer"], "from_local_us")))


if __name__ == "__main__":
    main()

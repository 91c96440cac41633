"""Runs `weft bench dispatch` and PyTorch's DTensor in turn and prints a table.

    .venv-peer/bin/python bench/compare_dispatch.py [--pairs 3]
        [--peer bench/peer/dispatch.py]

`over` is what the DTensor costs beyond the plain op, in microseconds; the ratio
is of these, and none where a DTensor costs no more than a plain tensor. Keys
that the peer does not have are left out of its columns.
"""

import argparse
import statistics

from measure import WEFT, in_turn, spread, table, torchrun

# Ops of one call each, that a cache hit may cost 1.5 us more.
HITS = ["add", "mm", "transpose", "norm", "add_grad", "mm_grad"]
TARGET_US = 1.5


def measure(options):
    return in_turn({"weft": [WEFT, "bench", "dispatch", "--json"],
                    "peer": torchrun(2, options.peer)}, options.pairs)


def overs(results, op):
    # Of each run by itself: the machine is not equally fast in all of them.
    return [result[f"{op}_dtensor_us"] - result[f"{op}_local_us"]
            for result in results if f"{op}_local_us" in result]


def row(op, ours, theirs):
    middle, other = (statistics.median(v) if v else None for v in (ours, theirs))
    comparable = other is not None and middle > 0
    return [op, spread(ours), f"{other:.2f}" if theirs else "-",
            f"{other / middle:.0f}" if comparable else "-"]


def markdown(results):
    weft, peer = results["weft"], results["peer"]
    ops = [key.removesuffix("_dtensor_us") for key in weft[0]
           if key.endswith("_dtensor_us")]
    rows = [row(op, overs(weft, op), overs(peer, op)) for op in ops]
    rows.append(row("from_local", *([run["from_local_us"] for run in side]
                                    for side in (weft, peer))))
    return table(["op", "Weft over us", "PyTorch over us", "PyTorch / Weft"],
                 rows)


def targets(results):
    worst = max(HITS, key=lambda op: statistics.median(
        overs(results["weft"], op)))
    values = overs(results["weft"], worst)
    return [(f"dispatch over the raw op, cache hit (worst of "
             f"{len(HITS)} ops: {worst})", f"at most {TARGET_US} us",
             spread(values), statistics.median(values) <= TARGET_US)]


def parser():
    result = argparse.ArgumentParser()
    result.add_argument("--peer", default="bench/peer/dispatch.py")
    result.add_argument("--pairs", type=int, default=3)
    return result


def main():
    print(markdown(measure(parser().parse_args())))


if __name__ == "__main__":
    main()

"""Runs `weft bench reducer` and PyTorch's DDP in turn and prints a table.

    .venv-peer/bin/python bench/compare_reducer.py [--pairs 3] [--ranks 1,2]
        [--peer bench/peer/reducer.py] [more of bench reducer's flags]

What DDP costs a backward of 200 parameters: its time over that of the same
model without DDP, in the same process and in turn with it. On one rank nothing
moves, so that what is left is the reducer's own work.
"""

import argparse
import re

from measure import in_turn, median, spread, table, torchrun, weftrun

TARGET = 1.03
# zero_grad() gives the gradients' memory up, PyTorch's default, or keeps it.
ZERO_GRADS = {"to none": [], "in place": ["--keep_gradients"]}


def measure(options):
    rows = []
    for ranks in map(int, options.ranks.split(",")):
        for zero_grad, more in ZERO_GRADS.items():
            flags = [*more, *options.flags]
            rows.append({"dp": ranks, "zero_grad": zero_grad, **in_turn(
                {"weft": weftrun(ranks, "bench", "reducer", *flags),
                 "peer": torchrun(ranks, options.peer, *flags)},
                options.pairs)})
    return rows


def widths_of(row):
    return [int(match[1]) for match in
            (re.fullmatch(r"w(\d+)_ratio", key) for key in row["weft"][0])
            if match]


def over_us(runs, width):
    """What DDP adds for each parameter."""
    return [1e3 * (run[f"w{width}_ddp_ms"] - run[f"w{width}_plain_ms"])
            / run["parameters"] for run in runs]


def line(row, width):
    weft, peer = row["weft"], row["peer"]
    return [row["dp"], width, row["zero_grad"],
            f"{median(weft, f'w{width}_plain_ms'):.2f}",
            f"{median(weft, f'w{width}_ddp_ms'):.2f}",
            spread([run[f"w{width}_ratio"] for run in weft], 3),
            spread(over_us(weft, width)),
            spread([run[f"w{width}_ratio"] for run in peer], 3),
            spread(over_us(peer, width))]


def markdown(rows):
    return table(
        ["ranks", "width", "zero_grad", "Weft plain ms", "Weft DDP ms",
         "Weft DDP / plain", "Weft over us a parameter", "PyTorch DDP / plain",
         "PyTorch over us a parameter"],
        [line(row, width) for row in rows for width in widths_of(row)])


def targets(rows):
    lines = []
    for row in rows:
        if row["dp"] != 1:
            continue
        for width in widths_of(row):
            key = f"w{width}_ratio"
            lines.append((
                f"reducer, 200 parameters of width {width}, zero_grad "
                f"{row['zero_grad']}: backward over plain backward",
                f"at most {TARGET} x",
                spread([run[key] for run in row["weft"]], 3),
                median(row["weft"], key) <= TARGET))
    return lines


def parser():
    result = argparse.ArgumentParser()
    result.add_argument("--peer", default="bench/peer/reducer.py")
    result.add_argument("--pairs", type=int, default=3)
    result.add_argument("--ranks", default="1,2")
    return result


def main():
    options, options.flags = parser().parse_known_args()
    print(markdown(measure(options)))


if __name__ == "__main__":
    main()

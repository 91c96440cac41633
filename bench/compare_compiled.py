"""Runs `weft bench step` and PyTorch's script with --compile in turn.

    .venv-peer/bin/python bench/compare_compiled.py [--pairs 1] [--steps 15]
        [--layouts 1x1,2x2] [--peer bench/peer/train_step.py]
        [more of bench step's flags]

PyTorch takes a minute to start. Ratios are of each pair. A layout that PyTorch
cannot compile has none.
"""

import argparse
import statistics
import sys

from compare_step import LAYOUTS, commands_of, layout, layouts_of, target_of
from measure import in_turn, median, processor, ratios, spread, table


def measure(options):
    rows = []
    for dp, tp in layouts_of(options):
        commands = commands_of(
            dp, tp, [f"--steps={options.steps}", *options.flags], options.peer)
        pair = {"weft": commands["weft"], "peer": [*commands["peer"], "--compile"]}
        try:
            results = in_turn(pair, options.pairs)
        except SystemExit as failure:
            if "--compile" not in str(failure):  # it is Weft that failed
                raise
            print(failure, file=sys.stderr)
            results = {}
        rows.append(
            {"processor": processor(), "dp": dp, "tp": tp, **results})
    return rows


def markdown(rows):
    return table(
        ["dp x tp", "Weft ms", "PyTorch compiled ms", "PyTorch / Weft",
         "its first step s"],
        [[layout(row), "-", "does not compile", "-", "-"]
         if "peer" not in row else
         [layout(row), f"{median(row['weft'], 'ms_per_step'):.0f}",
          f"{median(row['peer'], 'ms_per_step'):.0f}",
          spread(ratios(row["peer"], row["weft"], "ms_per_step")),
          f"{median(row['peer'], 'first_step_s'):.0f}"] for row in rows])


def targets(rows):
    lines = []
    for row in rows:
        bound = target_of("compiled", row)
        if "peer" not in row or not bound:
            continue
        values = ratios(row["peer"], row["weft"], "ms_per_step")
        lines.append((f"step {layout(row)} against PyTorch compiled",
                      f"at least {bound:g} x", spread(values),
                      statistics.median(values) >= bound))
    return lines


def parser():
    result = argparse.ArgumentParser()
    result.add_argument("--layouts", default=LAYOUTS)
    result.add_argument("--peer", default="bench/peer/train_step.py")
    result.add_argument("--pairs", type=int, default=1)
    result.add_argument("--steps", type=int, default=15)
    return result


def main():
    options, options.flags = parser().parse_known_args()
    print(markdown(measure(options)))


if __name__ == "__main__":
    main()

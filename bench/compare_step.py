"""Runs `weft bench step`, its limit and PyTorch's script in turn.

    .venv-peer/bin/python bench/compare_step.py [--pairs 3] [--steps 15]
        [--layouts 1x1,2x2] [--row step] [--peer bench/peer/train_step.py]
        [more of bench step's flags]

Layouts are dp x tp. --row names the row of benchmarks.py whose targets count.
The limit is the step with every collective replaced by nothing. Ratios are of
each pair; the median of them counts. Prints Markdown; progress goes to stderr.
"""

import argparse
import statistics

from measure import (
    in_turn, median, processor, ratios, spread, table, torchrun, weftrun)

LAYOUTS = "1x1,2x1,1x2,2x2"
# Times PyTorch, by row and layout: on AMD with AVX-512, and elsewhere.
TARGETS = {
    "step": {(1, 1): (1.7, 1.2), (2, 1): (1.8, 1.2), (1, 2): (3.5, 3.0),
             (2, 2): (3.0, 2.5)},
    "compiled": {(1, 1): (1.5, 1.05), (2, 1): (1.1, 1.1), (1, 2): (2.0, 2.0),
                 (2, 2): (2.0, 2.0)},
    "step_bfloat16": {(1, 1): (1.4, None), (2, 2): (2.5, None)},
    "step_1024": {(2, 2): (2.0, None)},
    "step_2048": {},
}
# These are of the row `step` alone.
LIMIT_TARGETS = {(2, 1): 1.08, (1, 2): 1.15, (2, 2): 1.2}
FIRST_STEP_TARGET = 8.0
MEMORY_TARGET = 0.4


def layouts_of(options):
    return [tuple(map(int, layout.split("x")))
            for layout in options.layouts.split(",")]


def target_of(name, row):
    """How many times as fast as PyTorch, or None."""
    # Earlier results do not say what they were measured on.
    where = row.get("processor", "")
    wide, elsewhere = TARGETS[name].get((row["dp"], row["tp"]), (None, None))
    return wide if "AMD" in where and "AVX-512" in where else elsewhere


def commands_of(dp, tp, flags, peer):
    ranks = dp * tp
    flags = [f"--dp={dp}", f"--tp={tp}", *flags]
    return {"weft": weftrun(ranks, "bench", "step", *flags),
            "limit": weftrun(ranks, "bench", "step", "--comm=none", *flags),
            "peer": torchrun(ranks, peer, *flags)}


def measure(options):
    flags = [f"--steps={options.steps}", *options.flags]
    return [{"row": options.row, "processor": processor(), "dp": dp, "tp": tp,
             **in_turn(commands_of(dp, tp, flags, options.peer), options.pairs)}
            for dp, tp in layouts_of(options)]


def layout(row):
    return f"{row['dp']} x {row['tp']}"


def phases(runs):
    """Medians: process, rendezvous and groups, model, step."""
    def phase(*names):
        return statistics.median(
            sum(run["start_s"][name] for name in names) for run in runs)

    return " + ".join(f"{seconds:.2f}" for seconds in (
        phase("process"), phase("rendezvous", "groups"), phase("model"),
        phase("first_step")))


def markdown(rows):
    steps = []
    for row in rows:
        weft, limit, peer = row["weft"], row["limit"], row["peer"]
        steps.append([
            layout(row), f"{median(weft, 'ms_per_step'):.0f}",
            f"{median(peer, 'ms_per_step'):.0f}",
            spread(ratios(peer, weft, "ms_per_step")),
            f"{median(limit, 'ms_per_step'):.0f}",
            spread(ratios(weft, limit, "ms_per_step"))])
    starts = []
    for row in rows:
        weft, peer = row["weft"], row["peer"]
        starts.append([
            layout(row), f"{median(weft, 'first_step_s'):.2f}", phases(weft),
            f"{median(peer, 'first_step_s'):.1f}",
            spread(ratios(peer, weft, "first_step_s"), 1),
            f"{median(weft, 'peak_rss_mb'):.0f}",
            f"{median(peer, 'peak_rss_mb'):.0f}",
            spread(ratios(weft, peer, "peak_rss_mb"))])
    return "\n\n".join([
        table(["dp x tp", "Weft ms", "PyTorch ms", "PyTorch / Weft",
               "limit ms", "Weft / limit"], steps),
        table(["dp x tp", "Weft first step s", "its phases", "PyTorch s",
               "PyTorch / Weft", "Weft peak MB a rank", "PyTorch MB",
               "Weft / PyTorch"], starts)])


def targets(rows):
    """(what, target, measured, met) of each line of the table of targets."""
    lines = []

    def add(what, bound, values, at_least=True, word="x"):
        value = statistics.median(values)
        met = value >= bound if at_least else value <= bound
        lines.append((what, f"{'at least' if at_least else 'at most'} {bound:g} "
                      f"{word}", spread(values), met))

    for row in rows:
        name, row_name = layout(row), row.get("row", "step")
        weft, peer = row["weft"], row["peer"]
        times = target_of(row_name, row)
        if times:
            add(f"{row_name} {name} against PyTorch", times,
                ratios(peer, weft, "ms_per_step"))
        if row_name != "step":
            continue
        limit = LIMIT_TARGETS.get((row["dp"], row["tp"]))
        if limit:
            add(f"step {name} against the limit", limit,
                ratios(weft, row["limit"], "ms_per_step"), at_least=False)
        add(f"first step {name} against PyTorch", FIRST_STEP_TARGET,
            ratios(peer, weft, "first_step_s"))
        add(f"peak memory {name}, of PyTorch's", MEMORY_TARGET,
            ratios(weft, peer, "peak_rss_mb"), at_least=False)
    return lines


def parser():
    result = argparse.ArgumentParser()
    result.add_argument("--row", default="step", choices=TARGETS)
    result.add_argument("--layouts", default=LAYOUTS)
    result.add_argument("--peer", default="bench/peer/train_step.py")
    result.add_argument("--pairs", type=int, default=3)
    result.add_argument("--steps", type=int, default=15)
    return result


def main():
    options, options.flags = parser().parse_known_args()
    print(markdown(measure(options)))


if __name__ == "__main__":
    main()

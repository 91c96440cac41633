"""Runs `weft bench step`, its limit and PyTorch's script in turn.

    .venv-peer/bin/python bench/compare_step.py [--pairs 3] [--steps 15]
        [--compiled 0] [--peer bench/peer/train_step.py] [more of bench step's flags]

The limit is the step with every collective replaced by nothing. --compiled N
adds N pairs with PyTorch's --compile, which takes a minute to start. Ratios are
of each pair; the median of them counts. Prints Markdown; progress goes to
stderr.
"""

import argparse
import statistics

from measure import in_turn, median, ratios, spread, table, torchrun, weftrun

# dp x tp, and the targets: times PyTorch eager, compiled; over the limit.
LAYOUTS = {(1, 1): (1.0, 1.0, None), (2, 1): (1.2, 1.1, 1.08),
           (1, 2): (3.0, 2.0, 1.15), (2, 2): (2.5, 2.0, 1.2)}
FIRST_STEP_TARGET = 8.0
MEMORY_TARGET = 0.4


def commands_of(dp, tp, flags, peer):
    ranks = dp * tp
    flags = [f"--dp={dp}", f"--tp={tp}", *flags]
    return {"weft": weftrun(ranks, "bench", "step", *flags),
            "limit": weftrun(ranks, "bench", "step", "--comm=none", *flags),
            "peer": torchrun(ranks, peer, *flags)}


def measure(options):
    flags = [f"--steps={options.steps}", *options.flags]
    rows = []
    for dp, tp in LAYOUTS:
        commands = commands_of(dp, tp, flags, options.peer)
        results = in_turn(commands, options.pairs)
        compiled = in_turn(
            {"weft": commands["weft"],
             "compiled": [*commands["peer"], "--compile"]}, options.compiled)
        rows.append({"dp": dp, "tp": tp, **results,
                     "compiled": compiled["compiled"],
                     "weft_beside_compiled": compiled["weft"]})
    return rows


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
            spread([run["ms_per_step"] for run in row["compiled"]], 0)
            if row["compiled"] else "-",
            spread(ratios(row["compiled"], row["weft_beside_compiled"],
                          "ms_per_step")) if row["compiled"] else "-",
            f"{median(limit, 'ms_per_step'):.0f}",
            spread(ratios(weft, limit, "ms_per_step"))])
    starts = []
    for row in rows:
        weft, peer = row["weft"], row["peer"]
        starts.append([
            layout(row), f"{median(weft, 'first_step_s'):.2f}", phases(weft),
            f"{median(peer, 'first_step_s'):.1f}",
            spread(ratios(peer, weft, "first_step_s"), 1),
            f"{median(row['compiled'], 'first_step_s'):.0f}"
            if row["compiled"] else "-",
            f"{median(weft, 'peak_rss_mb'):.0f}",
            f"{median(peer, 'peak_rss_mb'):.0f}",
            spread(ratios(weft, peer, "peak_rss_mb"))])
    return "\n\n".join([
        table(["dp x tp", "Weft ms", "PyTorch ms", "PyTorch / Weft",
               "compiled ms", "compiled / Weft", "limit ms", "over limit"],
              steps),
        table(["dp x tp", "Weft first step s", "its phases", "PyTorch s",
               "PyTorch / Weft", "compiled s", "Weft peak MB a rank",
               "PyTorch MB", "Weft / PyTorch"], starts)])


def targets(rows):
    """(what, target, measured, met) of each line of the table of targets."""
    lines = []

    def add(what, bound, values, at_least=True, word="x"):
        if not values:
            return
        value = statistics.median(values)
        met = value >= bound if at_least else value <= bound
        lines.append((what, f"{'at least' if at_least else 'at most'} {bound:g} "
                      f"{word}", spread(values), met))

    for row in rows:
        name = layout(row)
        eager, compiled, limit = LAYOUTS[row["dp"], row["tp"]]
        weft, peer = row["weft"], row["peer"]
        add(f"step {name} against PyTorch", eager,
            ratios(peer, weft, "ms_per_step"))
        add(f"step {name} against PyTorch compiled", compiled,
            ratios(row["compiled"], row["weft_beside_compiled"], "ms_per_step"))
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
    result.add_argument("--peer", default="bench/peer/train_step.py")
    result.add_argument("--pairs", type=int, default=3)
    result.add_argument("--steps", type=int, default=15)
    result.add_argument("--compiled", type=int, default=0)
    return result


def main():
    options, options.flags = parser().parse_known_args()
    print(markdown(measure(options)))


if __name__ == "__main__":
    main()

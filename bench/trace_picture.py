"""Draws one training step of four ranks, and says how much communication hides.

    .venv-peer/bin/python bench/trace_picture.py [--pairs 3] [--layouts 2x1,2x2]
        [--plot docs/ddp_trace.svg] [more of bench/trace_step.py's flags]

A bucket's reduction is hidden while backward computes: from backward's begin to
the last gradient, less the time in which tensor-parallel collectives block it.
A reduction lasts from its launch to its end, the wait for other ranks too;
reductions that run side by side count once. Weft's steps and PyTorch's are
traced in turn, with the same model, batches and bucket size.
"""

import argparse
import statistics
import sys

import plot
from measure import in_turn, spread, table, torchrun

STEPS = 5


def union(spans):
    """The same times as spans that do not touch."""
    merged = []
    for begin, end in sorted(map(tuple, spans)):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        elif end > begin:
            merged.append([begin, end])
    return merged


def length(spans):
    return sum(end - begin for begin, end in union(spans))


def common(left, right):
    return [[max(a, c), min(b, d)] for a, b in union(left)
            for c, d in union(right) if max(a, c) < min(b, d)]


def compute_of(step):
    """When backward computes."""
    begin, end = step["backward"][0], step["gradients_end"]
    spans, at = [], begin
    for a, b in union(step["blocked"]):
        spans.append([at, min(a, end)])
        at = max(at, b)
    spans.append([at, end])
    return [[a, b] for a, b in spans if a < b]


def hidden_share(result):
    """Of all ranks and steps together."""
    steps = [step for rank in result["ranks"] for step in rank]
    total = sum(length(step["buckets"]) for step in steps)
    hidden = sum(length(common(step["buckets"], compute_of(step)))
                 for step in steps)
    return hidden / total


def total_ms(result):
    return statistics.mean(length(step["buckets"])
                           for rank in result["ranks"] for step in rank)


def exposed_ms(result):
    """From the last gradient to the end of backward."""
    return statistics.mean(step["backward"][1] - step["gradients_end"]
                           for rank in result["ranks"] for step in rank)


def measure(options):
    rows = []
    for layout in options.layouts.split(","):
        dp, tp = map(int, layout.split("x"))
        flags = [f"--dp={dp}", f"--tp={tp}", f"--steps={options.steps}",
                 f"--bucket_mb={options.bucket_mb}", *options.flags]
        rows.append({"layout": layout, "bucket_mb": options.bucket_mb, **in_turn(
            {"weft": [sys.executable, "bench/trace_step.py", *flags],
             "peer": torchrun(dp * tp, options.peer, *flags)},
            options.pairs)})
    return rows


def buckets_of(result):
    return len(result["ranks"][0][0]["buckets"])


def line(row):
    cells = [row["layout"].replace("x", " x ")]
    for side in ("weft", "peer"):
        runs = row[side]
        cells += [
            buckets_of(runs[0]), spread([hidden_share(run) for run in runs]),
            f"{statistics.median(map(total_ms, runs)):.0f}",
            f"{statistics.median(map(exposed_ms, runs)):.1f}"]
    return cells


def markdown(rows):
    return table(
        ["dp x tp", *(f"{side} {what}" for side in ("Weft", "PyTorch")
                      for what in ("buckets", "hidden / total", "total ms",
                                   "after the last gradient ms"))],
        [line(row) for row in rows])


def targets(_):
    return []


def draw_lane(axes, y, spans, begin, color, label):
    axes.broken_barh([(a - begin, b - a) for a, b in spans], (y - 0.38, 0.76),
                     color=color, linewidth=0, label=label)


def draw_rank(axes, rank, step, begin, labels):
    y = 4 * rank
    phases = step["phases"]
    # After the last step comes an evaluation.
    end = phases["optimizer"][1]
    calm = [phases[name] for name in ("forward", "clip", "optimizer")
            if name in phases]
    lanes = [(y, calm, "#c9d3dc", "forward, optimizer"),
             (y, compute_of(step), plot.WEFT, "backward compute"),
             (y + 1, union(step["buckets"]), plot.PYTORCH, "bucket reductions"),
             (y + 2, union(span for span in step["tp"] if span[0] < end),
              plot.THIRD, "TP collectives")]
    for at, spans, color, label in lanes:
        draw_lane(axes, at, spans, begin, color, label if labels else None)


def typical_step(run):
    """The one whose length is the median."""
    first = run["ranks"][0]
    order = sorted(range(len(first)), key=lambda i: (
        first[i]["backward"][1] - first[i]["backward"][0]))
    return order[len(order) // 2]


def draw(rows, options):
    row = next((row for row in rows if row["layout"] == "2x2"), rows[-1])
    # Of the runs the one whose share is the median.
    run = sorted(row["weft"], key=hidden_share)[len(row["weft"]) // 2]
    index = typical_step(run)
    steps = [rank[index] for rank in run["ranks"]]
    begin = min(step["phases"]["forward"][0] for step in steps)
    tensor = int(row["layout"].split("x")[1])
    figure, (axes,) = plot.panels(
        1, 1, f"One training step, dp x tp = "
        f"{row['layout'].replace('x', ' x ')}, "
        f"buckets of {row['bucket_mb']:g} MiB", height=1.1 * len(steps) + 0.9)
    for rank, step in enumerate(steps):
        draw_rank(axes, rank, step, begin, labels=rank == 0)
    axes.set_yticks(
        [4 * rank + lane for rank in range(len(steps)) for lane in range(3)],
        [f"rank {rank} (dp={rank // tensor} tp={rank % tensor})  {name}"
         for rank in range(len(steps)) for name in ("compute", "dp", "tp")])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("ms")
    plot.legend_below(figure, axes)
    plot.save(figure, options.plot)


def parser():
    result = argparse.ArgumentParser()
    result.add_argument("--peer", default="bench/peer/trace_step.py")
    result.add_argument("--pairs", type=int, default=3)
    result.add_argument("--steps", type=int, default=STEPS)
    result.add_argument("--layouts", default="2x1,2x2")
    result.add_argument("--bucket_mb", type=int, default=2)
    result.add_argument("--plot", default="docs/ddp_trace.svg")
    return result


def main():
    options, options.flags = parser().parse_known_args()
    rows = measure(options)
    print(markdown(rows))
    draw(rows, options)


if __name__ == "__main__":
    main()

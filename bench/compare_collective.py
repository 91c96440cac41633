"""Times every collective over gloo and shared memory, and draws both.

    .venv-peer/bin/python bench/compare_collective.py [--rounds 11] [--ranks 2 4]
        [--sizes 1KB,1MB] [--plot docs/collectives.svg]

`weft bench collective` uses the transports in turn in the same processes; its
medians, least and most of the rounds are what counts.
"""

import argparse

import plot
from measure import quiet_machine, run, table, weftrun

# Times gloo, of all_reduce on two ranks.
TARGETS = {1 << 10: 20, 1 << 20: 3, 64 << 20: 1.8}
COLORS = (("gloo", plot.PYTORCH), ("shm", plot.WEFT))


def measure(options):
    flags = ["--json", f"--rounds={options.rounds}"]
    if options.sizes:
        flags.append(f"--sizes={options.sizes}")
    results = []
    for ranks in options.ranks:
        with quiet_machine:
            results.append(run(weftrun(ranks, "bench", "collective", *flags)))
    return results


def size_text(size):
    for unit, bytes_of in (("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= bytes_of:
            return f"{size // bytes_of} {unit}"
    return ""


def time_text(us):
    return f"{us / 1e3:.3g} ms" if us >= 999.5 else f"{us:.3g} us"


def spread(row, name):
    middle, least, most = times_of(row, name)
    return f"{time_text(middle)} ({time_text(least)} to {time_text(most)})"


def markdown(results):
    rows = []
    for result in results:
        for row in result["results"]:
            if row["op"] == "barrier" or row["bytes"] in TARGETS:
                rows.append([
                    row["op"], size_text(row["bytes"]), result["ranks"],
                    spread(row, "shm"), spread(row, "gloo"),
                    f"{row['ratio']:.1f}"])
    return "![Time of every collective by size](collectives.svg)\n\n" + table(
        ["collective", "size", "ranks", "shm", "gloo", "gloo / shm"], rows)


def targets(results):
    lines = []
    for result in results:
        for row in result["results"]:
            if row["op"] == "all_reduce" and row["bytes"] in TARGETS:
                bound = TARGETS[row["bytes"]]
                lines.append((
                    f"all_reduce of {size_text(row['bytes'])} against gloo, "
                    f"{result['ranks']} ranks", f"at least {bound} x",
                    f"{row['ratio']:.1f}", row["ratio"] >= bound))
    return lines


def times_of(row, name):
    return [row[f"{name}{part}_us"] for part in ("", "_min", "_max")]


def draw_barrier(panel, results):
    rows = [row for result in results for row in result["results"]
            if row["op"] == "barrier"]
    for name, color in COLORS:
        plot.points(panel, range(len(rows)),
                    [times_of(row, name) for row in rows], color)
    panel.set_xticks(range(len(rows)),
                     [f"{result['ranks']} ranks" for result in results])
    panel.set_xlim(-0.5, len(rows) - 0.5)


def draw_op(panel, results, op):
    for result, style in zip(results, ("-", "--")):
        rows = [row for row in result["results"] if row["op"] == op]
        sizes = [row["bytes"] for row in rows]
        for name, color in COLORS:
            plot.line(panel, sizes, [times_of(row, name) for row in rows],
                      color, f"{name}, {result['ranks']} ranks", style)
    ticks = sizes[::2]
    plot.log_x(panel, ticks, [size_text(size) for size in ticks])
    panel.set_xlabel("a rank's largest tensor")


def draw(results, options):
    ops = list(dict.fromkeys(row["op"] for row in results[0]["results"]))
    figure, axes = plot.panels(
        2, 3, "One collective on one host: shared memory (shm) and sockets "
        "(gloo) in turn, float32, median and range", sharey=True)
    for op, panel in zip(ops, axes):
        if op == "barrier":
            draw_barrier(panel, results)
        else:
            draw_op(panel, results, op)
        panel.set_title(op)
        plot.log_y(panel, time_text)
    for panel in axes[::3]:
        panel.set_ylabel("time of a call")
    plot.legend_below(figure, axes[0])
    plot.save(figure, options.plot)


def parser():
    result = argparse.ArgumentParser()
    result.add_argument("--rounds", type=int, default=11)
    result.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    result.add_argument("--sizes", default="")
    result.add_argument("--plot", default="docs/collectives.svg")
    return result


def main():
    options = parser().parse_args()
    results = measure(options)
    print(markdown(results))
    draw(results, options)


if __name__ == "__main__":
    main()

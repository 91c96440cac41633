"""Pictures for the documentation, in one style: SVG with text as text."""

import os

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib import ticker  # noqa: E402

WEFT, PYTORCH, THIRD = "#1b6ca8", "#d1495b", "#3f8f4f"

matplotlib.rcParams.update({
    "svg.fonttype": "none", "svg.hashsalt": "weft", "font.size": 9,
    "font.family": "sans-serif", "axes.grid": True, "grid.alpha": 0.3,
    "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlesize": 10, "legend.frameon": False, "lines.markersize": 4})


def panels(rows, columns, title, width=9.5, height=3.1, sharey=False):
    """A figure and its axes in a flat list."""
    figure, axes = plt.subplots(
        rows, columns, figsize=(width, height * rows), squeeze=False,
        sharey=sharey, layout="constrained")
    figure.suptitle(title, fontsize=11)
    return figure, list(axes.flat)


def line(axes, xs, results, color, label, style="-"):
    """`results`: (middle, least, most) at each x."""
    middles, leasts, mosts = zip(*results)
    axes.plot(xs, middles, style, color=color, marker="o", label=label)
    axes.fill_between(xs, leasts, mosts, color=color, alpha=0.15, linewidth=0)


def points(axes, xs, results, color):
    """As line(), for things that have no order."""
    middles, leasts, mosts = zip(*results)
    errors = [[m - a for m, a in zip(middles, leasts)],
              [b - m for m, b in zip(middles, mosts)]]
    axes.errorbar(xs, middles, errors, fmt="o", color=color, capsize=3)


def log_x(axes, ticks, labels):
    axes.set_xscale("log")
    axes.set_xticks(ticks, labels)
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def log_y(axes, text, steps=(1,)):
    """Labels, written by `text`, at `steps` of each power of ten."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=steps))
    axes.yaxis.set_major_formatter(lambda value, _: text(value))
    axes.yaxis.set_minor_locator(ticker.NullLocator())


def legend_below(figure, axes):
    """One legend for all panels, from the lines of one."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center",
                  ncols=4)


def save(figure, path):
    """SVG into `path`; with WEFT_BENCH_PNG=FOLDER a PNG there as well."""
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    folder = os.environ.get("WEFT_BENCH_PNG")
    if folder:
        name = os.path.basename(path).replace(".svg", ".png")
        figure.savefig(os.path.join(folder, name), dpi=110, facecolor="white")
    plt.close(figure)

"""How a step's time grows, Weft's and PyTorch's in turn, as JSON lines and plots.

    .venv-peer/bin/python bench/scaling.py [--pairs 1] [--layouts 1x1,2x2]
        [--out build/bench/scaling.jsonl] [--plot docs/scaling.svg]

All layouts (dp x tp) at dim 256, 4 layers, batch 4 x 128; then, on --layouts,
batches of 1 to 8, sequences of 64 to 512, and models of up to 1e8 parameters.
A point that --out has is not measured again.
"""

import argparse
import json
import os
import sys

import plot
from measure import in_turn, median, ratios, spread, table, torchrun, weftrun

LAYOUTS = ["1x1", "2x1", "1x2", "2x2"]
BASE = {"dim": 256, "layers": 4, "batch": 4, "seq": 128}
BATCHES, SEQUENCES = (1, 2, 4, 8), (64, 128, 256, 512)
MODELS = ((256, 4), (512, 4), (768, 4), (1024, 4), (1024, 6))


def parameters(point, vocab=256):
    dim = point["dim"]
    block = 4 * dim**2 + 3 * dim * 4 * dim + 2 * dim
    return point["layers"] * block + 2 * vocab * dim + dim


def points(layouts):
    """Each once."""
    found = [{"layout": layout, **BASE} for layout in LAYOUTS]
    for layout in layouts:
        varied = ([{"batch": batch} for batch in BATCHES]
                  + [{"seq": seq} for seq in SEQUENCES]
                  + [{"dim": dim, "layers": layers} for dim, layers in MODELS])
        found += [{"layout": layout, **BASE, **change} for change in varied]
    return list({json.dumps(point): point for point in found}.values())


def flags_of(point):
    dp, tp = map(int, point["layout"].split("x"))
    # A step of 1e8 parameters takes seconds, one of 4e6 a tenth of one.
    big = parameters(point) > 3e7
    steps = {"steps": 3, "warmup": 1} if big else {"steps": 8, "warmup": 3}
    values = {"dp": dp, "tp": tp, **steps,
              **{key: point[key] for key in BASE}}
    return dp * tp, [f"--{key}={value}" for key, value in values.items()]


def read(path):
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(text) for text in file]


def measure(options):
    lines = read(options.out)
    done = [line["point"] for line in lines]
    os.makedirs(os.path.dirname(options.out) or ".", exist_ok=True)
    for point in points(options.layouts.split(",")):
        if point in done:
            continue
        ranks, flags = flags_of(point)
        print(point, file=sys.stderr)
        results = in_turn(
            {"weft": weftrun(ranks, "bench", "step", *flags),
             "peer": torchrun(ranks, options.peer, *flags)}, options.pairs)
        lines.append({"point": point, "parameters": parameters(point), **results})
        with open(options.out, "a") as file:
            file.write(json.dumps(lines[-1]) + "\n")
    return lines


def text_of(count):
    return f"{count / 1e6:.3g} M"


def markdown(lines):
    return "![Time of a step by layout, batch, sequence and model]" \
        "(scaling.svg)\n\n" + table(
        ["dp x tp", "dim", "layers", "parameters", "batch", "sequence",
         "Weft ms", "PyTorch ms", "PyTorch / Weft"],
        [[point["layout"].replace("x", " x "), point["dim"], point["layers"],
          text_of(line["parameters"]), point["batch"], point["seq"],
          f"{median(line['weft'], 'ms_per_step'):.0f}",
          f"{median(line['peer'], 'ms_per_step'):.0f}",
          spread(ratios(line["peer"], line["weft"], "ms_per_step"))]
         for line in lines for point in [line["point"]]])


def targets(_):
    return []


def steps_of(lines, side):
    """(middle, least, most) ms of each line."""
    return [(median(line[side], "ms_per_step"),
             min(run["ms_per_step"] for run in line[side]),
             max(run["ms_per_step"] for run in line[side])) for line in lines]


def draw_layouts(panel, lines, sides):
    base = [line for line in lines
            if line["point"] == {**BASE, "layout": line["point"]["layout"]}]
    base.sort(key=lambda line: LAYOUTS.index(line["point"]["layout"]))
    for i, (side, name, color) in enumerate(sides):
        times = [ms for ms, _, _ in steps_of(base, side)]
        places = [x + 0.38 * (i - 0.5) for x in range(len(base))]
        bars = panel.bar(places, times, 0.36, color=color, label=name)
        panel.bar_label(bars, fmt="%.0f", fontsize=8)
    panel.set_xticks(range(len(base)), [line["point"]["layout"].replace(
        "x", " x ") for line in base])
    panel.grid(axis="x", visible=False)
    panel.margins(y=0.2)
    panel.set_title("layout")
    panel.set_xlabel("dp x tp (4.33 M parameters, batch 4, sequence 128)")
    panel.legend(loc="upper center", ncols=2)


def draw_sweep(panel, lines, sides, layouts, keys, x_of, label_of):
    """Of the lines that differ from BASE in `keys` alone."""
    xs = {}
    for layout, style in zip(layouts, ("-", "--", ":", "-.")):
        chosen = [line for line in lines
                  if line["point"]["layout"] == layout
                  and all(line["point"][key] == BASE[key]
                          for key in BASE if key not in keys)]
        chosen.sort(key=x_of)
        if not chosen:
            continue
        xs.update({x_of(line): label_of(line) for line in chosen})
        for side, name, color in sides:
            panel_name = f"{name}, {layout.replace('x', ' x ')}"
            plot.line(panel, [x_of(line) for line in chosen],
                      steps_of(chosen, side), color, panel_name, style)
    plot.log_x(panel, list(xs), list(xs.values()))
    plot.log_y(panel, "{:,.0f}".format, (1, 2, 5))
    panel.legend(fontsize=8)


def draw(lines, options):
    sides = [("peer", "PyTorch", plot.PYTORCH), ("weft", "Weft", plot.WEFT)]
    figure, axes = plot.panels(
        2, 2, "A training step of a Llama, Weft and PyTorch in turn on the same "
        "two cores, float32, one thread a rank", height=3.5)
    draw_layouts(axes[0], lines, sides)
    sweeps = [
        (["batch"], lambda line: line["point"]["batch"],
         lambda line: str(line["point"]["batch"]),
         "samples a replica (4.33 M parameters, sequence 128)", "batch"),
        (["seq"], lambda line: line["point"]["seq"],
         lambda line: str(line["point"]["seq"]),
         "tokens a sample (4.33 M parameters, batch 4)", "sequence"),
        (["dim", "layers"], lambda line: line["parameters"],
         lambda line: f"{text_of(line['parameters'])}\n"
         f"{line['point']['dim']}",
         "parameters, dim (batch 4, sequence 128)", "model")]
    for panel, (keys, x_of, label_of, x_label, title) in zip(axes[1:], sweeps):
        draw_sweep(panel, lines, sides, options.layouts.split(","), keys, x_of,
                   label_of)
        panel.set_xlabel(x_label)
        panel.set_title(title)
    for panel in axes:
        panel.set_ylabel("ms a step")
    plot.save(figure, options.plot)


def parser():
    result = argparse.ArgumentParser()
    result.add_argument("--peer", default="bench/peer/train_step.py")
    result.add_argument("--pairs", type=int, default=1)
    result.add_argument("--layouts", default="1x1,2x2")
    result.add_argument("--out", default="build/bench/scaling.jsonl")
    result.add_argument("--plot", default="docs/scaling.svg")
    return result


def main():
    options = parser().parse_args()
    lines = measure(options)
    print(markdown(lines))
    draw(lines, options)


if __name__ == "__main__":
    main()

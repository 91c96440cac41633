"""Runs `weft bench step` and the matrix products of that step alone in turn.

    .venv-peer/bin/python bench/compare_matmul.py [--pairs 3]
        [--models 256x4,1024x6] [--dtypes float32,bfloat16]
        [more flags that bench step and bench matmul both have]

How much of a step is its products, and how near they come to what a core can
do. Models are dim x layers, on one rank. `weft bench matmul` times each product
of the step with every library that there is; of two libraries the faster one
counts. The peak is that of a product of 1024 x 1024 x 1024.
"""

import argparse
import statistics

from measure import WEFT, in_turn, median, spread, table, weftrun

# Of each model that can be measured: its heads, and how many steps are timed.
MODELS = {"256x4": (8, ["--steps=15"]),
          "1024x6": (16, ["--steps=5", "--warmup=2"])}
LIBRARIES = {"libtorch": "libtorch", "onednn": "oneDNN"}
# The step over its products alone.
TARGETS = {("256x4", "float32"): 1.25}


def commands_of(model, dtype, flags):
    dim, layers = model.split("x")
    heads, steps = MODELS[model]
    flags = [f"--dim={dim}", f"--layers={layers}", f"--heads={heads}",
             f"--dtype={dtype}", *flags]
    return {"step": weftrun(1, "bench", "step", "--dp=1", "--tp=1", *steps,
                            *flags),
            "matmul": [WEFT, "bench", "matmul", *flags]}


def measure(options):
    return [{"model": model, "dtype": dtype,
             **in_turn(commands_of(model, dtype, options.flags), options.pairs)}
            for model in options.models.split(",")
            for dtype in options.dtypes.split(",")]


def title(row):
    return "dim {}, {} layers".format(*row["model"].split("x"))


def library_ms(row, library):
    values = [run["ms"][library] for run in row["matmul"] if library in run["ms"]]
    return f"{statistics.median(values):.1f}" if values else "-"


def fastest_ms(run):
    return min(run["ms"].values())


def speeds(row):
    """GFLOP/s of each step: what is not a product counts as time alone."""
    return [1e3 * alone["gflop"] / step["ms_per_step"]
            for step, alone in zip(row["step"], row["matmul"])]


def peaks(row):
    return [max(run["peak_gflops"].values()) for run in row["matmul"]]


def over_products(row):
    """Of each pair, whose runs are neighbours in time."""
    return [step["ms_per_step"] / fastest_ms(alone)
            for step, alone in zip(row["step"], row["matmul"])]


def line(row):
    shares = [100 * speed / peak for speed, peak in zip(speeds(row), peaks(row))]
    return [title(row), row["dtype"], f"{row['matmul'][0]['gflop']:.1f}",
            f"{median(row['step'], 'ms_per_step'):.1f}",
            f"{statistics.median(speeds(row)):.0f}",
            *(library_ms(row, library) for library in LIBRARIES),
            f"{statistics.median(peaks(row)):.0f}", spread(shares, 0),
            spread(over_products(row))]


def markdown(rows):
    return table(
        ["model", "dtype", "GFLOP of a step", "step ms", "step's GFLOP/s",
         *(f"products alone ms, {name}" for name in LIBRARIES.values()),
         "best product GFLOP/s", "step's GFLOP/s over that, %",
         "step / products alone"], [line(row) for row in rows])


def targets(rows):
    lines = []
    for row in rows:
        bound = TARGETS.get((row["model"], row["dtype"]))
        if bound:
            values = over_products(row)
            lines.append((f"step of {title(row)}, {row['dtype']}, over its "
                          "products alone", f"at most {bound:g} x",
                          spread(values), statistics.median(values) <= bound))
    return lines


def parser():
    result = argparse.ArgumentParser()
    result.add_argument("--pairs", type=int, default=3)
    result.add_argument("--models", default=",".join(MODELS))
    result.add_argument("--dtypes", default="float32,bfloat16")
    return result


def main():
    options, options.flags = parser().parse_known_args()
    print(markdown(measure(options)))


if __name__ == "__main__":
    main()

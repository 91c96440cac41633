"""Resident memory of every rank over a long training run: does it grow?

    .venv-peer/bin/python bench/memory.py [--steps 10000] [--every 100]
        [--plot docs/memory.svg]

Trains a small Llama on 2 x 2 with `weft train`, evaluation and checkpoints
included, and reads the ranks' resident set from /proc every --every steps. The
line through the second half of the samples is the growth: what a process
settles into, its caches and the allocator's pools, is there by then. Exits 1 if
a rank would grow by more than 1 MB in 10,000 steps. Prints Markdown.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy
import plot
from kill_and_resume import steps_done, workers
from measure import table, weftrun

RECIPE = """name: memory
mesh: {dp: 2, tp: 2}
model: {dim: 64, layers: 2, heads: 4, kv_heads: 2, ffn_dim: 256}
data: {paths: [corpus.txt], sequence_length: 32}
train: {steps: %d, global_batch_size: 8, log_every: 1000}
eval: {every: 1000, batches: 2}
checkpoint: {every: 1000, keep: 2}
"""
MOST_KB = 1024  # in 10,000 steps


def resident_mb(pid):
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def sample(folder, steps, every):
    """[(step, MB of rank 0, 1, ...)]."""
    launcher = subprocess.Popen(
        weftrun(4, "train", "recipe.yaml", "output_dir=run"), cwd=folder,
        stdout=subprocess.DEVNULL)
    samples, pids = [], {}
    while launcher.poll() is None:
        step = steps_done(folder, "run")
        if step >= (samples[-1][0] if samples else 0) + every:
            pids = pids or workers(launcher.pid)
            try:
                samples.append(
                    (step, *(resident_mb(pids[rank]) for rank in sorted(pids))))
            except OSError:  # over
                break
        time.sleep(0.05)
    if launcher.wait() != 0:
        sys.exit(f"weft train ended with {launcher.returncode}")
    return samples


def measure(options):
    with tempfile.TemporaryDirectory(prefix="weft_memory_") as name:
        folder = pathlib.Path(name)
        (folder / "corpus.txt").write_text("".join(
            f"int value_{i * 7919 % 1000} = {i * i % 613};\n"
            for i in range(4000)))
        (folder / "recipe.yaml").write_text(RECIPE % options.steps)
        samples = sample(folder, options.steps, options.every)
    return {"steps": options.steps, "samples": samples}


def growths(result):
    """KB in 10,000 steps of each rank, by least squares."""
    half = numpy.array(
        [row for row in result["samples"] if row[0] > result["steps"] / 2])
    return [numpy.polyfit(half[:, 0], rank, 1)[0] * 1e4 * 1024
            for rank in half[:, 1:].T]


def markdown(result):
    rows = []
    for rank, growth in enumerate(growths(result)):
        values = [row[rank + 1] for row in result["samples"]]
        rows.append([rank, f"{values[0]:.1f}",
                     f"{values[len(values) // 2]:.1f}", f"{values[-1]:.1f}",
                     f"{growth:+.0f}"])
    first, middle, last = (result["samples"][i][0] for i in (
        0, len(result["samples"]) // 2, -1))
    return "![Resident memory of the ranks by step](memory.svg)\n\n" + table(
        ["rank", f"MB at step {first}", f"at {middle}", f"at {last}",
         "slope of the second half, KB in 10,000 steps"], rows)


def targets(result):
    growth = max(growths(result))
    return [(f"growth over {result['steps']:,} steps, the worst rank",
             f"at most {MOST_KB} KB", f"{growth:+.0f} KB", growth <= MOST_KB)]


def draw(result, options):
    figure, (axes,) = plot.panels(
        1, 1, f"Resident memory of the four ranks of a 2 x 2 run over "
        f"{result['steps']:,} steps", width=7.5)
    steps = [row[0] for row in result["samples"]]
    colors = [plot.WEFT, plot.PYTORCH, plot.THIRD, "#e0a030"]
    for rank, color in enumerate(colors):
        axes.plot(steps, [row[rank + 1] for row in result["samples"]],
                  color=color, label=f"rank {rank}", linewidth=1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_ylabel("resident set, MB")
    axes.legend(ncols=4, loc="lower right")
    plot.save(figure, options.plot)


def parser():
    result = argparse.ArgumentParser()
    result.add_argument("--steps", type=int, default=10000)
    result.add_argument("--every", type=int, default=100)
    result.add_argument("--plot", default="docs/memory.svg")
    return result


def main():
    options = parser().parse_args()
    result = measure(options)
    print(markdown(result))
    draw(result, options)
    sys.exit(not targets(result)[0][3])


if __name__ == "__main__":
    main()

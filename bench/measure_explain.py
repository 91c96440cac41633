"""Time and memory of `weft explain` for a world of 16,384 ranks.

    .venv-peer/bin/python bench/measure_explain.py [--runs 3]
"""

import argparse
import os
import statistics
import subprocess
import time

from measure import WEFT, quiet_machine, spread, table

RECIPE = "recipes/llama_70b.yaml"
MOST_SECONDS, MOST_MB = 1, 200


def explain():
    start = time.perf_counter()
    process = subprocess.Popen(
        [WEFT, "explain", RECIPE, "--world-size", "16384"],
        stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"weft explain ended with {status}")
    return {"s": time.perf_counter() - start, "mb": usage.ru_maxrss / 1024}


def measure(options):
    with quiet_machine:
        return [explain() for _ in range(options.runs)]


def markdown(results):
    return table(["recipe", "ranks", "s", "peak MB"], [[
        RECIPE, "16,384", spread([run["s"] for run in results]),
        spread([run["mb"] for run in results], 0)]])


def targets(results):
    lines = []
    for key, bound, unit, digits in (
            ("s", MOST_SECONDS, "s", 2), ("mb", MOST_MB, "MB", 0)):
        values = [run[key] for run in results]
        lines.append((f"weft explain for 16,384 ranks, {unit}",
                      f"at most {bound} {unit}", spread(values, digits),
                      statistics.median(values) <= bound))
    return lines


def parser():
    result = argparse.ArgumentParser()
    result.add_argument("--runs", type=int, default=3)
    return result


def main():
    print(markdown(measure(parser().parse_args())))


if __name__ == "__main__":
    main()

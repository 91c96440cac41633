"""Runs `weft bench step` and PyTorch's script in turn and prints a table.

    .venv-peer/bin/python bench/compare.py [--peer bench/peer/train_step.py] [--pairs 3]

Each layout: one limit run (every collective replaced by nothing), then `pairs`
times Weft and the peer one after the other, in changing order. Ratios are of
medians. Prints Markdown; progress goes to stderr.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

LAYOUTS = [(1, 1), (2, 1), (1, 2), (2, 2)]


def run(command):
    environment = dict(os.environ, PEER_T0=repr(time.time()), OMP_NUM_THREADS="1")
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True)
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    if not lines:
        sys.exit(f"{' '.join(command)} failed:\n{result.stderr[-3000:]}")
    if result.returncode != 0:  # PyTorch's gloo sometimes aborts at the very end
        print(f"exit code {result.returncode} after the result of {command[0]}",
              file=sys.stderr)
    return json.loads(lines[-1])


def weft(flags, dp, tp, comm="auto"):
    return run(["build/bin/weftrun", f"--nproc-per-node={dp * tp}", "--",
                "build/bin/weft", "bench", "step", f"--dp={dp}", f"--tp={tp}",
                f"--comm={comm}", *flags])


def peer(script, flags, dp, tp):
    torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
    return run([torchrun, f"--nproc-per-node={dp * tp}", script,
                f"--dp={dp}", f"--tp={tp}", *flags])


def median(results, key):
    return statistics.median(result[key] for result in results)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", default="bench/peer/train_step.py")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    options, rest = parser.parse_known_args()
    flags = [f"--steps={options.steps}", *rest]
    print("| dp x tp | Weft ms | PyTorch ms | ratio | limit ms | over limit "
          "| first step s (PyTorch) | peak MB a rank (PyTorch) |")
    print("|---|---|---|---|---|---|---|---|")
    for dp, tp in LAYOUTS:
        limit = weft(flags, dp, tp, comm="none")
        ours, theirs = [], []
        for pair in range(options.pairs):
            order = [lambda: ours.append(weft(flags, dp, tp)),
                     lambda: theirs.append(peer(options.peer, flags, dp, tp))]
            for measure in order if pair % 2 == 0 else reversed(order):
                measure()
            print(f"{dp}x{tp} pair {pair + 1}: weft {ours[-1]['ms_per_step']} ms, "
                  f"pytorch {theirs[-1]['ms_per_step']} ms", file=sys.stderr)
        our_ms, their_ms = median(ours, "ms_per_step"), median(theirs, "ms_per_step")
        print(f"| {dp} x {tp} | {our_ms:.0f} | {their_ms:.0f} "
              f"| {their_ms / our_ms:.2f} | {limit['ms_per_step']:.0f} "
              f"| {our_ms / limit['ms_per_step']:.2f} "
              f"| {median(ours, 'first_step_s'):.2f} "
              f"({median(theirs, 'first_step_s'):.1f}) "
              f"| {median(ours, 'peak_rss_mb'):.0f} "
              f"({median(theirs, 'peak_rss_mb'):.0f}) |", flush=True)


if __name__ == "__main__":
    main()

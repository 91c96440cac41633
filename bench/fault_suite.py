#!/usr/bin/env python3
"""What is done to training runs on purpose, and what must come of it.

bench/fault_suite.py [--only F1,F16,F18,...] [--runs N] [--seed 1] [--sample]
                     [--bin build/bin] [--out FILE]

  F1   kill -9 of a random rank at a random step, under --max-restarts: the
       group restarts from its last checkpoint, and ends bit for bit as a run
       that nobody disturbed
  F16  nan, inf, 1e38 in a gradient, policies stop and skip
  F17  bits of weights flip (bench/bit_flips.py)
  F18  collectives that do not fit: shape, dtype, op, reduction, order, root,
       group; one is skipped, one called twice
  F19  gloo's abort, without Weft's checks
  F20  SIGSTOP of a random rank: named while the others wait, and after
       comm.timeout_s the group restarts
  F21  a rank is slow (bench/stragglers.py)
  F24  addresses that accept and say nothing; hosts whose cable is cut (root)
  F25  runs that are told to end (bench/end_signals.py)

Prints a table (fault, injection, expected, seen), the same as JSON to --out;
exits 1 if anything is not as it must be. --sample does a little of each, for
ctest. Needs `ninja -C build weft weftrun faulty_weft gloo_abort odd_collective
integration_watch_bench`.
"""

import argparse
import json
import pathlib
import random
import signal
import sys
import tempfile

import fault_calls
import fault_network
import fault_numbers
import fault_ranks
from fault_runs import ROOT, Programs, write_inputs

FAULTS = {
    "F1": fault_ranks.killed, "F16": fault_numbers.not_finite,
    "F17": fault_numbers.flipped, "F18": fault_calls.mismatched,
    "F19": fault_calls.gloo_abort, "F20": fault_ranks.stopped,
    "F21": fault_numbers.slowed, "F24": fault_network.partition,
    "F25": fault_numbers.told_to_end}
# How often each is done; of F17 flips, of F21 steps.
RUNS = {"F1": 200, "F16": 1, "F17": 100, "F18": 3, "F19": 20, "F20": 8,
        "F21": 80, "F24": 3, "F25": 10}
SAMPLE = {"F1": 2, "F18": 1, "F19": 1, "F20": 1}


class Suite:
    """What the faults share: programs, a folder, dice and how often."""

    def __init__(self, options, folder):
        self.folder, self.options = folder, options
        self.sample = options.sample
        self.programs = Programs(options.bin.resolve(), folder)

    def rows(self, name):
        counts = SAMPLE if self.sample else RUNS
        self.dice = random.Random(f"{name}.{self.options.seed}")
        self.runs = self.options.runs or counts.get(name, 1)
        for row in FAULTS[name](self):
            print(f"| {name} {row['fault']} | {row['injection']} | "
                  f"{row['expected']} | {row['seen']} |"
                  + ("" if row["ok"] else "  <- WRONG"), flush=True)
            yield {"id": name, "seed": self.options.seed, **row}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    names = (options.only or ",".join(
        SAMPLE if options.sample else FAULTS)).split(",")
    if unknown := [name for name in names if name not in FAULTS]:
        parser.error(f"{unknown[0]} is none of {', '.join(FAULTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print("| fault | injection | expected | seen |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="weft_faults_") as folder:
        write_inputs(pathlib.Path(folder))
        suite = Suite(options, pathlib.Path(folder))
        rows = [row for name in names for row in suite.rows(name)]
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

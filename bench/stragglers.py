#!/usr/bin/env python3
"""Slows one rank of a run down, and looks who is named; tables for
docs/reliability.md.

bench/stragglers.py [--steps 120] [--recipe recipes/quickstart.yaml] [--only KIND ...]
                    [--quiet-steps 2000]

Kinds:
  sleep  one rank's forward, backward or what is between rests by 10, 20, 50 and
         100 % of what a step keeps it busy
  quota  a process of `weft train` is stopped (SIGSTOP) for a share of every
         40 ms, as a CPU quota does it
  quiet  nobody is slowed down: false alarms an hour
  loaded the same with `--load` (2) other busy processes

Needs `ninja -C build weft weftrun integration_watch_bench`.
"""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from bit_flips import BENCH, worker_pids
from measure import WEFT, WEFTRUN, run

STEPS_ENOUGH = "train.steps=1000000"


def bench(mesh, options, steps, slower):
    dp, tp = mesh
    got = run([WEFTRUN, f"--nproc-per-node={dp * tp}", "--", BENCH, "straggler",
               options.recipe, str(steps), slower, f"mesh.dp={dp}",
               f"mesh.tp={tp}", STEPS_ENOUGH, *options.override])
    return {"mesh": f"{dp}x{tp}", **got}


def sleep(options):
    for mesh in ((2, 1), (1, 2), (2, 2)):
        for percent in (10, 20, 50, 100):
            for phase in ("forward", "backward", "other"):
                rank = mesh[0] * mesh[1] - 1
                yield {"kind": "sleep",
                       **bench(mesh, options, options.steps,
                               f"{rank}:{phase}:{percent}")}


def quiet(options, kind="quiet"):
    for mesh in ((2, 1), (2, 2)):
        got = bench(mesh, options, options.quiet_steps, "none:none:0")
        hours = got["seconds"] / 3600
        yield {"kind": kind, **got,
               "alarms_per_hour": round(len(got["said"]) / hours, 2)}


def loaded(options):
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
              for _ in range(options.load)]
    try:
        yield from quiet(options, "loaded")
    finally:
        for other in others:
            other.kill()
            other.wait()


def quota(options):
    """Off for `share` of every 40 ms: what is left makes the rank
    1 / (1 - share) times as slow."""
    for mesh in ((2, 1), (2, 2)):
        for share in (0.2, 0.35, 0.5):
            with tempfile.TemporaryDirectory() as folder:
                dp, tp = mesh
                started = subprocess.Popen(
                    [WEFTRUN, f"--nproc-per-node={dp * tp}", "--", WEFT, "train",
                     options.recipe, f"mesh.dp={dp}", f"mesh.tp={tp}",
                     f"output_dir={folder}/out", "train.steps=240", "eval.batches=0",
                     "checkpoint.every=0", "train.log_every=1", *options.override],
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                rank, pid, first, said, step = dp * tp - 1, None, None, None, 0
                os.set_blocking(started.stdout.fileno(), False)
                text = ""
                while started.poll() is None and said is None:
                    text += started.stdout.read() or ""
                    steps = re.findall(r"^step (\d+)/", text, re.M)
                    step = int(steps[-1]) if steps else 0
                    warned = re.search(r"^rank \d+ is slow.*$", text, re.M)
                    if warned and first:
                        said = warned[0]
                    if step < 40:
                        time.sleep(0.02)
                        continue
                    pid = pid or worker_pids(started.pid).get(rank)
                    first = first or step
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(0.04 * share)
                    os.kill(pid, signal.SIGCONT)
                    time.sleep(0.04 * (1 - share))
                started.terminate()
                started.wait()
                yield {"kind": "quota", "mesh": f"{dp}x{tp}", "share": share,
                       "rank": rank, "steps_until": step - (first or step),
                       "said": said}


def main():
    kinds = {"sleep": sleep, "quota": quota, "quiet": quiet, "loaded": loaded}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--quiet-steps", type=int, default=1500)
    parser.add_argument("--load", type=int, default=2)
    parser.add_argument("--recipe", default="recipes/quickstart.yaml")
    parser.add_argument("--override", nargs="*", default=[])
    parser.add_argument("--only", nargs="+", choices=kinds, default=list(kinds))
    options = parser.parse_args()
    for kind in options.only:
        for row in kinds[kind](options):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

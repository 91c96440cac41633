#!/usr/bin/env python3
"""Turns bits over in the memory of ranks that train; tables for docs/reliability.md.

bench/bit_flips.py [--flips 100] [--live 10] [--pairs 150] [--seed 1] [--only KIND ...]

Kinds, each on the recipe of a small Llama:
  flips      mantissa bits of weights at random (tensor, element, bit, rank, step,
             moment of the step): steps until it is named, and whether rightly
  gradients  the same in a gradient after its reduction, on one rank
  cost       steps of recipes/quickstart.yaml on 2x2, with and without, in turn
  live       a run of `weft train` itself, stopped for a moment while a bit of
             its rotary table is turned over through /proc/PID/mem (the same uid
             may do so where ptrace is allowed, root always)

Needs `ninja -C build weft weftrun integration_watch_bench`.
"""
import argparse
import json
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

from measure import BIN, WEFT, WEFTRUN, run

BENCH = os.path.join(BIN, "integration_watch_bench")
RECIPE = """name: flips
model: {dim: 64, layers: 2, heads: 4, ffn_dim: 128}
data: {paths: [%s], sequence_length: 32}
train: {steps: %d, global_batch_size: 12, log_every: 1000000}
eval: {batches: 0}
"""


def write_recipe(folder, steps):
    text = folder / "text.txt"
    text.write_text("".join(f"int64_t v{i * 7919 % 1000} = {i * i % 613};\n"
                            for i in range(4000)))
    recipe = folder / "flips.yaml"
    recipe.write_text(RECIPE % (text, steps))
    return recipe


def bench(mesh, mode, recipe, count, seed, *overrides):
    dp, tp = mesh
    return run([WEFTRUN, f"--nproc-per-node={dp * tp}", "--", BENCH, mode,
                str(recipe), str(count), str(seed), f"mesh.dp={dp}",
                f"mesh.tp={tp}", *overrides])


def flips(options, folder):
    recipe = write_recipe(folder, 24)
    for mesh, every, seal in (((2, 1), 10, True), ((1, 2), 10, True),
                              ((2, 2), 10, True), ((2, 2), 1, True),
                              ((1, 1), 10, True), ((3, 1), 1, False)):
        got = bench(mesh, "flips", recipe, options.flips, options.seed,
                    f"integrity_check.every={every}",
                    f"integrity_check.hash_weights={str(seal).lower()}",
                    f"output_dir={folder}/out")
        yield "flips", mesh, {"every": every, "seal": seal, **got}


def gradients(options, folder):
    recipe = write_recipe(folder, 24)
    for mesh, every, seal in (((2, 1), 1, True), ((3, 1), 1, True)):
        got = bench(mesh, "gradients", recipe, options.flips, options.seed,
                    f"integrity_check.every={every}", f"output_dir={folder}/out")
        yield "gradients", mesh, {"every": every, "seal": seal, **got}


def cost(options, folder):
    del folder
    for every, seal in ((10, "true"), (1, "true"), (1, "false"), (10, "false")):
        got = bench((2, 2), "cost", "recipes/quickstart.yaml", options.pairs, 0,
                    f"integrity_check.every={every}", f"integrity_check.hash_weights={seal}",
                    "train.steps=100000")
        yield "cost", (2, 2), {"every": every, "seal": seal, **got}


def worker_pids(launcher):
    pids = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            rank = re.search(rb"\0RANK=(\d+)\0", (entry / "environ").read_bytes())
            if parent == launcher and rank:
                pids[int(rank[1])] = int(entry.name)
        except (OSError, ValueError, IndexError):
            continue
    return pids


def turn_over(pid, needle, offset, bit):
    """In the first writable copy of `needle`; returns whether there was one."""
    found = False
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "r+b", 0) as mem:
        for line in maps:
            where, rights = line.split()[:2]
            if not rights.startswith("rw") or "[v" in line or "/dev/shm" in line:
                continue
            begin, end = (int(part, 16) for part in where.split("-"))
            try:
                mem.seek(begin)
                data = mem.read(end - begin)
            except OSError:
                continue
            at = data.find(needle)
            while at >= 0:
                place = begin + at + offset
                mem.seek(place)
                byte = mem.read(1)[0]
                mem.seek(place)
                mem.write(bytes([byte ^ (1 << bit)]))
                found = True
                at = data.find(needle, at + len(needle))
    return found


def live(options, folder):
    """Rows 1 to 3 of the cosines: what every rank computed when it began."""
    import math
    recipe = write_recipe(folder, 4000)
    half = [10000.0 ** (-2 * i / 16) for i in range(8)]
    chooser = random.Random(options.seed)
    codes, seconds, named, waited = [], [], 0, 0
    for trial in range(options.live):
        out = folder / f"live{trial}"
        started = subprocess.Popen(
            [WEFTRUN, "--nproc-per-node=4", "--", WEFT, "train", str(recipe),
             "mesh.dp=2", "mesh.tp=2", f"output_dir={out}", "checkpoint.every=20",
             "checkpoint.async=false"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        metrics = out / "metrics.jsonl"
        while not metrics.exists() or len(metrics.read_text().splitlines()) < 25:
            time.sleep(0.05)
        rank = chooser.randrange(4)
        pid = worker_pids(started.pid)[rank]
        row = struct.pack("<8f", *(math.cos(f) for f in half))
        os.kill(pid, signal.SIGSTOP)
        try:
            hit = turn_over(pid, row[4:16], 4 * chooser.randrange(3),
                            chooser.randrange(8))
        finally:
            os.kill(pid, signal.SIGCONT)
        begin = time.time()
        done = len(metrics.read_text().splitlines())
        _, errors = started.communicate(timeout=300)
        last = errors.strip().splitlines()[-1]
        if not hit:
            sys.exit("the rotary table was not found in the process's memory")
        codes.append(started.returncode)
        seconds.append(round(time.time() - begin, 2))
        waited = max(waited, len(metrics.read_text().splitlines()) - done)
        named += f"changed on rank {rank} after" in last
        print(last, file=sys.stderr)
    yield "live", (2, 2), {"flips": options.live, "exit_codes": codes,
                           "named_right": named, "seconds": seconds,
                           "steps_after_at_most": waited}


def main():
    kinds = {"flips": flips, "gradients": gradients, "cost": cost, "live": live}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument("--live", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=kinds, default=list(kinds))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weft_flips_") as folder:
        for kind in options.only:
            for name, (dp, tp), row in kinds[kind](options, pathlib.Path(folder)):
                print(json.dumps({"kind": name, "mesh": f"{dp}x{tp}", **row}),
                      flush=True)


if __name__ == "__main__":
    main()

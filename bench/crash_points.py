#!/usr/bin/env python3
"""Kills or fails a rank at every system call that saving makes of files.

bench/crash_points.py [--kinds kill,error,short,full] [--modes sync,async]
    [--sample N] [--seed 1] [--jobs 2] [--folder DIR] [--kib 256]

Four ranks on a mesh of 2x2 save steps 1 and 2, then step 3, after which
retention deletes step 1. strace lists the calls that each rank makes on the
checkpoints' folder while it saves step 3; then, once for every call and rank:

  kill   the rank dies by SIGKILL as it makes the call;
  error  the call fails with ENOSPC or EIO, whichever it can;
  short  write calls take few bytes, and are interrupted;
  full   a tmpfs has room for 0, 25, 50, 75 and 99 % of what the save writes
         (as root: it is mounted).

Afterwards every step folder is verified and loaded: whole, and of one step.
Nothing that was committed may be gone but by retention; where all ranks live
they must all be refused, told which rank, path and reason, and save the next
step, with nothing left behind. tests/checkpoint/crash/crash_checker.cpp has the rules.
--sample N tries N of each kind and mode, chosen by --seed. Prints a table and
one line of JSON; exits 1 if anything is not as it must be.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import queue
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RANKS = 4
# What each call may fail with that a disk or a server can bring about.
ERRORS = {"openat": "EIO", "openat2": "ENOSPC EIO", "mkdir": "ENOSPC EIO",
          "pwritev": "ENOSPC EIO EINTR", "pwrite64": "ENOSPC EIO EINTR",
          "write": "ENOSPC EIO", "fallocate": "ENOSPC EIO EINTR",
          "ftruncate": "EIO", "fsync": "EIO ENOSPC", "fdatasync": "EIO ENOSPC",
          "sync_file_range": "EIO", "close": "EIO", "rename": "EIO ENOSPC",
          "renameat": "EIO ENOSPC", "renameat2": "EIO ENOSPC",
          "unlink": "EIO", "unlinkat": "EIO", "rmdir": "EIO", "flock": "EIO"}
FULL = (0, 25, 50, 75, 99)
FULL_KIB = 4096  # of which one page is little


class Workers:
    """Some processes of crash_worker, each doing one fault at a time."""

    def __init__(self, program, count, folder):
        self.folder = folder
        self.free = queue.Queue()
        self.numbers = iter(range(1 << 30))
        for _ in range(count):
            self.free.put(subprocess.Popen(
                [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True, bufsize=1,
                env=dict(os.environ, OMP_NUM_THREADS="1")))
        self.count = count

    def run(self, point):
        worker = self.free.get()
        try:
            folder = self.folder / f"fault{next(self.numbers)}"
            worker.stdin.write(json.dumps({"folder": str(folder), **point}) + "\n")
            line = worker.stdout.readline()
            return json.loads(line) if line else {
                "failed": "crash_worker died"}
        finally:
            self.free.put(worker)

    def all(self, points):
        with concurrent.futures.ThreadPoolExecutor(self.count) as pool:
            return list(pool.map(self.run, points))

    def close(self):
        for _ in range(self.count):
            worker = self.free.get()
            worker.stdin.close()
            worker.wait()


def reachable(calls):
    """strace counts by thread: of calls with one name and number, the first in
    time is the one that it hits."""
    seen, kept = set(), []
    for call in calls:
        if (call["call"], call["when"]) not in seen:
            seen.add((call["call"], call["when"]))
            kept.append(call)
    return kept


def kills(calls):
    for call in calls:
        changes = not call["call"].startswith("open") or call["creates"]
        if changes and call["call"] != "close":
            yield f"signal=KILL:when={call['when']}", call


def errors(calls):
    for call in calls:
        for name in ERRORS.get(call["call"], "EIO").split():
            yield f"error={name}:when={call['when']}", call


def points_of(kind, mode, listed, options):
    points = [
        {"rank": rank, "call": call["call"], "fault": fault, **mode,
         "text": call["text"]}
        for rank in range(RANKS)
        for fault, call in {"kill": kills, "error": errors}[kind](
            reachable(listed[rank]["calls"]))]
    if options.sample and len(points) > options.sample:
        points = random.Random(options.seed).sample(points, options.sample)
    return points


def list_calls(workers, mode):
    listed = workers.all([{"rank": rank, **mode} for rank in range(RANKS)])
    for result in listed:
        if "skip" in result:
            sys.exit(f"skipped: {result['skip']}")
        if result.get("problems", True):
            sys.exit(f"a save without any fault: {json.dumps(result, indent=1)}")
    return listed


def short_points(mode):
    return [{"most_bytes": most, "call": "", "text": "", "fault": f"{most} bytes",
             **mode} for most in (1, 7, 4097)]


class SmallDisk:
    """A tmpfs with room for `percent` of a save, until a file on it is gone."""

    def __init__(self, folder, percent, mode):
        self.folder, self.percent = folder, percent
        self.mode = {**mode, "kib": FULL_KIB}
        # One tensor is nearly all of a save; the rest takes some 8 pages. Two
        # saves are there already, and more have room when the file is deleted.
        self.save = (FULL_KIB << 10) + (32 << 10)

    def __enter__(self):
        self.folder.mkdir(parents=True)
        size = 6 * self.save
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none",
                        str(self.folder)], check=True)
        left = 2 * self.save + self.save * self.percent // 100
        with open(self.folder / "ballast", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size - left)
        return {"checkpoints": str(self.folder / "checkpoints"),
                "ballast": str(self.folder / "ballast"), "call": "", "text": "",
                "fault": f"{self.percent} %", **self.mode}

    def __exit__(self, *_):
        subprocess.run(["umount", str(self.folder)], check=True)
        self.folder.rmdir()


def run_full(workers, mode, options):
    if os.geteuid() != 0:
        return [], [], "no root, so nothing can be mounted"
    points, results = [], []
    for percent in FULL:
        folder = options.folder / f"disk{percent}"
        with SmallDisk(folder, percent, mode) as point:
            points.append(point)
            results.append(workers.run(point))
            if results[-1].get("outcome") != "refused":
                results[-1].setdefault("problems", []).append(
                    "there was room, so nothing was tried")
    return points, results, ""


def summary_of(points, results):
    """What one kind and mode came to. `bad` has the first few in full."""
    outcomes = collections.Counter(
        result.get("outcome", "failed") for result in results)
    told = [rank["seconds"] for result in results
            for rank in result.get("ranks", []) if rank.get("save") == "refused"]
    problems = [problem for result in results
                for problem in result.get("problems", ["it did not run"])]
    return {
        "points": len(points), **outcomes,
        "lost": sum("lost" in p or "is not there" in p for p in problems),
        "mixed": sum("another step" in p for p in problems),
        "problems": len(problems),
        "agree_s_max": round(max(told), 3) if told else None,
        "point_s_median": round(statistics.median(
            result.get("wall_s", 0) for result in results), 2) if results else None,
        "bad": [{"point": point, "result": result}
                for point, result in zip(points, results)
                if result.get("problems", ["it did not run"])][:5]}


def run_kind(kind, mode, workers, listed, options):
    if kind == "full":
        points, results, skipped = run_full(workers, mode, options)
        if skipped:
            return {"points": 0, "skipped": skipped, "bad": []}
    else:
        points = (short_points(mode) if kind == "short"
                  else points_of(kind, mode, listed, options))
        results = workers.all(points)
    return summary_of(points, results)


def table_of(rows):
    keys = ["points", "killed", "refused", "saved", "lost", "mixed", "problems",
            "agree_s_max", "point_s_median"]
    lines = ["| fault | " + " | ".join(keys) + " |", "|---" * (len(keys) + 1) + "|"]
    for name, row in rows.items():
        cells = [str(row.get(key, 0)) for key in keys]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def read_options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kinds", default="kill,error,short,full")
    parser.add_argument("--modes", default="sync,async")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kib", type=int, default=256,
                        help="size of the largest tensor")
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--worker", default=ROOT / "build/bin/crash_worker")
    options = parser.parse_args()
    options.kinds, options.modes = options.kinds.split(","), options.modes.split(",")
    return options


def main():
    options = read_options()
    own = options.folder is None
    options.folder = pathlib.Path(
        options.folder or tempfile.mkdtemp(prefix="weft_crash_")).resolve()
    workers = Workers(options.worker, options.jobs, options.folder)
    rows = {}
    for name in options.modes:
        mode = {"async": name == "async", "kib": options.kib}
        needed = {"kill", "error"} & set(options.kinds)
        listed = list_calls(workers, mode) if needed else []
        for kind in options.kinds:
            row = rows[f"{kind} {name}"] = run_kind(
                kind, mode, workers, listed, options)
            for bad in row.pop("bad"):
                print(json.dumps(bad, indent=1), file=sys.stderr)
            print(f"{kind} {name}: {row}", file=sys.stderr)
    workers.close()
    if own:
        shutil.rmtree(options.folder, ignore_errors=True)
    print(table_of(rows))
    totals = {key: sum(row.get(key, 0) for row in rows.values())
              for key in ("points", "lost", "mixed", "problems")}
    print(json.dumps({**totals, "rows": rows}))
    sys.exit(1 if totals["problems"] else 0)


if __name__ == "__main__":
    main()

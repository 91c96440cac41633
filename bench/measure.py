"""What the measuring scripts share: the machine, runs in turn, medians, tables.

Run everything from the repository's root. With WEFT_BENCH_LOCK=FILE the file is
locked while a pair runs, so that whoever builds on the machine can keep away
(`flock FILE make`). WEFT_BENCH_BIN=FOLDER takes the programs from there.
"""

import fcntl
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time

BIN = os.path.abspath(os.environ.get("WEFT_BENCH_BIN", "build/bin"))
WEFT, WEFTRUN = (os.path.join(BIN, name) for name in ("weft", "weftrun"))
# By the flag that the kernel knows them by, the widest first.
VECTORS = {"avx512_bf16": "AVX-512 and bfloat16 products", "avx512f": "AVX-512",
           "avx2": "AVX2", "asimd": "NEON"}


def processor():
    """Its model and its widest vectors."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*: (.*)", text, re.MULTILINE)
    known = flags[1].split() if flags else []
    vectors = next((name for flag, name in VECTORS.items() if flag in known),
                   "no vectors known")
    return f"{model[1] if model else platform.machine()} with {vectors}"


def weftrun(ranks, *arguments):
    return [WEFTRUN, f"--nproc-per-node={ranks}", "--", WEFT,
            *map(str, arguments)]


def torchrun(ranks, *arguments):
    program = os.path.join(os.path.dirname(sys.executable), "torchrun")
    return [program, f"--nproc-per-node={ranks}", *map(str, arguments)]


def cpu_seconds():
    """Of all processes but niced ones, which give way, and of those that this
    one has waited for."""
    with open("/proc/stat") as file:
        user, _, system = map(int, file.readline().split()[1:4])
    times = os.times()
    return ((user + system) / os.sysconf("SC_CLK_TCK"),
            times.children_user + times.children_system)


def run(command):
    """The line of JSON that `command` prints. PEER_T0 is when it was started;
    `others` is the share of the machine that other processes took meanwhile."""
    environment = dict(os.environ, PEER_T0=repr(time.time()), OMP_NUM_THREADS="1")
    start, (all_before, own_before) = time.time(), cpu_seconds()
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True)
    wall, (all_after, own_after) = time.time() - start, cpu_seconds()
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    if not lines:
        sys.exit(f"{' '.join(command)} failed:\n{result.stderr[-3000:]}")
    if result.returncode != 0:  # PyTorch's gloo sometimes aborts at the very end
        print(f"exit code {result.returncode} after the result of {command[0]}",
              file=sys.stderr)
    others = (all_after - all_before) - (own_after - own_before)
    return {**json.loads(lines[-1]),
            "others": round(max(0, others) / wall / os.cpu_count(), 3)}


class QuietMachine:
    """Holds the lock, if there is one to hold, from one measurement to the next
    until it has held it for long enough."""

    LONG_S = 70

    def __init__(self):
        self.file, self.since = None, 0

    def __enter__(self):
        path = os.environ.get("WEFT_BENCH_LOCK")
        if path and not self.file:
            self.file = open(path, "w")
            fcntl.flock(self.file, fcntl.LOCK_EX)
            self.since = time.time()

    def __exit__(self, *_):
        if self.file and time.time() - self.since > self.LONG_S:
            self.file.close()
            self.file = None
            time.sleep(1)  # those who wait come first


quiet_machine = QuietMachine()


def in_turn(commands, pairs, before=lambda: None):
    """Runs every command `pairs` times, one after the other, the order changing
    from pair to pair. Returns the results of each under its name."""
    results = {name: [] for name in commands}
    for pair in range(pairs):
        names = list(commands)
        with quiet_machine:
            for name in names if pair % 2 == 0 else reversed(names):
                before()
                results[name].append(run(commands[name]))
                print(f"{pair + 1}/{pairs} {name}: {results[name][-1]}",
                      file=sys.stderr)
    return results


def median(results, key):
    return statistics.median(result[key] for result in results)


def spread(values, digits=2):
    """'median (least to most)'."""
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def ratios(dividends, divisors, key):
    """Of each pair, whose runs are neighbours in time."""
    return [a[key] / b[key] for a, b in zip(dividends, divisors)]


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(
        lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])

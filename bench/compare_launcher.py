"""What torchrun and weftrun do when something breaks, beside each other.

    .venv-peer/bin/python bench/compare_launcher.py [--pairs 3] [--only NAME,..]
        [--out docs/launcher.md]

Each failure happens under both in turn, with the same worker
(bench/peer/failing_worker.py). The table goes to the file, between its markers,
or to the output.
"""

import argparse
import dataclasses
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from measure import WEFTRUN, quiet_machine, table

WORKER = os.path.abspath("bench/peer/failing_worker.py")
TORCHRUN = os.path.join(os.path.dirname(sys.executable), "torchrun")
RANKS = 4
LIMIT_S = 120
MARK = "WEFT_COMPARE_LAUNCHER"


@dataclasses.dataclass
class Case:
    name: str
    title: str
    # What a line has to say to be of use.
    useful: str
    # The worker's way to fail, if it is one that fails.
    way: str = ""
    # Else the command, and flags for the launcher.
    program: tuple = ()
    flags: tuple = ()
    # Sent to the launcher once all workers run.
    signal: int = 0
    holds_port: bool = False


CASES = [
    Case("missing", "the program is not there", r"no_such_program",
         program=("./no_such_program",)),
    Case("mode", "the program is not executable", r"not_executable",
         program=("./not_executable",)),
    Case("flag", "a flag is misspelt", r"nproc-per-nodes\b",
         flags=("--nproc-per-nodes=4",), way="wait"),
    Case("port", "the port is in use", r"(?i)in use|\b{port}\b",
         flags=("--master-port={port}",), way="raise", holds_port=True),
    Case("exit", "a worker exits with code 3",
         r"(?i)exit ?code\W+3\b|code 3\b|status 3\b", way="exit"),
    Case("segv", "a worker dies of SIGSEGV", r"(?i)SIGSEGV|segmentation",
         way="segv"),
    Case("kill", "a worker is killed (SIGKILL)", r"SIGKILL", way="kill"),
    Case("raise", "one rank fails, the others are in a collective",
         r"sample 17 of shard 3 is damaged", way="raise"),
    Case("term", "SIGTERM to the launcher", r"SIGTERM|Signals\.SIGTERM|\b15\b",
         way="wait", signal=signal.SIGTERM),
    Case("kill_launcher", "kill -9 of the launcher", r"(?!)",
         way="wait", signal=signal.SIGKILL),
    Case("rendezvous", "the rendezvous cannot be reached", r"127\.0\.0\.1\W+{port}",
         flags=("--nnodes=2", "--node-rank=1", "--rdzv-backend=c10d",
                "--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=compare",
                "--rdzv-conf=is_host=0,join_timeout=10,read_timeout=10"),
         way="wait"),
]


def command(launcher, case, event, port):
    words = [TORCHRUN, "--no-python"] if launcher == "torchrun" else [WEFTRUN]
    words.append(f"--nproc-per-node={RANKS}")
    words += [flag.format(port=port) for flag in case.flags]
    if launcher == "weftrun":
        words += ["--token-file=token", "--"]
    return words + list(case.program or
                        (sys.executable, WORKER, case.way, event))


def processes(mark):
    """The processes that have `mark` in their environment."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                marked = f"{MARK}={mark}".encode() in file.read().split(b"\0")
            with open(f"/proc/{name}/stat") as file:
                alive = file.read().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            continue
        if marked and alive:
            found.append(int(name))
    return found


def wait_until(condition, limit):
    end = time.time() + limit
    while not condition() and time.time() < end:
        time.sleep(0.02)
    return condition()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def holder(folder):
    """A listener of another process, as another job's would be."""
    script = ("import socket, sys, time\n"
              "s = socket.socket()\ns.bind(('0.0.0.0', 0))\ns.listen()\n"
              "print(s.getsockname()[1], flush=True)\ntime.sleep(600)\n")
    process = subprocess.Popen([sys.executable, "-c", script], cwd=folder,
                               stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


def clean_environment(mark):
    prefixes = ("PET_", "TORCH", "WEFT_", "SLURM_", "OMPI_", "PMI", "MASTER_")
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(prefixes)}
    return {**kept, MARK: mark, "OMP_NUM_THREADS": "1"}


def measure(launcher, case):
    with tempfile.TemporaryDirectory(prefix="weft_compare_") as folder:
        with open(os.path.join(folder, "not_executable"), "w") as file:
            file.write("#!/bin/sh\n")
        token = os.open(os.path.join(folder, "token"),
                        os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(token, b"0123456789abcdef" * 4)
        os.close(token)
        busy, port = (
            holder(folder) if case.holds_port else (None, free_port()))
        mark = os.path.basename(folder)
        try:
            return observe(launcher, case, folder, mark, port)
        finally:
            for pid in processes(mark):
                os.kill(pid, signal.SIGKILL)
            if busy:
                busy.kill()
                busy.wait()


def observe(launcher, case, folder, mark, port):
    event, said = (os.path.join(folder, name) for name in ("event", "said"))
    since = time.time()
    with open(said, "w") as output:
        process = subprocess.Popen(
            command(launcher, case, event, port), cwd=folder, stdout=output,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=clean_environment(mark), start_new_session=True)
    if case.signal:
        ready = [f"{event}.ready{rank}" for rank in range(RANKS)]
        if not wait_until(lambda: all(map(os.path.exists, ready)), LIMIT_S):
            sys.exit(f"{launcher}, {case.name}: the workers do not start")
        since = time.time()
        process.send_signal(case.signal)
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        code = None
    seconds = time.time() - since
    if os.path.exists(event):
        with open(event) as file:
            seconds -= float(file.read()) - since
    left = []
    if code is not None:
        wait_until(lambda: not processes(mark), 3)
        left = processes(mark)
    if case.signal == signal.SIGKILL:  # it is over when the workers are
        seconds = time.time() - since
    with open(said, errors="replace") as file:
        lines = [line.rstrip() for line in file if line.strip()]
    return {"code": code, "seconds": seconds, "left": len(left),
            "lines": len(lines), "folder": folder,
            **first_useful(lines, case.useful.format(port=port), port)}


def first_useful(lines, pattern, port):
    for number, line in enumerate(lines, 1):
        if re.search(pattern, line):
            return {"useful": line.strip().replace(str(port), "PORT"),
                    "place": number}
    return {"useful": "", "place": 0}


def cell(line, most=220):
    """Without time, process number and machine, and safe in a table."""
    line = re.sub(r"^\[?[WEI]\d{4} [\d:.]+ \d+ ", "", line)
    line = re.sub(r"\S*/(\w+\.py|torchrun|weftrun|python[\d.]*)\b", r"\1", line)
    line = re.sub(r"/tmp/weft_compare_\w+", ".", line)
    line = line if len(line) <= most else line[:most] + " ..."
    return "`" + line.replace("|", "\\|").replace("`", "'") + "`"


def exit_code(code):
    if code is None:
        return f"none in {LIMIT_S} s"
    return str(code if code >= 0 else 128 - code)


def common(values):
    return max(set(values), key=values.count)


def row(title, launcher, runs):
    first = runs[0]
    useful = "none"
    if first["useful"]:
        useful = cell(first["useful"])
    elif first["code"] is not None and first["code"] == -signal.SIGKILL:
        useful = "(it is dead)"
    seconds = statistics.median(run["seconds"] for run in runs)
    left = max(run["left"] for run in runs)
    place = f"{first['place']} of {first['lines']}" if first["lines"] else ""
    return [title, launcher, useful, place,
            common([exit_code(run["code"]) for run in runs]),
            "" if left else f"{seconds:.2f}" if seconds < 1 else f"{seconds:.1f}",
            str(left)]


def compare(cases, pairs):
    rows = []
    for case in cases:
        results = {"torchrun": [], "weftrun": []}
        for pair in range(pairs):
            with quiet_machine:
                for name in sorted(results, reverse=pair % 2 == 1):
                    results[name].append(measure(name, case))
                    print(case.name, name, results[name][-1], file=sys.stderr)
        for name, title in (("torchrun", case.title), ("weftrun", "")):
            rows.append(row(title, name, results[name]))
    return table(["failure", "", "first line that says it", "line",
                  "exit code", "seconds", "processes left"], rows)


def write_between(path, text):
    begin, end = "<!-- failures -->", "<!-- end of failures -->"
    with open(path) as file:
        before, rest = file.read().split(begin)
    with open(path, "w") as file:
        file.write(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--out")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    cases = [case for case in CASES if not only or case.name in only]
    if len(cases) < len(only):
        parser.error("--only: " + ", ".join(case.name for case in CASES))
    text = compare(cases, options.pairs)
    if options.out:
        write_between(options.out, text)
    else:
        print(text)


if __name__ == "__main__":
    main()

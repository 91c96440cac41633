#!/usr/bin/env python3
"""What is done to weftrun on purpose, and what must come of it.

bench/launcher_faults.py [--sample] [--seed 1] [--only killed,ports,...]
                         [--bin build/bin]

  killed    weftrun dies of SIGKILL at random moments: 2 s later nothing of what
            it started is left, and the next start works;
  ports     200 starts, ten at once, share no port; a busy one is refused with
            the process that has it;
  epochs    what is left of an earlier start reaches no store; a second host 0
            is refused; the death of host 0 ends the others;
  memory    a rank that is killed for its memory, or refused some, is named so;
  restarts  a program that fails at each start: attempts, time, the first error;
  strangers who do not know the token knock at the gate of a run over two hosts;
  training  the same while two hosts train, and, since strangers and ranks share
            this machine's cores, as many of them at another program's port.

--sample does a little of each, for ctest. Prints a row for each fault and one
line of JSON; exits 1 if anything is not as it must be.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import unauthenticated_peers
from rendezvous_peer import Host, Peer, epoch_key

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORKER = [sys.executable, str(ROOT / "bench/launcher_worker.py")]
TOKEN, JOB = "0123456789abcdef" * 4, "faults"
# Every worker has it, and all that it starts.
MARK = "WEFT_FAULTS_MARK"


class Bench:
    """What the faults share: programs, a folder, dice and the size."""

    def __init__(self, arguments, folder):
        self.weftrun = str(arguments.bin / "weftrun")
        self.weft = str(arguments.bin / "weft")
        self.sample = arguments.sample
        self.dice = random.Random(arguments.seed)
        self.folder = folder
        self.token = folder / "token"
        self.token.write_text(TOKEN + "\n")
        self.token.chmod(0o600)
        self.started = []

    def start(self, *words, mark="", **options):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("PET_", "WEFT_", "TORCH"))}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
                   "cwd": self.folder, **options}
        process = subprocess.Popen(
            [self.weftrun, *map(str, words)], text=True,
            env={**environment, MARK: mark}, **options)
        self.started.append(process)
        return process

    def run(self, *words, **options):
        """(exit code, output, errors)"""
        process = self.start(*words, **options)
        output, errors = process.communicate(timeout=120)
        return process.returncode, output, errors

    def host(self, node, port, *words, **options):
        return self.start(
            "--nnodes", 2, "--node-rank", node, "--rdzv-id", JOB,
            "--rdzv-endpoint", f"127.0.0.1:{port}", "--token-file", self.token,
            *words, **options)

    def end(self):
        for process in self.started:
            process.kill()
            process.communicate()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(done, seconds=30):
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError("this did not come to pass in time")
        time.sleep(0.01)


def last_line(text):
    lines = [line for line in text.splitlines() if line.startswith("ERROR")]
    return lines[-1] if lines else text[-300:]


def write_text(folder):
    text = folder / "text.txt"
    text.write_text("".join(chr(97 + i * i % 23) for i in range(1 << 16)))
    return text


def marked(mark):
    """The processes of a mark that run."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and wanted in (
                    entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


class Killed:
    """weftrun is killed at random moments."""

    GRANDCHILDREN = "sleep 971 & (sleep 972 & sleep 973) & wait"

    def __init__(self, bench):
        self.bench = bench
        self.orphans = self.starts = 0
        self.marks = []

    def kill(self, words, longest):
        mark = f"{os.getpid()}.{self.bench.dice.random()}"
        process = self.bench.start(*words, mark=mark, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        time.sleep(self.bench.dice.uniform(0, longest))
        alive = process.poll() is None
        process.kill()
        process.wait()
        self.marks.append(mark)
        return alive

    def count_orphans(self):
        time.sleep(2)
        for process in (pid for mark in self.marks for pid in marked(mark)):
            self.orphans += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.marks = []

    def shell(self, kills):
        words = "--nproc-per-node", 4, "--", "sh", "-c", self.GRANDCHILDREN
        for _ in range(kills):
            self.kill(words, 0.15)
        if not self.bench.sample:
            self.count_orphans()  # else with those of train()
        code, output, _ = self.bench.run("--nproc-per-node", 4, "--", "sh", "-c",
                                         "echo well")
        return code == 0 and output.count("well") == 4

    def train(self, kills):
        text = write_text(self.bench.folder)
        words = ["--nproc-per-node", 4, "--", self.bench.weft, "train",
                 ROOT / "recipes/quickstart.yaml", "output_dir=run",
                 "train.steps=1000000", "checkpoint.every=20", "eval.every=1000000",
                 f"data.paths=[{text}]", "model.dim=32", "model.ffn_dim=64",
                 "model.layers=1", "data.sequence_length=16",
                 "train.global_batch_size=8", "train.log_every=1"]
        every, worked = 10, True
        for number in range(kills):
            worked = self.kill(words, 2 if self.bench.sample else 4) and worked
            self.count_orphans()
            if number % every == every - 1 or number == kills - 1:
                worked = self.next_start(words) and worked
        return worked

    def next_start(self, words):
        process = self.bench.start(*words, stderr=subprocess.STDOUT)
        steps = 0
        for line in process.stdout:
            steps += line.startswith("step ")
            if steps == 3:
                process.terminate()
        self.starts += 1
        return process.wait() == 143 and steps >= 3


def killed(bench):
    fault = Killed(bench)
    kills = (6, 1) if bench.sample else (50, 50)
    good = fault.shell(kills[0])
    good = fault.train(kills[1]) and good
    yield row(
        f"SIGKILL to weftrun, {kills[0]} times with four shell ranks that have "
        f"started others, {kills[1]} times with `weft train` on four",
        "after 2 s no process is left; the next start works",
        f"{fault.orphans} processes left; "
        f"{fault.starts} starts looked at went on training",
        good and fault.orphans == 0)


def ports(bench):
    rounds, collisions, refused = (3 if bench.sample else 20), 0, 0
    go = bench.folder / "go"
    script = f"echo $MASTER_PORT; while [ ! -e {go} ]; do sleep 0.05; done"
    for _ in range(rounds):
        runs = [bench.start("--nproc-per-node", 1, "--", "sh", "-c", script)
                for _ in range(10)]
        found = [run.stdout.readline().strip() for run in runs]
        collisions += len(found) - len(set(found))
        go.touch()
        refused += sum(run.wait() != 0 for run in runs)
        go.unlink()
    yield row(f"{10 * rounds} starts, ten at once", "no two share a port",
              f"{collisions} collisions, {refused} failed starts",
              collisions == refused == 0)
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        code, _, errors = bench.run("--master-port", busy.getsockname()[1],
                                    "--", "true")
    owner = f"in use by process {os.getpid()}"
    yield row("--master-port that another process has",
              "refused, exit 2, with that process",
              f"exit {code}, \"{owner}\"" if owner in errors else errors,
              code == 2 and owner in errors)


class TwoStarts:
    """A run over two hosts, of which this script is the second."""

    def __init__(self, bench):
        self.port = free_port()
        self.folder = bench.folder / "epochs"
        self.folder.mkdir()
        command = [*WORKER, str(self.folder)]
        version = bench.run("--version")[1].split()[-1]
        self.first = bench.host(0, self.port, "--max-restarts", 1, "--", *command)
        wait_until(self.is_listening)
        self.second = Host(self.port, TOKEN, JOB, command, version)

    def is_listening(self):
        with contextlib.suppress(OSError):
            Peer(self.port).close()
            return True
        return False

    def start(self):
        message = self.second.hear("start")
        random_part = bytes.fromhex(message["random"])
        epoch = message["epoch"]
        return epoch, epoch_key(TOKEN, JOB, epoch, random_part)

    def restart(self):
        self.second.say({"type": "end", "code": 1, "signal": 0, "age_ms": 0,
                         "line": "ERROR 1 rank=1 op=launch exited"})
        self.second.hear("verdict")
        self.second.say({"type": "ready"})

    def stream(self, epoch, key):
        peer = Peer(self.port)
        entered = peer.enter(key, JOB, role=b"s", epoch=epoch)
        if entered:
            peer.send(b"rank 1 is here  ")
        return entered, peer

    def callers(self):
        log = self.folder / "store.log"
        return log.read_text().count("connection") if log.exists() else 0


def epochs(bench):
    run = TwoStarts(bench)
    old = run.start()
    entered, former = run.stream(*old)
    wait_until(lambda: run.callers() == 1)
    run.restart()
    new = run.start()
    cut = former.closed_after() is not None
    stale = [run.stream(*old)[0], run.stream(new[0], old[1])[0],
             run.stream(old[0], new[1])[0]]
    time.sleep(0.3)
    accepted = run.callers() - 1
    welcome = run.stream(*new)[0]
    wait_until(lambda: run.callers() == accepted + 2)
    yield row("After a restart, streams with the right token and the key, the "
              "number or both of the start before; one that was open then",
              "refused; cut off; a stream of this start is let in",
              f"{accepted} of {len(stale)} reached the store",
              entered and cut and welcome and accepted == sum(stale) == 0)
    code, _, errors = (lambda twin: (twin.wait(), *twin.communicate()))(
        bench.host(0, run.port, "--", "true"))
    owner = f"in use by process {run.first.pid}"
    yield row("A second host 0 with the same --rdzv-id and endpoint",
              "refused, exit 2, with the first one's process",
              f"exit {code}, \"{owner}\"" if owner in errors else errors,
              code == 2 and owner in errors)
    run.first.kill()
    yield death_of_host0(bench)


def death_of_host0(bench):
    port = free_port()
    words = "--", "sh", "-c", "echo ready; exec sleep 1000"
    first, second = (bench.host(node, port, *words) for node in (0, 1))
    second.stdout.readline()
    began = time.monotonic()
    first.kill()
    code = second.wait(60)
    seconds = time.monotonic() - began
    line = last_line(second.communicate()[1])
    return row("SIGKILL to host 0", "the other host ends with 150, naming it",
               f"exit {code} after {seconds:.1f} s: {line}",
               code == 150 and seconds < 10 and "host 0 at" in line)


class MemoryGroup:
    """A memory cgroup of 64 MiB; None where there can be none."""

    V1, V2 = (pathlib.Path("/sys/fs/cgroup") / name for name in ("memory", ""))

    def __enter__(self):
        is_v1 = (self.V1 / "memory.limit_in_bytes").exists()
        self.path = (self.V1 if is_v1 else self.V2) / f"weft-faults-{os.getpid()}"
        limit = "memory.limit_in_bytes" if is_v1 else "memory.max"
        swap, no_swap = (("memory.memsw.limit_in_bytes", str(64 << 20)) if is_v1
                         else ("memory.swap.max", "0"))
        try:
            self.path.mkdir()
            (self.path / limit).write_text(str(64 << 20))
        except OSError:
            self.__exit__()
            return None
        with contextlib.suppress(OSError):
            (self.path / swap).write_text(no_swap)
        return self.path

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.path.rmdir()


def memory(bench):
    eat = f"exec '{sys.executable}' -c 'b\"x\" * (400 << 20)'"
    with MemoryGroup() as group:
        if group is None:
            yield row("A memory cgroup of 64 MiB around one rank", "", "not "
                      "permitted here", True)
        else:
            code, _, errors = bench.run(
                "--nproc-per-node", 4, "--", "sh", "-c",
                f"[ $RANK != 2 ] && exec sleep 100; "
                f"echo $$ > {group}/cgroup.procs; {eat}")
            line = last_line(errors)
            yield row("A memory cgroup of 64 MiB around one of four ranks",
                      "named out of memory with the limit, 137", line,
                      code == 137 and line.startswith("ERROR 137 rank=2")
                      and "out of memory" in errors and "64 MiB" in errors)
    text = write_text(bench.folder)
    code, _, errors = bench.run(
        "--nproc-per-node", 4, "--", "sh", "-c",
        "[ $RANK != 2 ] && exec sleep 100; ulimit -c 0; ulimit -v 3000000; "
        "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 "
        f"exec '{bench.weft}' train "
        f"'{ROOT}/recipes/quickstart.yaml' data.paths=[{text}] output_dir=large "
        "mesh.dp=1 mesh.tp=1 model.dim=8192 model.ffn_dim=32768")
    line = last_line(errors)
    yield row("ulimit -v on one of four ranks", "named out of memory, 137", line,
              # Its own line, where it could still write one, has the rank that
              # it was told.
              code == 137 and line.startswith("ERROR 137 rank=") and
              re.search(r"rank 2 .*out of memory.*<- first cause", errors))


def restarts(bench):
    most = 1 if bench.sample else 3
    began = time.monotonic()
    code, output, errors = bench.run(
        "--nproc-per-node", 2, "--max-restarts", most, "--", "sh", "-c",
        "[ $RANK = 0 ] || exec sleep 100; echo attempt; ulimit -c 0; "
        "[ $TORCHELASTIC_RESTART_COUNT != 0 ] || kill -ABRT $$; exit 1")
    seconds = time.monotonic() - began
    attempts, pauses = output.count("attempt"), 2 ** most - 1
    yield row(f"A program that fails at each start, --max-restarts {most}",
              f"{most + 1} attempts with {pauses} s between; the first error",
              f"{attempts} attempts in {seconds:.1f} s, {last_line(errors)}",
              code == 134 and attempts == most + 1 and
              pauses < seconds < pauses + 3)


def strangers(bench):
    port, folder = free_port(), bench.folder / "strangers"
    folder.mkdir()
    words = "--", *WORKER, str(folder)
    first, second = (bench.host(node, port, *words) for node in (0, 1))
    steps = unauthenticated_peers.Steps(folder)
    wait_until(steps.have_begun)
    found = unauthenticated_peers.visit(port, first.pid, steps, TOKEN, JOB,
                                 0.2 if bench.sample else 5, bench.dice)
    (folder / "end").touch()
    errors = [host.communicate(timeout=60)[1] for host in (first, second)]
    codes = first.returncode, second.returncode
    lines = len(errors[0].splitlines())
    unknown = (folder / "store.log").read_text().count("stranger")
    for name, seen, good in found:
        yield row(name, "refused within 2 s, the ranks step on", seen, good)
    yield row(
        "All of them",
        "nobody without the token at the store; both hosts end with 0",
        f"{unknown} strangers at the store, exits {codes}; {lines} lines of host "
        f"0 about them; {steps.summary()}",
        unknown == 0 and codes == (0, 0) and steps.good())


RECIPE = """name: strangers
mesh: {dp: 2, tp: 1}
model: {dim: 64, layers: 2, heads: 4, ffn_dim: 128}
data: {paths: [corpus.txt], sequence_length: 64}
train: {steps: 1000000, global_batch_size: 8, log_every: 1}
eval: {batches: 0}
checkpoint: {every: 0}
"""
# Hangs up on whoever comes, without a word but the gate's first.
LISTENER = """import socket
door = socket.create_server(("127.0.0.1", 0), backlog=1000)
print(door.getsockname()[1], flush=True)
while True:
    guest, _ = door.accept()
    guest.sendall(bytes(40))
    guest.close()
"""


class StepTimes:
    """Milliseconds of the steps of `weft train`."""

    def __init__(self, path):
        self.path = path

    def count(self):
        return self.path.read_text().count("\n") if self.path.exists() else 0

    def median_of(self, act):
        """While `act` goes on, and until a whole step is among them."""
        first = self.count()
        act()
        wait_until(lambda: self.count() > first + 1)
        lines = self.path.read_text().splitlines()[first + 1:self.count()]
        return statistics.median(json.loads(line)["step_ms"] for line in lines)


def training(bench):
    folder = bench.folder / "training"
    folder.mkdir()
    (folder / "corpus.txt").write_text("to be trained on, again\n" * 5000)
    (folder / "recipe.yaml").write_text(RECIPE)
    port, seconds = free_port(), 0.5 if bench.sample else 5
    # Each host believes all cores to be its own.
    hosts = [bench.host(node, port, "--", "env", "OMP_NUM_THREADS=1", bench.weft,
                        "train",
                        str(folder / "recipe.yaml"),
                        f"data.paths=[{folder}/corpus.txt]",
                        f"output_dir={folder}/out", stdout=subprocess.DEVNULL)
             for node in (0, 1)]
    steps = StepTimes(folder / "out/metrics.jsonl")
    wait_until(lambda: steps.count() > 20)
    other = subprocess.Popen([sys.executable, "-c", LISTENER], text=True,
                             stdout=subprocess.PIPE)
    bench.started.append(other)
    elsewhere = int(other.stdout.readline())
    quiet = steps.median_of(lambda: time.sleep(seconds))
    seen = {}
    for kind in ("wrong_token", "replay", "garbage", "huge_length"):
        at_gate, at_other = (
            steps.median_of(lambda: getattr(
                unauthenticated_peers.Crowd(there, TOKEN, JOB, bench.dice), kind)(seconds))
            for there in (port, elsewhere))
        seen[kind] = at_gate, at_other
    hosts[0].terminate()
    codes = [host.communicate(timeout=60) and host.returncode for host in hosts]
    texts = [f"{unauthenticated_peers.NAMES[kind]} {at_gate:.1f} ms ({at_other:.1f})"
             for kind, (at_gate, at_other) in seen.items()]
    yield row("Strangers while two hosts train",
              "training goes on, and ends in order when it is told to",
              f"a step takes {quiet:.1f} ms; with strangers at the gate (at "
              f"another port): {', '.join(texts)}; exits {codes}",
              codes == [143, 143])


def row(fault, must, seen, good):
    print(f"| {fault} | {must} | {seen} |" + ("" if good else "  <- WRONG"),
          flush=True)
    return {"fault": fault, "must": must, "seen": seen, "ok": bool(good)}


FAULTS = {fault.__name__: fault for fault in
          (killed, ports, epochs, memory, restarts, strangers, training)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(FAULTS))
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    arguments = parser.parse_args()
    arguments.bin = arguments.bin.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments, pathlib.Path(folder))
        try:
            for name in arguments.only.split(","):
                rows.extend(FAULTS[name](bench))
        finally:
            bench.end()
    print(json.dumps({"seed": arguments.seed, "rows": rows}))
    return 0 if all(entry["ok"] for entry in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Networks that go away, and addresses that accept and say nothing (F24)."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import time

from fault_runs import ROOT, Run, row

sys.path.append(str(ROOT / "tests/integration"))
import two_hosts  # noqa: E402

PATIENCE = 4  # s: what every one of these is told to wait at most
ENDING = 5  # s in which weftrun lets workers end


@contextlib.contextmanager
def silent_listener():
    """A port at which all are welcome and nobody is answered."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        door.listen(64)
        guests = []

        def welcome():
            with contextlib.suppress(OSError):
                while True:
                    guests.append(door.accept()[0])

        threading.Thread(target=welcome, daemon=True).start()
        yield door.getsockname()[1]
        for guest in guests:
            guest.close()


def stalls(suite):
    """Seconds and last lines of programs that meet nobody but a stranger."""
    token = suite.folder / "token"
    token.write_text(64 * "a")
    token.chmod(0o600)
    programs = suite.programs
    train = [programs.weft, "train", "faults.yaml", f"comm.timeout_s={PATIENCE}",
             "mesh.dp=2", "mesh.tp=1", "output_dir=nobody"]
    rank = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    with silent_listener() as port:
        yield "a rank, MASTER_PORT silent", 150, Run(
            train, suite.folder, MASTER_PORT=str(port), **rank)
        yield "a weftrun, host 0 silent", 150, Run(
            [programs.weftrun, "--nnodes", 2, "--node-rank", 1, "--rdzv-endpoint",
             f"127.0.0.1:{port}", "--token-file", token, "--rdzv-conf",
             f"join_timeout={PATIENCE}", "--", "true"], suite.folder)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        free = str(taken.getsockname()[1])
    yield "a rank, nobody at MASTER_PORT", 150, Run(
        train, suite.folder, MASTER_PORT=free, **rank)
    yield "a rank 0 that stays alone", 150, Run(
        train, suite.folder, MASTER_PORT=free,
        **{**rank, "RANK": "0", "LOCAL_RANK": "0"})


def lose_all(network, word):
    """What one host sends goes to a neighbour that is not there: lost, and
    nobody hears of it."""
    for name, other in zip(network.names, reversed(network.addresses)):
        two_hosts.ip("-n", name, "neigh", word, other, "lladdr",
                     "02:00:00:00:00:01", "dev", "weft", "nud", "permanent")


def cut(hosts, way):
    """Two hosts train, until nothing gets from one to the other."""
    network = hosts.network
    both = [hosts.launch(host, f"cut_{way}", "train.steps=1000000",
                         f"comm.timeout_s={PATIENCE}") for host in (0, 1)]
    for line in both[0].stdout:
        if line.startswith("step 3/"):
            break
    if way == "down":
        network.cut(1)
    else:
        lose_all(network, "replace")
    began = time.monotonic()
    texts = [process.communicate(timeout=120)[1] for process in both]
    lines = [([""] + [line for line in text.splitlines()
                      if line.startswith("ERROR")])[-1] for text in texts]
    if way != "down":
        lose_all(network, "del")
    else:
        two_hosts.ip("-n", network.names[1], "link", "set", "weft", "up")
    return {"seconds": time.monotonic() - began, "lines": lines,
            "codes": [process.returncode for process in both]}


def partition(suite):
    """F24"""
    waits = []
    for what, code, run in stalls(suite):
        run.end(60)
        waits.append({"what": what, "line": run.last_error(),
                      "seconds": run.ended_at - run.began,
                      "ok": run.process.returncode == code})
    longest = max(wait["seconds"] for wait in waits)
    good = all(wait["ok"] for wait in waits) and longest < PATIENCE + 3
    yield {**row(
        "whoever is met says nothing, or nobody is there",
        f"{'; '.join(wait['what'] for wait in waits)}; comm.timeout_s or "
        f"join_timeout {PATIENCE}",
        "150, in the time that was configured",
        "; ".join(f"{wait['seconds']:.1f} s" for wait in waits), good),
        "figures": waits}
    if not good:
        print(*waits, sep="\n", file=sys.stderr)
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return
    yield loopback_down(suite)
    for way, said in (("down", "ip link set down"),
                      ("lost", "each packet lost in silence, both ways")):
        yield from partitions_of_hosts(suite, way, said)


def loopback_down(suite):
    """One host whose loopback goes: ranks there share memory."""
    programs, enter = suite.programs, ["nsenter", "-U", "-n", "-t"]
    run = Run(
        ["unshare", "-rn", "sh", "-c", 'ip link set lo up; exec "$@"', "sh",
         *programs.launched(4, programs.weft, "train", "faults.yaml",
                            "mesh.dp=2", "mesh.tp=2", "output_dir=alone",
                            f"comm.timeout_s={PATIENCE}")], suite.folder)
    run.await_line("^step 9/")
    inside = [*enter, str(run.process.pid), "ip", "link"]
    subprocess.run([*inside, "set", "lo", "down"], check=True)
    is_down = "state DOWN" in subprocess.run(
        [*inside, "show", "lo"], check=True, capture_output=True,
        text=True).stdout
    code = run.end(60)
    problems = [] if code == 0 else [f"exit {code}: {run.last_error()}"]
    problems = problems or programs.differences((2, 2), "alone")
    return row(
        "the loopback of one host",
        "unshare -rn, ip link set lo down at step 9 of a run on 2x2",
        "exit 150 in time, or, as its ranks share memory, an end as it must be",
        ", ".join(problems) or "exit 0, bit for bit as undisturbed",
        is_down and not problems)


def partitions_of_hosts(suite, way, said):
    found = []
    with two_hosts.Network() as network:
        folder = pathlib.Path(suite.folder) / f"hosts_{way}"
        folder.mkdir()
        hosts = two_hosts.Hosts(network, suite.programs.bin, folder)
        try:
            found = [cut(hosts, way) for _ in range(suite.runs)]
        finally:
            hosts.end()
    right = [hit for hit in found if hit["codes"] == [150, 150]
             and "node rank 1, ranks 2 to 3 was lost" in hit["lines"][0]
             and "host 0 at 10.77.0.1" in hit["lines"][1]]
    longest = max(hit["seconds"] for hit in found)
    if len(right) < len(found):
        print(*found, sep="\n", file=sys.stderr)
    yield {**row(
        "a cable between two hosts",
        f"{said}, {len(found)} times, in the middle of a run on 2x2; keep-alive "
        f"1 s x 3, comm.timeout_s {PATIENCE}",
        f"both end with 150 and name each other, {PATIENCE} s and {ENDING} s in "
        "which workers may end",
        f"{len(right)} of {len(found)}, at most {longest:.1f} s",
        len(right) == len(found) and longest < PATIENCE + ENDING + 2),
        "figures": found}

#!/usr/bin/env python3
"""`weft train` on two hosts: network namespaces of this one.

two_hosts.py --bin build/bin

The losses are those of one host; another token is refused; when a host is cut
off, both end with 150 and the name of the one that is lost. As root, with
`ip netns`; exits 77 where that may not be.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PORT = 29400


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Network:
    """Two namespaces with a cable between them, gone with the object."""

    def __init__(self):
        self.names = [f"weft{os.getpid()}{end}" for end in "ab"]
        self.addresses = ["10.77.0.1", "10.77.0.2"]

    def __enter__(self):
        try:
            self.make()
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__()
            detail = getattr(error, "stderr", None) or error
            print(f"skipped: no network namespaces here: {detail}")
            sys.exit(77)
        return self

    def make(self):
        for name in self.names:
            ip("netns", "add", name)
        one, other = self.names
        ip("link", "add", "weft", "netns", one, "type", "veth", "peer", "name",
           "weft", "netns", other)
        for name, address in zip(self.names, self.addresses):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "weft")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "weft", "up")

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False,
                           capture_output=True)

    def cut(self, host):
        ip("-n", self.names[host], "link", "set", "weft", "down")


class Hosts:
    def __init__(self, network, programs, folder):
        self.network, self.folder, self.programs = network, folder, programs
        for name, digit in (("token", "a"), ("wrong", "b")):
            (folder / name).write_text(64 * digit)
            (folder / name).chmod(0o600)
        text = folder / "text.txt"
        text.write_text("".join(chr(97 + i * i % 23) for i in range(1 << 16)))
        self.train = [
            programs / "weft", "train", ROOT / "recipes/quickstart.yaml",
            f"data.paths=[{text}]", "eval.every=1000000", "model.dim=32",
            "model.ffn_dim=64", "model.layers=1", "data.sequence_length=16",
            "train.global_batch_size=8", "train.log_every=1",
            "comm.timeout_s=20"]
        self.started = []

    def start(self, before, *words):
        process = subprocess.Popen(
            [*before, *map(str, words)], cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={name: value for name, value in os.environ.items()
                 if not name.startswith(("PET_", "WEFT_", "TORCH"))})
        self.started.append(process)
        return process

    def launch(self, host, output, *changes, token="token"):
        return self.start(
            ["ip", "netns", "exec", self.network.names[host]],
            self.programs / "weftrun", "--nnodes", 2, "--nproc-per-node", 2,
            "--rdzv-backend", "c10d", "--rdzv-endpoint",
            f"{self.network.addresses[0]}:{PORT}", "--token-file", token,
            "--rdzv-conf", "keep_alive_interval=1,keep_alive_max_attempt=3",
            "--", *self.train, f"output_dir={output}", *changes)

    def on_one(self, output, *changes):
        return self.start(
            [], self.programs / "weftrun", "--nproc-per-node", 4, "--",
            *self.train, f"output_dir={output}", *changes)

    def losses(self, output):
        lines = (self.folder / output / "metrics.jsonl").read_text().splitlines()
        return [step["loss"] for step in map(json.loads, lines)
                if "loss" in step]

    def end(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def ended(process, code):
    output, errors = process.communicate(timeout=90)
    if process.returncode != code:
        raise AssertionError(
            f"exit code {process.returncode}, not {code}\n{output}\n{errors}")
    return ([""] + [line for line in errors.splitlines()
                    if line.startswith("ERROR")])[-1]


def check(what, holds):
    print(f"{what}: {holds}", flush=True)
    if not holds:
        raise AssertionError(what)


def losses_are_those_of_one_host(hosts):
    both = [hosts.launch(host, "two", "train.steps=6") for host in (0, 1)]
    stranger = hosts.launch(1, "never", "train.steps=6", token="wrong")
    check("another token is refused",
          "has a different token" in ended(stranger, 2))
    for process in both:
        ended(process, 0)
    ended(hosts.on_one("one", "train.steps=6"), 0)
    check("six losses, the same on two hosts and on one",
          hosts.losses("two") == hosts.losses("one")
          and len(hosts.losses("one")) == 6)


def a_lost_host_is_named(hosts):
    both = [hosts.launch(host, "cut", "train.steps=1000000") for host in (0, 1)]
    for line in both[0].stdout:
        if line.startswith("step 3/"):
            break
    hosts.network.cut(1)
    began = time.monotonic()
    lines = [ended(process, 150) for process in both]
    seconds = time.monotonic() - began
    print(f"{seconds:.1f} s: {lines[0]}\n{lines[1]}")
    check("host 0 names host 1", "node rank 1, ranks 2 to 3 was lost" in lines[0])
    check("host 1 names host 0", "host 0 at 10.77.0.1" in lines[1])
    check("within keep-alive and the time to end", seconds < 15)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    programs = parser.parse_args().bin.resolve()
    if os.geteuid() != 0 or shutil.which("ip") is None:
        print("skipped: not root, or no ip")
        return 77
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    signal.alarm(150)  # ctest's end of patience would leave the namespaces
    with tempfile.TemporaryDirectory() as folder, Network() as network:
        hosts = Hosts(network, programs, pathlib.Path(folder))
        try:
            losses_are_those_of_one_host(hosts)
            a_lost_host_is_named(hosts)
        finally:
            hosts.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())

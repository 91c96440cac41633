#!/usr/bin/env python3
"""`weft train` on hosts without a usual loopback interface: namespaces of this
one.

loopback.py --bin build/bin

Without an IPv4 address at loopback two ranks train over ::1, also in replica
groups. Where loopback is down, weftrun and ranks that another launcher started
end with 2 and the cause before any timeout. As root, with `unshare` and `ip`;
exits 77 where that may not be.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ONLY_IPV6 = "ip link set lo up && ip addr del 127.0.0.1/8 dev lo && "
DOWN = ""
# Well below the timeout of the collectives and of the rendezvous.
MOMENT_S = 20


def in_namespace(setup, words, env=()):
    """Starts a command in a network namespace of its own."""
    command = " ".join(f"'{word}'" for word in words)
    return subprocess.Popen(
        ["unshare", "--net", "bash", "-c", setup + "exec " + command],
        env={**os.environ, **dict(env)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(process, timeout=120):
    output, _ = process.communicate(timeout=timeout)
    return process.returncode, output


def require(condition, what, output):
    if not condition:
        sys.exit(f"FAILED: {what}\n{output}")
    print(f"ok: {what}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    programs = parser.parse_args().bin.resolve()
    try:
        code, output = finish(in_namespace(ONLY_IPV6, ["true"]))
    except OSError as error:
        code, output = 1, error
    if code != 0:
        print(f"skipped: no network namespaces here: {output}")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        text = folder / "text.txt"
        text.write_text("".join(chr(97 + i * i % 23) for i in range(1 << 14)))
        train = [
            programs / "weft", "train", ROOT / "recipes/quickstart.yaml",
            f"data.paths=[{text}]", "eval.every=1000000", "model.dim=16",
            "model.ffn_dim=32", "model.layers=1", "model.heads=2",
            "model.kv_heads=2", "data.sequence_length=16", "mesh.tp=1",
            "train.global_batch_size=8", "train.steps=2", "train.log_every=1",
            "train.micro_batch_size=2"]
        run = [programs / "weftrun", "--nproc-per-node", "2"]

        code, output = finish(in_namespace(
            ONLY_IPV6, [*run, "--", *train, f"output_dir={folder}/v6"]))
        require(code == 0 and "done: 2 steps" in output,
                "two ranks train without IPv4 at loopback", output)
        code, output = finish(in_namespace(
            ONLY_IPV6, [*run, "--replica-size", "1", "--", *train,
                        f"output_dir={folder}/groups", "elastic.batch=fixed"]))
        require(code == 0 and "done: 2 steps" in output,
                "two replica groups train without IPv4 at loopback", output)

        begin = time.monotonic()
        code, output = finish(in_namespace(
            DOWN, [*run, "--", *train, f"output_dir={folder}/down"]))
        require(code == 2 and "no route to its own loopback" in output
                and "ip link set lo up" in output
                and time.monotonic() - begin < MOMENT_S,
                "weftrun refuses a loopback interface that is down", output)
        begin = time.monotonic()
        ranks = [in_namespace(
            DOWN, [*train, f"output_dir={folder}/ranks"],
            {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
             "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": "29555"}) for rank in range(2)]
        for rank, process in enumerate(ranks):
            code, output = finish(process)
            require(code == 2 and "no route to its own loopback" in output
                    and time.monotonic() - begin < MOMENT_S,
                    f"rank {rank} refuses a loopback interface that is down",
                    output)


if __name__ == "__main__":
    main()

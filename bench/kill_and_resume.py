#!/usr/bin/env python3
"""Kills a random rank of a run in its middle, resumes, and compares bit for bit.

bench/kill_and_resume.py [--repetitions 50] [--seed 1] [--folder DIR]

For 2x2, 3x1 and 1x2 in turn: 20 steps straight, once; then, each repetition,
the same run with kill -9 of a random rank at a random moment after step 10,
started again until it is done. `weft checkpoint diff` of both step-20 folders
must say equal, and the losses must be the same text. Prints one line of JSON;
exits 1 if anything differs.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WEFT = ROOT / "build/bin/weft"
WEFTRUN = ROOT / "build/bin/weftrun"
STEPS = 20
RECIPE = """name: killed
model: {dim: 48, layers: 2, heads: 12, ffn_dim: 96}
data: {paths: [%s], sequence_length: 32}
train: {steps: %d, global_batch_size: 24, log_every: 1}
optimizer: {lr: 1.0e-2}
eval: {every: 10, batches: 2}
checkpoint: {every: 2, keep: 3, async: false}
"""


def command(mesh, output):
    dp, tp = mesh
    return [str(WEFTRUN), "--nproc-per-node", str(dp * tp), "--", str(WEFT),
            "train", "recipe.yaml", f"mesh.dp={dp}", f"mesh.tp={tp}",
            f"train.micro_batch_size={24 // dp // 2}", f"output_dir={output}"]


def run(folder, mesh, output):
    subprocess.run(command(mesh, output), cwd=folder, check=True,
                   stdout=subprocess.DEVNULL)


def workers(launcher):
    """Worker pids by rank."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text()
            if int(stat.rsplit(")", 1)[1].split()[1]) != launcher:
                continue
            environment = (entry / "environ").read_bytes().split(b"\0")
            for variable in environment:
                if variable.startswith(b"RANK="):
                    found[int(variable[5:])] = int(entry.name)
        except (OSError, ValueError, IndexError):
            continue
    return found


def losses(folder, output):
    lines = (folder / output / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [r["step"] for r in records] == list(range(1, STEPS + 1))
    return [(r["loss"], r.get("eval_loss")) for r in records]


def steps_done(folder, output):
    try:
        return (folder / output / "metrics.jsonl").read_text().count("\n")
    except OSError:
        return 0


def kill_once(folder, mesh, output, rng):
    """Returns whether a rank was killed before the run was done."""
    launcher = subprocess.Popen(command(mesh, output), cwd=folder,
                                stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)
    while steps_done(folder, output) < 10 and launcher.poll() is None:
        time.sleep(0.001)
    time.sleep(rng.random() * 0.15)
    victim = rng.randrange(mesh[0] * mesh[1])
    pid = workers(launcher.pid).get(victim)
    if pid:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return launcher.wait() != 0


def is_equal(folder, a, b):
    diff = subprocess.run(
        [str(WEFT), "checkpoint", "diff", f"{a}/checkpoints/step-{STEPS}",
         f"{b}/checkpoints/step-{STEPS}"], cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if diff.returncode:
        print(diff.stdout, file=sys.stderr)
    return diff.returncode == 0 and losses(folder, a) == losses(folder, b)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="keep everything here")
    args = parser.parse_args()
    folder = pathlib.Path(args.folder or tempfile.mkdtemp(prefix="weft_kill_"))
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"int value_{i * 7919 % 1000} = {i * i % 613};\n"
                   for i in range(4000))
    (folder / "corpus.txt").write_text(text)
    (folder / "recipe.yaml").write_text(RECIPE % ("corpus.txt", STEPS))

    meshes = [(2, 2), (3, 1), (1, 2)]
    rng = random.Random(args.seed)
    for mesh in meshes:
        run(folder, mesh, "straight_%dx%d" % mesh)
    result = {"repetitions": args.repetitions, "seed": args.seed, "killed": 0,
              "equal": 0}
    for i in range(args.repetitions):
        mesh = meshes[i % len(meshes)]
        name = "straight_%dx%d" % mesh
        shutil.rmtree(folder / "killed", ignore_errors=True)
        result["killed"] += kill_once(folder, mesh, "killed", rng)
        run(folder, mesh, "killed")
        result["equal"] += is_equal(folder, name, "killed")
    if not args.folder:
        shutil.rmtree(folder)
    print(json.dumps(result))
    sys.exit(result["equal"] != args.repetitions)


if __name__ == "__main__":
    main()

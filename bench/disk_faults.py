#!/usr/bin/env python3
"""Disks that cannot be written, under whole runs of `weft train`.

bench/disk_faults.py [--folder DIR]

On a mesh of 2x2, as root, since disks are mounted:

  readonly    the output folder is on a file system that is mounted read-only;
  nobody      the output folder is another user's;
              both are refused before the first step, with the reason;
  full        a tmpfs fills up in the middle: training goes on, what was saved
              before stays, and once someone has made room saves succeed again;
  two_jobs    a second run on the same folder is refused while the first one is
              at work, which ends undisturbed.

Prints one line of JSON; exits 1 if anything is not so.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WEFT, WEFTRUN = (str(ROOT / "build/bin" / name) for name in ("weft", "weftrun"))
STEPS = 60
RECIPE = """name: disk
model: {dim: 48, layers: 2, heads: 12, ffn_dim: 96}
data: {paths: [corpus.txt], sequence_length: 32}
mesh: {dp: 2, tp: 2}
train: {steps: %d, global_batch_size: 8, micro_batch_size: 4, log_every: 1}
optimizer: {lr: 1.0e-2}
checkpoint: {every: 2, keep: 2}
"""


def command(output):
    return [WEFTRUN, "--nproc-per-node", "4", "--", WEFT, "train", "recipe.yaml",
            f"output_dir={output}"]


def train(folder, output, *before):
    return subprocess.run([*before, *command(output)], cwd=folder, text=True,
                          capture_output=True, timeout=120)


def last_line(text):
    lines = [line for line in text.splitlines() if line.startswith("ERROR")]
    return lines[0] if lines else text[-300:]


def refused(run, output, reason):
    line = last_line(run.stderr)
    metrics = output / "metrics.jsonl"
    steps = metrics.read_text().count("\n") if metrics.exists() else 0
    return {"exit": run.returncode, "error": line, "steps": steps,
            "ok": run.returncode == 2 and reason in line and steps == 0}


class Tmpfs:
    def __init__(self, folder, kib):
        self.folder, self.kib = folder, kib

    def __enter__(self):
        self.folder.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.kib}k",
                        "none", str(self.folder)], check=True)
        return self.folder

    def remount_readonly(self):
        subprocess.run(["mount", "-o", "remount,ro", str(self.folder)],
                       check=True)

    def __exit__(self, *_):
        subprocess.run(["umount", str(self.folder)], check=True)


def readonly(folder):
    disk = Tmpfs(folder / "readonly", 4096)
    with disk as mounted:
        disk.remount_readonly()
        output = mounted / "run"
        return refused(train(folder, output), output, "Read-only file system")


def nobody(folder):
    output = folder / "roots"
    output.mkdir(mode=0o755)
    return refused(
        train(folder, output, "setpriv", "--reuid=65534", "--regid=65534",
              "--clear-groups"), output, "Permission denied")


def sound_steps(output):
    """Every step folder's number, and whether all verify."""
    steps, sound = [], True
    for path in sorted((output / "checkpoints").glob("step-*")):
        steps.append(int(path.name[5:]))
        sound &= subprocess.run([WEFT, "checkpoint", "verify", str(path)],
                                capture_output=True).returncode == 0
    return sorted(steps), sound


def full(folder):
    """A file takes all that is left once step 10 is saved, and goes 20 steps
    later. Checkpoints are on a disk of their own."""
    seen = {}
    output = folder / "full"
    output.mkdir()

    def act(checkpoints, process):
        metrics = output / "metrics.jsonl"
        steps_done = lambda: (metrics.read_text().count("\n")
                              if metrics.exists() else 0)
        while not (checkpoints / "step-10").exists() and process.poll() is None:
            time.sleep(0.002)
        with open(checkpoints / "ballast", "wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(b"x" * 4096)
            except OSError:
                pass
        began = steps_done()
        while steps_done() < began + 20 and process.poll() is None:
            time.sleep(0.002)
        seen["while_full"] = sorted(
            int(path.name[5:]) for path in checkpoints.glob("step-*"))
        seen["steps_while_full"] = steps_done() - began
        (checkpoints / "ballast").unlink()

    with Tmpfs(output / "checkpoints", 16384) as mounted:
        errors = folder / "full.txt"
        with open(errors, "w") as stderr:
            process = subprocess.Popen(command(output), cwd=folder,
                                       stdout=stderr, stderr=stderr)
            thread = threading.Thread(target=act, args=(mounted, process))
            thread.start()
            code = process.wait(120)
            thread.join()
        steps, sound = sound_steps(output)
        left = [path.name for path in (output / "checkpoints").glob(".tmp*")]
    text = errors.read_text()
    return {"exit": code, **seen, "steps": steps, "left_behind": left,
            "said": text.count("No space left on device"), "error": last_line(text) if code else "",
            "ok": (code == 0 and sound and not left
                   and steps[-1:] == [STEPS] and len(seen["while_full"]) >= 1
                   and seen["steps_while_full"] >= 20
                   and "No space left on device" in text)}


def two_jobs(folder):
    output = folder / "shared"
    first = subprocess.Popen(command(output), cwd=folder,
                             stdout=subprocess.DEVNULL)
    while not (output / "checkpoints" / "step-2").exists():
        if first.poll() is not None:
            return {"ok": False, "error": "the first run ended"}
        time.sleep(0.002)
    second = train(folder, output)
    was_running = first.poll() is None
    code = first.wait(120)
    steps, sound = sound_steps(output)
    line = last_line(second.stderr)
    return {"exits": [code, second.returncode], "error": line, "steps": steps,
            "ok": (code == 0 and second.returncode == 2 and was_running and sound
                   and steps[-1:] == [STEPS] and "process" in line)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("skipped: no root, so nothing can be mounted")
    folder = pathlib.Path(
        options.folder or tempfile.mkdtemp(prefix="weft_disk_")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    text = "".join(f"int value_{i * 7919 % 1000} = {i * i % 613};\n"
                   for i in range(4000))
    (folder / "corpus.txt").write_text(text)
    (folder / "recipe.yaml").write_text(RECIPE % STEPS)
    result = {case.__name__: case(folder)
              for case in (readonly, nobody, full, two_jobs)}
    if not options.folder:
        shutil.rmtree(folder)
    print(json.dumps(result))
    sys.exit(not all(case["ok"] for case in result.values()))


if __name__ == "__main__":
    main()

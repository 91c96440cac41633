#!/usr/bin/env python3
"""Runs that are told to end, at random moments and in many ways.

bench/end_signals.py [--runs N] [--seed S] [--only CASE,...] [--folder DIR]

Four ranks on a mesh of 2x2 train; a signal comes; all must save one step, once,
and end with 143. The same command then goes on, and ends with the tensors of a
run that nobody disturbed. Cases:

  start     SIGTERM to weftrun in the first 1.5 s: programs are loaded, ranks
            meet, data is read, the model is built, the first steps are done
  step      SIGTERM to weftrun, between two moments of training
  usr1      SIGUSR1 to weftrun
  one       SIGTERM to one rank alone
  again     SIGTERM to each of the ranks, 20 times while they end
  save      SIGTERM to weftrun, where each step is saved
  async     the same, saved in the background
  eval      SIGTERM to weftrun, where each step is evaluated

Prints one line of JSON: by case how many ended in order, and the seconds from
the signal to the end of weftrun; exits 1 if anything is not so.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WEFT, WEFTRUN = (str(ROOT / "build/bin" / name) for name in ("weft", "weftrun"))
STEPS = 60
RECIPE = f"""name: told
mesh: {{dp: 2, tp: 2}}
model: {{dim: 48, layers: 2, heads: 12, ffn_dim: 96}}
data: {{paths: [corpus.txt], sequence_length: 32}}
train: {{steps: {STEPS}, global_batch_size: 8, micro_batch_size: 2}}
optimizer: {{lr: 1.0e-2}}
ema: {{decay: 0.9}}
eval: {{batches: 1}}
"""
MORE = {"save": ["checkpoint.every=1", "checkpoint.async=false"],
        "async": ["checkpoint.every=1"],
        "eval": ["eval.every=1", "eval.batches=4"]}
CASES = ["start", "step", "usr1", "one", "again", "save", "async", "eval"]


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def workers(parent):
    """Process ids of the ranks of a weftrun."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text()
            if int(stat.rsplit(")", 1)[1].split()[1]) == parent and \
                    b"\0RANK=" in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except (OSError, IndexError, ValueError):
            pass
    return found


class Case:
    def __init__(self, name, folder, chance):
        self.name, self.folder, self.chance = name, folder, chance
        self.seconds, self.wrong, self.moments = [], [], []

    def command(self, output):
        return [WEFTRUN, "--nproc-per-node", "4", "--", WEFT, "train",
                "recipe.yaml", f"output_dir={output}", *MORE.get(self.name, [])]

    def start(self, output):
        return subprocess.Popen(self.command(output), cwd=self.folder,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True)

    def tell(self, run):
        if self.name == "usr1":
            run.send_signal(signal.SIGUSR1)
        elif self.name == "one":
            os.kill(self.chance.choice(workers(run.pid)), signal.SIGTERM)
        elif self.name == "again":
            ranks = workers(run.pid)
            for _ in range(20):
                for rank in ranks:
                    try:
                        os.kill(rank, signal.SIGTERM)
                    except ProcessLookupError:
                        pass
                time.sleep(0.002)
        else:
            run.send_signal(signal.SIGTERM)

    def wait_for_moment(self, run, metrics):
        if self.name == "start":
            time.sleep(self.chance.uniform(0, 1.5))
            return
        steps = self.chance.randrange(1, STEPS // 2)
        while len(lines(metrics)) < steps and run.poll() is None:
            time.sleep(0.001)
        time.sleep(self.chance.uniform(0, 0.02))

    def once(self, number):
        output = f"{self.name}{number}"
        run_folder = self.folder / output
        metrics = run_folder / "metrics.jsonl"
        run = self.start(output)
        self.wait_for_moment(run, metrics)
        if run.poll() is not None:
            run.communicate()
            shutil.rmtree(run_folder, ignore_errors=True)
            return False  # too late
        begin = time.monotonic()
        self.tell(run)
        out, err = run.communicate(timeout=60)
        seconds = time.monotonic() - begin
        if run.returncode == 0:
            shutil.rmtree(run_folder, ignore_errors=True)
            return False
        problems = self.problems(run_folder, run.returncode, out, err)
        again = subprocess.run(self.command(output), cwd=self.folder, text=True,
                               capture_output=True, timeout=120)
        problems += self.differences(output, again)
        self.seconds.append(seconds)
        self.moments.append(len(lines(metrics)))
        if problems:
            self.wrong.append(f"{output}: " + "; ".join(problems))
        shutil.rmtree(run_folder, ignore_errors=True)
        return True

    def problems(self, run_folder, code, out, err):
        found = []
        if code != 143:
            found.append(f"exit {code}: {err[-400:]}")
        said = [x for x in err.splitlines() if x.startswith("ERROR ")]
        if not said or len(said) > 2 or not said[-1].startswith("ERROR 143 "):
            found.append(f"lines {said}")
        latest = run_folder / "checkpoints/latest"
        steps = len(lines(run_folder / "metrics.jsonl"))
        if not latest.exists():
            if steps:
                found.append(f"{steps} steps, none saved")
            return found
        step = int(latest.read_text().split("-")[1])
        if step != steps:
            found.append(f"{steps} steps done, {step} saved")
        count = out.count(f"saved step {step} (")
        if count != 1:
            found.append(f"step {step} saved {count} times")
        return found

    def differences(self, output, again):
        if again.returncode != 0:
            return [f"the next start ends with {again.returncode}: "
                    f"{again.stderr[-400:]}"]
        diff = subprocess.run(
            [WEFT, "checkpoint", "diff", f"straight/checkpoints/step-{STEPS}",
             f"{output}/checkpoints/step-{STEPS}"], cwd=self.folder,
            capture_output=True, text=True)
        return [] if diff.returncode == 0 else [f"differs: {diff.stdout[:300]}"]

    def result(self):
        return {"in_order": len(self.seconds) - len(self.wrong),
                "of": len(self.seconds),
                "seconds_median": round(statistics.median(self.seconds), 3),
                "seconds_most": round(max(self.seconds), 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=25)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--folder", type=pathlib.Path)
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="weft_told_",
                                           dir=arguments.folder))
    try:
        text = "".join(f"int value_{i * 7919 % 1000} = {i * i % 613};\n"
                       for i in range(20000))
        (folder / "corpus.txt").write_text(text)
        (folder / "recipe.yaml").write_text(RECIPE)
        straight = Case("straight", folder, None)
        subprocess.run(straight.command("straight"), cwd=folder, check=True,
                       capture_output=True)
        results, wrong = {}, []
        for name in arguments.only.split(","):
            case = Case(name, folder, random.Random(f"{name}{arguments.seed}"))
            number = 0
            while len(case.seconds) < arguments.runs:
                case.once(number)
                number += 1
            results[name] = case.result()
            wrong += case.wrong
            print(name, json.dumps(results[name]), file=sys.stderr)
        print(json.dumps({"cases": results, "wrong": wrong}))
        return 1 if wrong else 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

"""Runs of `weft train` that bench/fault_suite.py does something to: their lines
with the time at which they came, their ranks, and whether two ended alike."""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = 24
RECIPE = f"""name: faults
model: {{dim: 32, layers: 1, heads: 4, ffn_dim: 64}}
data: {{paths: [corpus.txt], sequence_length: 32}}
train: {{steps: {STEPS}, global_batch_size: 8, micro_batch_size: 2, log_every: 1}}
optimizer: {{lr: 1.0e-2}}
ema: {{decay: 0.9}}
eval: {{every: 8, batches: 1}}
checkpoint: {{every: 4, keep: 2}}
"""
SAME_LOSSES = "step", "loss", "grad_norm", "lr", "tokens", "eval_loss"


def write_inputs(folder):
    (folder / "corpus.txt").write_text(
        "".join(f"int value_{i * 7919 % 1000} = {i * i % 613};\n"
                for i in range(20000)))
    (folder / "faults.yaml").write_text(RECIPE)


def clean_environment(**more):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("PET_", "WEFT_", "TORCH"))}
    return {"OMP_NUM_THREADS": "1", **environment, **more}


def without_prefix(line):
    """A log line without time, level and rank. Level and rank stay before an op."""
    text = re.sub(r"^\d\d:\d\d:\d\d (?=[A-Z]+ )", "", line)
    if text == line or re.match(r"[A-Z]+ rank=\d+ op=", text):
        return text
    return re.sub(r"^[A-Z]+ (rank=\d+ )?", "", text)


class Run:
    """A process in a session of its own, whose lines are read as they come."""

    def __init__(self, words, folder, **more):
        self.folder, self.lines = folder, []
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [str(word) for word in words], cwd=folder, text=True,
            env=clean_environment(**more), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True)
        self.readers = [
            threading.Thread(target=self.read, args=(stream,), daemon=True)
            for stream in (self.process.stdout, self.process.stderr)]
        for reader in self.readers:
            reader.start()

    def read(self, stream):
        for line in stream:
            self.lines.append((time.monotonic(), without_prefix(line.rstrip("\n"))))

    def end(self, seconds=120):
        """Its exit code; a run that does not end in time is killed: None."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        for reader in self.readers:
            reader.join(10)
        self.ended_at = time.monotonic()
        return code

    def find(self, pattern, after=0.0):
        """(when, match) of the first line that has it; None."""
        for when, line in list(self.lines):
            match = re.search(pattern, line) if when >= after else None
            if match:
                return when, match
        return None

    def await_line(self, pattern, seconds=60):
        end = time.monotonic() + seconds
        while True:
            found = self.find(pattern)
            if found:
                return found
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"no line {pattern}:\n{self.text()}")
            time.sleep(0.001)

    def text(self):
        return "\n".join(line for _, line in self.lines)

    def told(self):
        """What ranks and launcher said, without steps and c10d's remarks."""
        return "\n".join(
            f"{when - self.began:7.2f} {line[:400]}" for when, line in self.lines
            if re.match("ERROR|WARNING|weftrun|  rank|  then|resumes", line))

    def last_error(self):
        said = [line for _, line in self.lines if line.startswith("ERROR ")]
        return said[-1] if said else self.text()[-300:]

    def workers(self):
        """Process ids by rank."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = (entry / "stat").read_text()
                if int(stat.rsplit(")", 1)[1].split()[1]) != self.process.pid:
                    continue
                environment = (entry / "environ").read_bytes()
                rank = re.search(rb"\0RANK=(\d+)\0", environment)
                if rank:
                    found[int(rank[1])] = int(entry.name)
        return found


class Programs:
    """Where they are, and how `weft train` is started under weftrun."""

    def __init__(self, binaries, folder):
        self.folder = folder
        self.weft, self.weftrun, self.faulty, self.gloo_abort, self.odd = (
            binaries / name for name in (
                "weft", "weftrun", "faulty_weft", "gloo_abort",
                "odd_collective"))
        self.bin = binaries

    def launched(self, ranks, *words, restarts=0):
        return [self.weftrun, "--nproc-per-node", ranks, "--max-restarts",
                restarts, "--", *words]

    def train(self, mesh, output, *changes, restarts=0):
        dp, tp = mesh
        return Run(self.launched(
            dp * tp, self.weft, "train", "faults.yaml", f"mesh.dp={dp}",
            f"mesh.tp={tp}", f"output_dir={output}", *changes,
            restarts=restarts), self.folder)

    def straight(self, mesh):
        """The folder of a run on this mesh that nobody disturbed."""
        output = self.folder / f"straight{mesh[0]}x{mesh[1]}"
        if not output.exists():
            run = self.train(mesh, output.name)
            if run.end() != 0:
                raise RuntimeError(run.text())
        return output

    def differences(self, mesh, output):
        """In what the run `output` and an undisturbed one have not ended
        alike: losses, and each byte of the last checkpoint's tensors and
        state."""
        found, ours = [], self.folder / output
        straight = self.straight(mesh)
        if losses(ours) != losses(straight):
            found.append("losses")
        if digests(ours) != digests(straight):
            found.append("checkpoints")
        return found


def losses(output):
    lines = (output / "metrics.jsonl").read_text().splitlines()
    return [{key: step.get(key) for key in SAME_LOSSES}
            for step in map(json.loads, lines)]


def digests(output):
    """Of the files with tensors; and what the manifest says of the rest, but
    for times, this run's folder and how long it waits."""
    folder = output / "checkpoints" / f"step-{STEPS}"
    if not folder.exists():
        return None
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
             for path in sorted(folder.glob("*.safetensors"))}
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in "created", "xxh3":
        del manifest[name]
    del manifest["layout"]["metrics_line"]
    manifest["layout"]["recipe"] = re.sub(
        r"(output_dir|timeout_s): .*\n", "", manifest["layout"]["recipe"])
    return found, manifest


def steps_done(run, before):
    """The last step that a run had told of at this time."""
    steps = [int(match[1]) for when, line in list(run.lines) if when <= before
             for match in [re.match(rf"step (\d+)/{STEPS} ", line)] if match]
    return steps[-1] if steps else 0


def spread(hits, name, unit=" s"):
    """Median and most of a figure that not all of them need have."""
    values = [hit[name] for hit in hits if hit.get(name) is not None]
    if not values:
        return "none"
    return (f"{statistics.median(values):.3g}{unit} (at most "
            f"{max(values):.3g}{unit})")


def row(fault, injection, expected, seen, good):
    return {"fault": fault, "injection": injection, "expected": expected,
            "seen": seen, "ok": bool(good)}

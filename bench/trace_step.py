"""Traces steps of `weft train` as bench/peer/trace_step.py does PyTorch's.

    .venv-peer/bin/python bench/trace_step.py --dp 2 --tp 2

Trains recipes/quickstart.yaml with the model of `weft bench step` and reads the
trace that it writes. Prints one line of JSON with the peer's keys, and what the
picture needs beside them: the phases and the tensor-parallel collectives.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from measure import weftrun

WARMUP = 5


def read_flags():
    parser = argparse.ArgumentParser()
    for name, value in {"dp": 2, "tp": 2, "dim": 256, "layers": 4, "heads": 8,
                        "seq": 128, "batch": 4, "steps": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--bucket_mb", type=float, default=2)
    return parser.parse_args()


def overrides(flags, folder):
    return [
        f"mesh.dp={flags.dp}", f"mesh.tp={flags.tp}",
        f"model.dim={flags.dim}", f"model.layers={flags.layers}",
        f"model.heads={flags.heads}", f"model.kv_heads={flags.heads}",
        f"model.ffn_dim={4 * flags.dim}", f"ddp.bucket_cap_mb={flags.bucket_mb}",
        f"data.sequence_length={flags.seq}",
        f"train.global_batch_size={flags.batch * flags.dp}",
        f"train.micro_batch_size={flags.batch}",
        f"train.steps={WARMUP + flags.steps}", f"trace.first_step={WARMUP + 1}",
        f"trace.steps={flags.steps}", "eval.every=0", "checkpoint.every=0",
        f"output_dir={folder}"]


def train(flags, folder):
    command = weftrun(flags.dp * flags.tp, "train", "recipes/quickstart.yaml",
                      "--fresh", *overrides(flags, folder))
    result = subprocess.run(
        command, env=dict(os.environ, OMP_NUM_THREADS="1"),
        capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{result.stderr[-3000:]}")
    return json.loads((pathlib.Path(folder) / "trace.json").read_text())


def step_of(phases, collectives, nodes, step):
    """The spans of a rank that begin within a step, in the peer's form."""
    def inside(spans, bounds=step):
        return [s for s in spans if bounds[0] <= s[0] < bounds[1]]
    parts = {name: [a, b] for a, b, name in inside(phases)}
    backward = parts["backward"]
    gradients_end = max(b for _, b in inside(nodes, backward))
    buckets = [s[:2] for s in inside(collectives, backward)
               if s[3].startswith("ddp bucket") and not s[2].startswith("tp")]
    tensor_parallel = [s[:2] for s in inside(collectives)
                       if s[2].startswith("tp")]
    return {"backward": backward, "gradients_end": gradients_end,
            "blocked": [s for s in inside(tensor_parallel, backward)
                        if s[0] < gradients_end],
            "buckets": buckets, "phases": parts, "tp": tensor_parallel}


def steps_of(events):
    """Of one rank."""
    def spans(category):
        return sorted(
            (e["ts"] / 1e3, (e["ts"] + e["dur"]) / 1e3, e["name"], e)
            for e in events if e.get("cat") == category)
    phases = [s[:3] for s in spans("phase")]
    collectives = [(a, b, e["args"]["group"], e["args"]["what"])
                   for a, b, _, e in spans("collective")]
    # Nodes of the graph; the engine's spans hold DDP's hooks, too.
    nodes = [(a, b) for a, b, name, _ in spans("backward")
             if not name.startswith("autograd::engine")]
    return [step_of(phases, collectives, nodes, (a, b))
            for a, b, *_ in spans("step")]


def main():
    flags = read_flags()
    with tempfile.TemporaryDirectory() as folder:
        events = train(flags, folder)["traceEvents"]
    ranks = [steps_of([e for e in events if e["pid"] == rank and e["ph"] == "X"])
             for rank in range(flags.dp * flags.tp)]
    print(json.dumps({"peer": "weft", "dp": flags.dp, "tp": flags.tp,
                      "bucket_mb": flags.bucket_mb, "ranks": ranks}))


if __name__ == "__main__":
    main()

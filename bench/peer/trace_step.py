"""PyTorch's side of bench/trace_picture.py: when DDP's buckets are reduced.

    torchrun --nproc-per-node 4 bench/peer/trace_step.py --dp 2 --tp 2

Traces some steps of bench/peer/train_step.py, whose flags it takes, with
torch.profiler. Rank 0 prints one line of JSON: for each rank and step, in
milliseconds, when backward began, when the last gradient was computed, when it
was blocked by tensor-parallel collectives, and when each bucket's reduction was
launched and done; and PyTorch's own logging data.
"""

import itertools
import json
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import parallel as tp
from torch.profiler import ProfilerActivity, profile, record_function

from train_step import build, read_flags


def train_step(model, optimizer, data, sharded):
    def backward():
        logits = model(data[:, :-1]).flatten(0, 1).float()
        loss = F.cross_entropy(logits, data[:, 1:].reshape(-1))
        with record_function("backward"):
            loss.backward()
    if sharded:
        with tp.loss_parallel():
            backward()
    else:
        backward()
    optimizer.step()
    optimizer.zero_grad()


def is_inside(span, spans):
    return any(a <= span[0] and span[1] <= b for a, b in spans)


def pair_with_runs(launches, runs_by_thread):
    """(launched, done) of each launch. A group has threads of its own, which
    take its collectives in order: those whose runs fit."""
    threads = sorted(runs_by_thread)
    for count in range(1, len(threads) + 1):
        for chosen in itertools.combinations(threads, count):
            runs = sorted(r for t in chosen for r in runs_by_thread[t])
            if len(runs) == len(launches) and all(
                    launch[0] <= run[0] for launch, run in zip(launches, runs)):
                return [(launch[0], run[1])
                        for launch, run in zip(launches, runs)]
    raise SystemExit("no threads of gloo ran just the buckets' reductions")


def spans_of(path):
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    return [(e["ts"] / 1e3, (e["ts"] + e["dur"]) / 1e3, e["name"], e["tid"])
            for e in events if e.get("ph") == "X"]


def steps_of(path):
    spans = sorted(spans_of(path))
    backwards = [s for s in spans if s[2] == "backward"]
    main = backwards[0][3]
    own = [s for s in spans if s[3] == main]
    blocked = [s[:2] for s in own if s[2].startswith("_c10d_functional::")]
    launches = [s[:2] for s in own
                if s[2] == "c10d::allreduce_" and not is_inside(s, blocked)]
    runs = {}
    for span in spans:
        if span[2] == "gloo:all_reduce":
            runs.setdefault(span[3], []).append(span[:2])
    buckets = pair_with_runs(launches, runs)
    # Nodes of the graph; the engine's spans hold DDP's hooks, too.
    nodes = [s[:2] for s in own if s[2].endswith("Backward0")
             or s[2].endswith("Backward") or "AccumulateGrad" in s[2]
             if not s[2].startswith("autograd::engine")]
    steps = []
    for begin, end, *_ in backwards:
        def inside(candidates):
            return [s for s in candidates if begin <= s[0] <= end]
        steps.append({
            "backward": [begin, end],
            "gradients_end": max(b for _, b in inside(nodes)),
            "blocked": inside(blocked), "buckets": inside(buckets)})
    return steps


def trace(step, count):
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(count):
            step()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        return steps_of(path)


def main():
    flags = read_flags()
    torch.set_num_threads(flags.threads)
    dist.init_process_group("gloo")
    mesh = init_device_mesh(
        "cpu", (flags.dp, flags.tp), mesh_dim_names=("dp", "tp"))
    model = build(flags, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    generator = torch.Generator().manual_seed(1 + mesh.get_local_rank("dp"))

    def step():
        data = torch.randint(
            0, flags.vocab, (flags.batch, flags.seq + 1), generator=generator)
        train_step(model, optimizer, data, flags.tp > 1)

    for _ in range(flags.warmup):
        step()
    steps = trace(step, flags.steps)
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, steps)
    if dist.get_rank() == 0:
        data = model._get_ddp_logging_data()
        print(json.dumps({
            "peer": "pytorch", "torch": torch.__version__, "dp": flags.dp,
            "tp": flags.tp, "bucket_mb": flags.bucket_mb, "ranks": every,
            "logging_data": {k: v for k, v in data.items() if "time" in k}}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

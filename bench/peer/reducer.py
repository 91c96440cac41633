"""PyTorch's side of `weft bench reducer`: backward with DDP against plain backward.

    torchrun --nproc-per-node 1 bench/peer/reducer.py

A stack of square linear layers, wrapped and not, in turn. Takes the flags of
`weft bench reducer` and prints one line of JSON with the same keys from rank 0.
"""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def read_flags():
    parser = argparse.ArgumentParser()
    parser.add_argument("--widths", default="64,256")
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bucket_mb", type=float, default=25)
    parser.add_argument("--keep_gradients", action="store_true")
    return parser.parse_args()


def make_model(layers, width):
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    for layer in model:
        nn.init.normal_(layer.weight, std=width**-0.5)
    return model


def backward_ms(model, data, keep_gradients):
    model.zero_grad(set_to_none=not keep_gradients)
    loss = model(data).sum()
    if dist.get_world_size() > 1:
        dist.barrier()
    begin = time.perf_counter()
    loss.backward()
    return 1e3 * (time.perf_counter() - begin)


def measure(flags, width):
    plain = make_model(flags.layers, width)
    ddp = DistributedDataParallel(
        make_model(flags.layers, width), bucket_cap_mb=flags.bucket_mb,
        gradient_as_bucket_view=True)
    data = torch.randn(flags.batch, width)
    times = {"plain": [], "ddp": []}
    for i in range(flags.warmup + flags.rounds):
        pair = [("plain", plain), ("ddp", ddp)]
        for name, model in pair if i % 2 == 0 else reversed(pair):
            ms = backward_ms(model, data, flags.keep_gradients)
            if i >= flags.warmup:
                times[name].append(ms)
    times["ratio"] = [b / a for a, b in zip(times["plain"], times["ddp"])]
    return {key: round(statistics.median(values), 4)
            for key, values in times.items()}


def main():
    flags = read_flags()
    torch.set_num_threads(flags.threads)
    dist.init_process_group("gloo")
    result = {"peer": "pytorch", "bench": "reducer", "torch": torch.__version__,
              "dp": dist.get_world_size(), "parameters": 2 * flags.layers,
              "batch": flags.batch, "keep_gradients": flags.keep_gradients}
    for width in map(int, flags.widths.split(",")):
        found = measure(flags, width)
        result.update({f"w{width}_plain_ms": found["plain"],
                       f"w{width}_ddp_ms": found["ddp"],
                       f"w{width}_ratio": found["ratio"]})
    if dist.get_rank() == 0:
        print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

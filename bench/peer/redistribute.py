"""PyTorch's redistributions, under the keys of `weft bench redistribute`.

    torchrun --nproc-per-node=2 bench/peer/redistribute.py

Medians in microseconds.
"""

import json
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

ROUNDS = 5
COLUMNS = 1024


def microseconds(call, calls):
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6


def median_us(dtensor, mesh, placement, calls):
    def move():
        # The value has to be there.
        dtensor.redistribute(mesh, [placement]).to_local().view(-1)[0].item()

    dist.barrier()
    microseconds(move, calls)
    return statistics.median(microseconds(move, calls) for _ in range(ROUNDS))


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    n = dist.get_world_size()
    mesh = init_device_mesh("cpu", (n,), mesh_dim_names=("tp",))
    results = {"bench": "redistribute", "ranks": n}
    for mb in (1, 64):
        rows = mb * 2**18 // COLUMNS

        def on_mesh(own_rows, placement):
            return DTensor.from_local(
                torch.randn(own_rows, COLUMNS), mesh, [placement])

        shard = on_mesh(rows // n, Shard(0))
        whole = on_mesh(rows, Replicate())
        pending = on_mesh(rows, Partial())
        for name, tensor, to in (
                ("shard0_to_replicate", shard, Replicate()),
                ("replicate_to_shard0", whole, Shard(0)),
                ("shard0_to_shard1", shard, Shard(1)),
                ("partial_to_replicate", pending, Replicate()),
                ("partial_to_shard0", pending, Shard(0))):
            us = median_us(tensor, mesh, to, 5 if mb > 1 else 20)
            results[f"{name}_{mb}mb_us"] = round(us, 2)
    if dist.get_rank() == 0:
        print(json.dumps(results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

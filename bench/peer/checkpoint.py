"""PyTorch's distributed checkpoint on the state that `weft bench checkpoint` saves.

    torchrun --nproc-per-node 4 bench/peer/checkpoint.py FOLDER MB

Parameters and two moments of MB MiB together, in tensors of 4 MiB, on a mesh of
2 x n/2: saved as [Replicate, Shard(0)], loaded as they lie, and loaded as
[Shard(0), Shard(1)]. Saved twice: with its files fsynced, as dcp.save does by
default, and without. The better of two tries counts. Prints one line of JSON on
rank 0.
"""

import json
import pathlib
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

SIDE = 1024
TRIES = 2


def make_state(mesh, placements, layers):
    sizes = [SIDE, SIDE]
    for mesh_dim, placement in enumerate(placements):
        if placement.is_shard():
            sizes[placement.dim] //= mesh.size(mesh_dim)
    return {
        f"{part}.layers.{i}.weight": DTensor.from_local(
            torch.randn(sizes), mesh, placements, run_check=False)
        for part in ("model", "exp_avg", "exp_avg_sq")
        for i in range(layers)
    }


def best_of(act):
    times = []
    for _ in range(TRIES):
        dist.barrier()
        start = time.perf_counter()
        act()
        dist.barrier()
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    folder, megabytes = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh(
        "cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    layers = max(1, megabytes // 3 // 4)
    result = {"mb": 3 * layers * 4}
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
    state = make_state(mesh, [Replicate(), Shard(0)], layers)
    result["save_nosync_s"] = best_of(lambda: dcp.save(
        state, storage_writer=dcp.FileSystemWriter(folder, sync_files=False)))
    result["save_s"] = best_of(lambda: dcp.save(state, checkpoint_id=folder))
    result["load_same_s"] = best_of(
        lambda: dcp.load(state, checkpoint_id=folder))
    state = make_state(mesh, [Shard(0), Shard(1)], layers)
    result["load_reshard_s"] = best_of(
        lambda: dcp.load(state, checkpoint_id=folder))
    if dist.get_rank() == 0:
        shutil.rmtree(folder)
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""PyTorch's distributed checkpoint on the state that `weft bench checkpoint` saves.

    torchrun --nproc-per-node 4 bench/peer/checkpoint.py FOLDER MB

Parameters and two moments of MB MiB together, in tensors of 4 MiB, on a mesh of
2 x n/2: saved as [Replicate, Shard(0)], loaded as they lie, and loaded as
[Shard(0), Shard(1)]. Saved three ways: with its files fsynced, as dcp.save does
by default, without, and by async_save, whose time is until it returns: the first
time, and the better of two more. Else the better of two tries counts. *_peak_mb is
resident memory beyond the state's, of the rank with most; memcpy_s and raw_write_s
are of the whole state on one rank, without DCP. Prints one line of JSON on rank 0.
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


def timed(act):
    dist.barrier()
    start = time.perf_counter()
    act()
    dist.barrier()
    return time.perf_counter() - start


def best_of(act):
    return min(timed(act) for _ in range(TRIES))


def status_mb(name):
    for line in open("/proc/self/status"):
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    return 0


class Peak:
    """`mb` is what the block needed beyond what was resident before it, of the
    rank with most."""

    def __enter__(self):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        self.before = status_mb("VmRSS")
        return self

    def __exit__(self, *_):
        most = torch.tensor(status_mb("VmHWM") - self.before)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        self.mb = most.item()


def time_async(state, folder, result):
    """Nothing is computed while it writes, so it has the machine to itself. Its
    thread talks through a group of its own, beside the barriers here."""
    times, pending, group = [], [], dist.new_group(backend="gloo")
    with Peak() as peak:
        for attempt in range(TRIES + 1):
            target = folder / f"async{attempt}"
            start = time.perf_counter()
            times.append(timed(lambda: pending.append(
                dcp.async_save(
                    state, checkpoint_id=target, process_group=group))))
            pending.pop().result()
            result["async_total_s"] = time.perf_counter() - start
            dist.barrier()
            if dist.get_rank() == 0:
                shutil.rmtree(target)
    result["async_block_first_s"], *later = times
    result["async_block_s"] = min(later)
    result["async_peak_mb"] = peak.mb


def add_floors(folder, megabytes, result):
    data = torch.randn(megabytes << 18)
    path = folder / "raw"
    start = time.perf_counter()
    with open(path, "wb") as file:
        file.write(memoryview(data.numpy()).cast("B"))
    result["raw_write_s"] = time.perf_counter() - start
    start = time.perf_counter()
    data.clone()
    result["memcpy_s"] = time.perf_counter() - start
    path.unlink()


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
    folder.mkdir(parents=True, exist_ok=True)
    state = make_state(mesh, [Replicate(), Shard(0)], layers)
    plain = folder / "plain"
    with Peak() as peak:
        result["save_nosync_s"] = best_of(lambda: dcp.save(
            state, storage_writer=dcp.FileSystemWriter(plain, sync_files=False)))
    result["save_nosync_peak_mb"] = peak.mb
    with Peak() as peak:
        result["save_s"] = best_of(lambda: dcp.save(state, checkpoint_id=plain))
    result["save_peak_mb"] = peak.mb
    with Peak() as peak:
        result["load_same_s"] = best_of(
            lambda: dcp.load(state, checkpoint_id=plain))
    result["load_peak_mb"] = peak.mb
    time_async(state, folder, result)
    state = make_state(mesh, [Shard(0), Shard(1)], layers)
    with Peak() as peak:
        result["load_reshard_s"] = best_of(
            lambda: dcp.load(state, checkpoint_id=plain))
    result["load_reshard_peak_mb"] = peak.mb
    if dist.get_rank() == 0:
        add_floors(folder, result["mb"], result)
        shutil.rmtree(folder)
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes comm_hooks.json: what PyTorch's comm hooks and model averagers give.

    python tests/ddp/oracle/comm_hooks.py > tests/ddp/oracle/comm_hooks.json

PyTorch's own hooks run over gloo on 2 and 3 ranks (4 for hierarchical
averaging), on inputs that tests/ddp/oracle/oracle.h makes again.
"""

import collections
import json
import math
import os
import sys
import tempfile
import warnings

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.algorithms.model_averaging import (
    hierarchical_model_averager as hierarchical,
)
from torch.distributed.optim import PostLocalSGDOptimizer

BUCKETS = [[(8, 6), (6,), (6, 8)], [(8, 6), (5,), (4, 3, 4)]]


def chirp(shape, phase, dtype):
    """Values that form matrices of full rank; chirp() in oracle.h."""
    k = numpy.arange(math.prod(shape), dtype=numpy.float64)
    values = numpy.sin(0.013 * k * k + 1.7 * k + phase)
    return torch.from_numpy(values).view(shape).to(dtype, copy=True)


class Bucket:
    """What hooks use of torch.distributed.GradBucket."""

    def __init__(self, index, buffer):
        self._index = index
        self._buffer = buffer

    def index(self):
        return self._index

    def is_last(self):
        return self._index == len(BUCKETS) - 1

    def buffer(self):
        return self._buffer

    def set_buffer(self, buffer):
        self._buffer = buffer

    def gradients(self):
        sizes = [math.prod(shape) for shape in BUCKETS[self._index]]
        # batched_powerSGD_hook pads the buffer.
        parts = self._buffer[: sum(sizes)].split(sizes)
        shapes = BUCKETS[self._index]
        return [part.view(shape) for part, shape in zip(parts, shapes)]


def run_hook(state, hook, dtype, iterations, kept):
    """Results of all buckets, at the iterations in `kept`."""
    rows = {}
    digits = 13 if dtype == torch.float64 else 9
    for iteration in range(iterations):
        for index, shapes in enumerate(BUCKETS):
            numel = sum(math.prod(shape) for shape in shapes)
            phase = 0.3 + 0.37 * iteration + 0.91 * dist.get_rank() + 0.53 * index
            bucket = Bucket(index, chirp((numel,), phase, dtype))
            result = hook(state, bucket).wait()
            result = result[0] if isinstance(result, list) else result
            if iteration in kept:
                rows.setdefault(str(iteration), []).append(
                    [float(f"{value:.{digits}g}") for value in result.tolist()]
                )
    return rows


def orthogonalize_two_dims():
    """batched_powerSGD_hook gives _orthogonalize a matrix, which asserts 3 dims
    since PyTorch 1.10 or so: without this the hook cannot run."""
    original = powerSGD_hook._orthogonalize

    def orthogonalize(matrices, epsilon=0):
        original(matrices if matrices.dim() == 3 else matrices.unsqueeze(0), epsilon)

    powerSGD_hook._orthogonalize = orthogonalize


def perchannel_16(group, bucket):
    return quantization_hooks.quantization_perchannel_hook(group, bucket, 16)


STATELESS = {
    "allreduce_hook": default_hooks.allreduce_hook,
    "noop_hook": debugging_hooks.noop_hook,
    "fp16_compress_hook": default_hooks.fp16_compress_hook,
    "bf16_compress_hook": default_hooks.bf16_compress_hook,
    "fp16_compress_wrapper": default_hooks.fp16_compress_wrapper(
        default_hooks.allreduce_hook
    ),
    "bf16_compress_wrapper": default_hooks.bf16_compress_wrapper(
        default_hooks.allreduce_hook
    ),
    "quantization_pertensor_hook": quantization_hooks.quantization_pertensor_hook,
    "quantization_perchannel_hook": quantization_hooks.quantization_perchannel_hook,
    "quantization_perchannel_hook(16)": perchannel_16,
}

POWER_SGD = {
    "rank_1": {},
    "rank_2": dict(matrix_approximation_rank=2, min_compression_rate=1),
    "rank_3": dict(matrix_approximation_rank=3, min_compression_rate=1),
    "cold_start": dict(warm_start=False, random_seed=7),
    "no_error_feedback": dict(
        use_error_feedback=False, orthogonalization_epsilon=1e-3
    ),
    "batch_same_shape": dict(batch_tensors_with_same_shape=True),
}


def hooks_of(world):
    group = dist.group.WORLD
    found = {}
    for name, hook in STATELESS.items():
        found[name] = run_hook(group, hook, torch.float32, 1, {0})
    cases = [
        (f"{hook.__name__} {name}", hook, options, torch.float64)
        for hook in (powerSGD_hook.powerSGD_hook, powerSGD_hook.batched_powerSGD_hook)
        for name, options in POWER_SGD.items()
        if hook is powerSGD_hook.powerSGD_hook or name in ("rank_1", "rank_3")
    ]
    cases.append(
        ("powerSGD_hook float32", powerSGD_hook.powerSGD_hook, {}, torch.float32)
    )
    for name, hook, options, dtype in cases:
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, **options)
        found[name] = run_hook(state, hook, dtype, 6, {2, 5})
        found[name]["stats"] = state.compression_stats()[1:]
    subgroup, _ = dist.new_subgroups_by_enumeration(
        [[0, 1], [2]][: world - 1] if world == 3 else [[0], [1]]
    )
    for reduces in (True, False):
        state = post_localSGD_hook.PostLocalSGDState(None, subgroup, 2, reduces)
        found[f"post_localSGD_hook {int(reduces)}"] = run_hook(
            state, post_localSGD_hook.post_localSGD_hook, torch.float32, 3, {1, 2}
        )
    return found


def train(averager):
    """The parameter of a module with one frozen one, after each step."""
    rank = dist.get_rank()
    parameter = torch.nn.Parameter(chirp((3,), 0.1, torch.float64))
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD([parameter], lr=0.1), averager)
    rows = []
    for step in range(9):
        optimizer.zero_grad()
        (parameter * chirp((3,), step + 0.7 * rank, torch.float64)).sum().backward()
        optimizer.step()
        rows.append(parameter.detach().tolist())
    return {"steps": rows}


def averagers_of(world):
    if world == 4:
        periods = collections.OrderedDict([(2, 2), (6, 4)])
        return {
            "HierarchicalModelAverager": train(
                hierarchical.HierarchicalModelAverager(periods, warmup_steps=1)
            )
        }
    return {
        "PeriodicModelAverager": train(
            averagers.PeriodicModelAverager(period=3, warmup_steps=2)
        )
    }


def main(rank, world, folder):
    warnings.simplefilter("ignore")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(f"{folder}/store{world}", world),
        rank=rank,
        world_size=world,
    )
    orthogonalize_two_dims()
    found = averagers_of(world)
    if world < 4:
        found |= hooks_of(world)
    everyone = [None] * world
    dist.all_gather_object(everyone, found)
    if rank == 0:
        with open(f"{folder}/{world}.json", "w") as file:
            json.dump(everyone, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        outputs = {}
        for world in (2, 3, 4):
            mp.spawn(main, (world, folder), world)
            with open(f"{folder}/{world}.json") as file:
                everyone = json.load(file)
            # Rank by rank only where ranks differ.
            outputs[str(world)] = {
                name: [rank[name] for rank in everyone]
                if any(rank[name] != everyone[0][name] for rank in everyone)
                else everyone[0][name]
                for name in everyone[0]
            }
    result = {"pytorch": torch.__version__.split("+")[0], "outputs": outputs}
    json.dump(result, sys.stdout, separators=(",", ":"))
    print()

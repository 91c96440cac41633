#!/usr/bin/env python3
"""Makes zero.json: what PyTorch's ZeroRedundancyOptimizer gives.

    python tests/ddp/oracle/zero.py > tests/ddp/oracle/zero.json

It runs over gloo on 2 and 3 ranks, on gradients that zero_oracle_test.cpp makes
again: which rank has each parameter, the parameters after some steps, and the
consolidated state's tensors.
"""

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
from torch.distributed.optim import ZeroRedundancyOptimizer

SHAPES = [(8, 6), (7, 5), (5,), (1, 4), (33, 9), (4, 2), (6, 4)]
FIRST_GROUP = 3
STEPS = 4

CASES = {
    "sgd": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.01)),
    "adam": (torch.optim.Adam, dict(lr=0.02)),
    "adamw": (torch.optim.AdamW, dict(lr=0.03, amsgrad=True)),
    "adagrad": (torch.optim.Adagrad, dict(lr=0.1)),
    "rmsprop": (torch.optim.RMSprop, dict(lr=0.01, momentum=0.5, centered=True)),
}


def wave(shape, phase):
    """Values that depend on their place; wave() in models.h."""
    k = numpy.arange(math.prod(shape), dtype=numpy.float64)
    return torch.from_numpy(numpy.sin(k * 1.7 + phase)).view(shape)


def set_gradients(parameters, step):
    for index, parameter in enumerate(parameters):
        left_out = (index + step) % 5 == 1
        gradient = wave(parameter.shape, 0.31 * (7 * step + index))
        parameter.grad = None if left_out else gradient


def run(make, options, views):
    parameters = [
        torch.nn.Parameter(wave(shape, float(index)))
        for index, shape in enumerate(SHAPES)
    ]
    optimizer = ZeroRedundancyOptimizer(
        parameters[:FIRST_GROUP],
        make,
        parameters_as_bucket_view=views,
        **options,
    )
    optimizer.add_param_group({"params": parameters[FIRST_GROUP:], "lr": 0.05})
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 0.02 / (1 + step)
        set_gradients(parameters, step)
        optimizer.step()
    owners = optimizer._param_to_rank
    optimizer.consolidate_state_dict(0)
    state = {}
    if dist.get_rank() == 0:
        for index, entries in optimizer.state_dict()["state"].items():
            state[str(index)] = {
                name: float(f"{float(value.double().sum()):.13g}")
                for name, value in entries.items()
            }
    return {
        "owners": [owners[parameter] for parameter in parameters],
        "parameters": [
            [float(f"{value:.14g}") for value in parameter.flatten().tolist()]
            for parameter in parameters
        ],
        "state_sums": state,
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
    found = {}
    for name, (make, options) in CASES.items():
        found[name] = run(make, options, views=False)
        if run(make, options, views=True) != found[name]:
            sys.exit(f"{name}: views change the result")
    if rank == 0:
        with open(f"{folder}/{world}.json", "w") as file:
            json.dump(found, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    outputs = {}
    with tempfile.TemporaryDirectory() as folder:
        for world in (2, 3):
            mp.spawn(main, (world, folder), world)
            with open(f"{folder}/{world}.json") as file:
                outputs[str(world)] = json.load(file)
    result = {"pytorch": torch.__version__.split("+")[0], "outputs": outputs}
    json.dump(result, sys.stdout, separators=(",", ":"))
    print()

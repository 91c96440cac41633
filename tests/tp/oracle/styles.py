#!/usr/bin/env python3
"""Writes styles.json: what PyTorch's tensor-parallel styles compute.

    .venv-peer/bin/python tests/tp/oracle/styles.py

Runs each style and option on two ranks over gloo and stores, in full precision
and rank by rank, the local parts of outputs and of the inputs' gradients, where
outputs lie, and the whole gradients of the parameters.
tests/tp/style_oracle_test.cpp does the same with Weft.
"""

import json
import pathlib
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

OUTPUT = pathlib.Path(__file__).with_suffix(".json")
RANKS = 2
WHOLE = (2, 4, 6)


def wave(sizes, phase):
    k = torch.arange(torch.Size(sizes).numel(), dtype=torch.double)
    return torch.sin(k * 1.7 + phase).view(sizes)


class Two(nn.Module):
    """Of two inputs and one by name, two outputs."""

    def forward(self, a, b, mask):
        return a * 2 + mask, b * 3


class Square(nn.Module):
    def forward(self, x):
        return x * x


def linear():
    return nn.Linear(6, 4)


def embedding():
    return nn.Embedding(7, 4)


def norm():
    return nn.LayerNorm(6)


# name: (module, style, how the input is cut; None: whole)
CASES = {
    "colwise": (linear, lambda: ColwiseParallel(use_local_output=False), None),
    "colwise_local": (linear, ColwiseParallel, None),
    "colwise_from_S1": (
        linear,
        lambda: ColwiseParallel(
            input_layouts=Shard(1), use_local_output=False
        ),
        1,
    ),
    "colwise_to_R": (
        linear,
        lambda: ColwiseParallel(
            output_layouts=Replicate(), use_local_output=False
        ),
        None,
    ),
    "colwise_to_S1": (
        linear,
        lambda: ColwiseParallel(
            output_layouts=Shard(1), use_local_output=False
        ),
        None,
    ),
    "rowwise": (linear, lambda: RowwiseParallel(use_local_output=False), 2),
    "rowwise_local": (linear, RowwiseParallel, 2),
    "rowwise_from_R": (
        linear,
        lambda: RowwiseParallel(
            input_layouts=Replicate(), use_local_output=False
        ),
        None,
    ),
    "rowwise_to_S1": (
        linear,
        lambda: RowwiseParallel(
            output_layouts=Shard(1), use_local_output=False
        ),
        2,
    ),
    "colwise_embedding": (
        embedding,
        lambda: ColwiseParallel(use_local_output=False),
        None,
    ),
    "colwise_embedding_local": (embedding, ColwiseParallel, None),
    "colwise_embedding_to_R": (
        embedding,
        lambda: ColwiseParallel(
            output_layouts=Replicate(), use_local_output=False
        ),
        None,
    ),
    "rowwise_embedding": (
        embedding,
        lambda: RowwiseParallel(
            input_layouts=Replicate(), use_local_output=False
        ),
        None,
    ),
    "rowwise_embedding_to_S1": (
        embedding,
        lambda: RowwiseParallel(
            input_layouts=Replicate(),
            output_layouts=Shard(1),
            use_local_output=False,
        ),
        None,
    ),
    "sequence_norm": (norm, SequenceParallel, 1),
    "sequence_norm_local": (
        norm,
        lambda: SequenceParallel(use_local_output=True),
        1,
    ),
    "sequence_norm_dim0": (
        norm,
        lambda: SequenceParallel(sequence_dim=0),
        0,
    ),
    "sequence_square": (Square, SequenceParallel, 1),
    "sequence_square_local": (
        Square,
        lambda: SequenceParallel(use_local_output=True),
        1,
    ),
}

INPUTS = dict(
    input_layouts=(Shard(0), None),
    desired_input_layouts=(Replicate(), None),
    input_kwarg_layouts={"mask": Shard(1)},
    desired_input_kwarg_layouts={"mask": Replicate()},
)
OUTPUTS = dict(
    output_layouts=(Shard(0), Shard(1)),
    desired_output_layouts=(Replicate(), Shard(0)),
)
# name: (style, how a, b and mask are cut)
PREPARED = {
    "prepare_input": (lambda: PrepareModuleInput(**INPUTS), (0, None, 1)),
    "prepare_input_local": (
        lambda: PrepareModuleInput(**INPUTS, use_local_output=True),
        (0, None, 1),
    ),
    "prepare_output": (
        lambda: PrepareModuleOutput(**OUTPUTS, use_local_output=False),
        (0, 1, 0),
    ),
    "prepare_output_local": (
        lambda: PrepareModuleOutput(**OUTPUTS),
        (0, 1, 0),
    ),
    "prepare_input_output": (
        lambda: PrepareModuleInputOutput(
            **INPUTS,
            output_layouts=(Replicate(), None),
            desired_output_layouts=(Shard(2), None),
            use_local_output=False,
        ),
        (0, None, 1),
    ),
}


def part(tensor, dim, rank):
    own = tensor if dim is None else tensor.chunk(RANKS, dim)[rank]
    own = own.clone()
    return own.requires_grad_() if own.is_floating_point() else own


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def text(placement):
    if isinstance(placement, Shard):
        return f"S({placement.dim})"
    return "R" if isinstance(placement, Replicate) else str(placement)


def where(tensor):
    if not isinstance(tensor, DTensor):
        return "plain"
    return text(tensor.placements[0])


def stored(tensor):
    return {
        "sizes": list(tensor.shape),
        "values": tensor.detach().flatten().tolist(),
    }


def finish(module, inputs, outputs):
    loss = sum((local(y) ** 2 * wave(local(y).shape, 0.7)).sum() for y in outputs)
    loss.backward()
    return {
        "placements": [where(y) for y in outputs],
        "outputs": [stored(local(y)) for y in outputs],
        "input_grads": [stored(x.grad) for x in inputs if x.requires_grad],
        "grads": {
            name: stored(
                p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
            )
            for name, p in module.named_parameters()
        },
    }


def run_case(name, mesh, rank):
    make, style, dim = CASES[name]
    module = make().double()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(wave(p.shape, 1 + i))
    parallelize_module(module, mesh, style())
    if make is embedding:
        x = torch.arange(8).remainder(7).view(2, 4)
    else:
        x = wave(WHOLE, 0.1)
    x = part(x, dim, rank)
    return finish(module, [x], [module(x)])


def run_prepared(name, mesh, rank):
    style, dims = PREPARED[name]
    module = parallelize_module(Two(), mesh, style())
    inputs = [part(wave(WHOLE, i), dim, rank) for i, dim in enumerate(dims)]
    outputs = module(inputs[0], inputs[1], mask=inputs[2])
    return finish(module, inputs, outputs)


def run_rank(rank, store, folder):
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS
    )
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    results = {name: run_case(name, mesh, rank) for name in CASES}
    results |= {name: run_prepared(name, mesh, rank) for name in PREPARED}
    pathlib.Path(folder, str(rank)).write_text(json.dumps(results))
    dist.destroy_process_group()


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, (f"{folder}/store", folder), nprocs=RANKS)
        ranks = [
            json.loads(pathlib.Path(folder, str(rank)).read_text())
            for rank in range(RANKS)
        ]
    names = [*CASES, *PREPARED]
    cases = {name: [rank[name] for rank in ranks] for name in names}
    data = {"torch": torch.__version__, "cases": cases}
    OUTPUT.write_text(json.dumps(data, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

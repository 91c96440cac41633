#!/usr/bin/env python3
"""Writes losses.json: PyTorch's cross entropy in all its forms.

    .venv-peer/bin/python tests/dtensor/oracle/losses.py

The value and the gradient of the logits, in float64, of F.cross_entropy with
every combination of sizes, reductions, smoothing, weights and targets below.
A z-loss is written out with torch.logsumexp, on the rows that count; a mean
divides it by their number. tests/dtensor/kernels/cross_entropy_test.cpp has the same inputs.
NaN is stored as null.
"""

import itertools
import json
import math
import pathlib

import torch
import torch.nn.functional as F

OUTPUT = pathlib.Path(__file__).with_suffix(".json")
SIZES = [[6, 7], [5, 3], [4], [3, 5, 4], [2, 3, 2, 2]]
Z_LOSS = 0.05
# label smoothing, weighted, ignore_index, kind of target, z_loss
OPTIONS = [
    (0.0, False, -100, "classes", 0.0),
    (0.0, False, 1, "classes", 0.0),
    (0.0, True, -100, "classes", 0.0),
    (0.1, False, 1, "classes", 0.0),
    (0.1, True, 1, "classes", 0.0),
    (0.0, False, -100, "ignored", 0.0),
    (0.1, True, -100, "ignored", 0.0),
    (0.0, False, -100, "probabilities", 0.0),
    (0.1, True, -100, "probabilities", 0.0),
    (0.0, False, 1, "classes", Z_LOSS),
    (0.1, True, 1, "classes", Z_LOSS),
    (0.1, True, -100, "probabilities", Z_LOSS),
]


def chirp(sizes, phase):
    k = torch.arange(math.prod(sizes), dtype=torch.float64)
    return torch.sin(k * k * 0.013 + k * 1.7 + phase).view(sizes)


def target_of(kind, sizes, dim):
    if kind == "probabilities":
        return (chirp(sizes, 0.4) * 2).softmax(dim)
    rows = sizes[:dim] + sizes[dim + 1 :]
    if kind == "ignored":
        return torch.full(rows, -100)
    k = torch.arange(math.prod(rows)).view(rows)
    return (k * 5 + 2) % sizes[dim]


def loss_of(logits, target, weight, reduction, smoothing, ignore, z_loss, dim):
    loss = F.cross_entropy(
        logits,
        target,
        weight=weight,
        ignore_index=ignore,
        reduction=reduction,
        label_smoothing=smoothing,
    )
    if z_loss == 0:
        return loss
    z = z_loss * logits.logsumexp(dim) ** 2
    if not target.is_floating_point():
        z = z * (target != ignore)
        count = (target != ignore).sum()
    else:
        count = z.numel()
    if reduction == "mean":
        return loss + z.sum() / count
    return loss + (z.sum() if reduction == "sum" else z)


def numbers(tensor):
    return [
        None if math.isnan(x) else float(f"{x:.14g}")
        for x in tensor.flatten().tolist()
    ]


def case(sizes, reduction, options):
    smoothing, weighted, ignore, kind, z_loss = options
    dim = 0 if len(sizes) == 1 else 1
    logits = (chirp(sizes, 0.1) * 3).requires_grad_()
    weight = chirp([sizes[dim]], 0.2).abs() + 0.25 if weighted else None
    loss = loss_of(
        logits,
        target_of(kind, sizes, dim),
        weight,
        reduction,
        smoothing,
        ignore,
        z_loss,
        dim,
    )
    (loss * chirp(list(loss.shape), 0.3)).sum().backward()
    return {
        "sizes": sizes,
        "reduction": reduction,
        "label_smoothing": smoothing,
        "weighted": weighted,
        "ignore_index": ignore,
        "target": kind,
        "z_loss": z_loss,
        "loss": numbers(loss.detach()),
        "grad": numbers(logits.grad),
    }


def main():
    cases = [
        case(sizes, reduction, options)
        for sizes, reduction, options in itertools.product(
            SIZES, ["none", "mean", "sum"], OPTIONS
        )
    ]
    lines = ",\n".join(json.dumps(each) for each in cases)
    OUTPUT.write_text(
        f'{{"torch": "{torch.__version__.split("+")[0]}", "cases": [\n{lines}\n]}}\n'
    )


if __name__ == "__main__":
    main()

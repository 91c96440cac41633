#!/usr/bin/env python3
"""Writes ddp_options.json: what PyTorch's DDP computes with each option.

    .venv-peer/bin/python tests/ddp/oracle/ddp_options.py

Trains the models of models.py on 1, 2 and 3 ranks over gloo, for each case with
the options that its name lists ("a+b": both), and stores, in full precision,
every rank's losses and the parameters, buffers and last gradients at the end.
tests/ddp/options_test.cpp compares with them under the same names. Results that
are equal up to the order of additions are stored once. What PyTorch refuses is
stored as the text of its error; NOTES say which of its results are no model.
"""

import contextlib
import json
import logging
import pathlib
import re
import sys
import tempfile
import unittest.mock
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from models import KINDS, MODELS, ROWS, fill_parameters  # noqa: E402

OUTPUT = pathlib.Path(__file__).with_suffix(".json")
STEPS = 4
SGD = {"lr": 0.2, "momentum": 0.9}
WORLD_SIZES = (1, 2, 3)
TINY = 1e-4  # MiB: about one parameter a bucket


def bf16_hook(group, bucket):
    """default_hooks.bf16_compress_hook, which is refused without CUDA."""
    return default_hooks.bf16_compress_hook(group, bucket)


def kind_of_rank_and_step(rank, step):
    return (rank + step) % KINDS


# What a part of a case's name changes of DEFAULT. `ddp` is added to.
DEFAULT = {
    "model": "mlp",
    "ddp": {},
    "kind": kind_of_rank_and_step,
    "micro": 1,  # forwards of a step
    "joint": False,  # their losses are added up before one backward
    "no_sync": None,  # the step from which all but the last are under no_sync()
    "zero": False,  # zero_grad(set_to_none=False)
    "hook": None,
    "ignore": (),
    "delay": (),
    "in_backward": False,  # the optimizer
    "own_parameters": False,  # ranks start from different ones
    "own_buffers": False,
    "streams": False,  # needs stand-ins for an accelerator's streams
}
UNUSED = {"model": "branches", "ddp": {"find_unused_parameters": True}}
SKIP = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}


def mixed(param=None, reduce=None, buffer=None):
    dtypes = {"param_dtype": param, "reduce_dtype": reduce, "buffer_dtype": buffer}
    return {"ddp": {"mixed_precision": _MixedPrecision(**dtypes)}, "streams": True}


FEATURES = {
    "plain": {},
    "zeroed": {"zero": True},
    "bucket_cap_mb": {"ddp": {"bucket_cap_mb": TINY}},
    "bucket_cap_mb_list": {"ddp": {"bucket_cap_mb_list": [TINY, 2 * TINY]}},
    "broadcast_buffers": {"model": "norm", "ddp": {"broadcast_buffers": True}},
    "broadcast_buffers_off": {"model": "norm", "ddp": {"broadcast_buffers": False}},
    "forward_sync_buffers": {"model": "norm", "ddp": {"forward_sync_buffers": True}},
    "forward_sync_buffers_off": {
        "model": "norm",
        "ddp": {"forward_sync_buffers": False},
    },
    "own_buffers": {"own_buffers": True},
    "init_sync": {"own_parameters": True},
    "init_sync_off": {"ddp": {"init_sync": False}},
    "find_unused_parameters": UNUSED,
    "all_used": {"model": "mlp", "kind": lambda rank, step: 2},
    "fixed_graph": {"kind": lambda rank, step: 0},
    "gradient_as_bucket_view": {"ddp": {"gradient_as_bucket_view": True}},
    "static_graph": {"ddp": {"static_graph": True}},
    "static_graph_unused": {
        "model": "branches",
        "ddp": {"static_graph": True},
        "kind": lambda rank, step: 0,
    },
    "static_graph_checkpointed": {
        "model": "checkpointed",
        "ddp": {"static_graph": True},
    },
    "reused": {"model": "reused"},
    "tied": {"model": "tied"},
    "embedding": {"model": "embedding"},
    "sparse_embedding": {"model": "sparse_embedding"},
    "multiple_forwards": {"micro": 2, "joint": True},
    "no_sync": {"micro": 2, "no_sync": 0},
    "no_sync_later": {"micro": 2, "no_sync": 1},
    "delay_all_reduce": {"delay": ("b.weight", "c.weight", "c.bias")},
    "mixed_precision": mixed(torch.float32, torch.float32),
    "mixed_precision_reduce": mixed(None, torch.float32),
    "mixed_precision_bf16": mixed(torch.bfloat16, torch.bfloat16),
    "mixed_precision_bf16_fp32": mixed(torch.bfloat16, torch.float32),
    "mixed_precision_buffers": {
        **mixed(torch.float32, torch.float32, torch.float32),
        "model": "norm",
    },
    "skip_all_reduce_unused_params": {
        "model": "branches",
        "ddp": SKIP,
        "kind": lambda rank, step: 0,
    },
    "batched_grad_copy": {"ddp": {"batched_grad_copy": True}},
    "lazy_bucket_allocation": {"ddp": {"lazy_bucket_allocation": True}},
    "allreduce_hook": {"hook": default_hooks.allreduce_hook},
    "fp16_compress_hook": {"hook": default_hooks.fp16_compress_hook},
    "bf16_compress_hook": {"hook": bf16_hook},
    "ignored_parameters": {"ignore": ("b.weight", "b.bias")},
    "ignored_buffers": {
        "model": "norm",
        "ignore": ("bn.running_mean", "bn.running_var"),
        "own_buffers": True,
    },
    "optimizer_in_backward": {"in_backward": True},
}


def pairs(*names):
    """Every name of the first list with every one of the second."""
    return [f"{a}+{b}" for a in names[0] for b in names[1]]


VIEW = "gradient_as_bucket_view"
CASES = [
    *FEATURES,
    *pairs(["find_unused_parameters"], [
        "all_used", "bucket_cap_mb", "no_sync", VIEW, "static_graph_unused",
        "multiple_forwards", "zeroed", "allreduce_hook", "mixed_precision",
        "batched_grad_copy", "lazy_bucket_allocation",
        "optimizer_in_backward",
    ]),
    *pairs(["static_graph"], [
        "no_sync", "no_sync_later", "multiple_forwards", "reused",
        "bucket_cap_mb_list", VIEW,
        "allreduce_hook", "mixed_precision", "batched_grad_copy",
        "lazy_bucket_allocation", "optimizer_in_backward",
    ]),
    *pairs(["static_graph_unused", "static_graph_checkpointed"], [
        "no_sync", "no_sync_later", "multiple_forwards", VIEW,
    ]),
    *pairs(["no_sync"], [
        "zeroed", VIEW, "forward_sync_buffers", "mixed_precision",
        "allreduce_hook", "delay_all_reduce", "batched_grad_copy",
        "lazy_bucket_allocation", "skip_all_reduce_unused_params",
        "sparse_embedding",
    ]),
    *pairs([VIEW], [
        "zeroed", "mixed_precision", "mixed_precision_bf16", "allreduce_hook",
        "fp16_compress_hook", "delay_all_reduce", "batched_grad_copy",
        "lazy_bucket_allocation", "optimizer_in_backward",
        "skip_all_reduce_unused_params", "ignored_parameters",
    ]),
    f"no_sync+zeroed+{VIEW}",
    f"find_unused_parameters+no_sync+{VIEW}",
    f"find_unused_parameters+zeroed+{VIEW}",
    *pairs(["own_buffers"], [
        "forward_sync_buffers", "forward_sync_buffers_off",
        "broadcast_buffers_off",
    ]),
    *pairs(["batched_grad_copy"], [
        "lazy_bucket_allocation", "allreduce_hook", "mixed_precision", "zeroed",
    ]),
    "ignored_parameters+allreduce_hook",
    "multiple_forwards+reused",
    "forward_sync_buffers_off+mixed_precision_buffers",
]


SPOILT = (
    "the first reduction is of memory that nobody wrote: set_mixed_precision_param_"
    "dtype casts the buckets, their views stay with the memory of before"
)
# Why a result is not what one rank computes.
NOTES = {
    "static_graph+mixed_precision": SPOILT + "; a warm-up does not help",
    "gradient_as_bucket_view+mixed_precision": SPOILT + ", and again once .grad is "
    "a view of a bucket",
    "gradient_as_bucket_view+mixed_precision_bf16": SPOILT + ", and again once "
    ".grad is a view of a bucket",
    "find_unused_parameters+optimizer_in_backward": "parameters that no rank used "
    "are stepped with a gradient of zeros",
}


def setup_of(case):
    setup = {**DEFAULT, "ddp": {}}
    for name in case.split("+"):
        change = FEATURES[name]
        setup["ddp"].update(change.get("ddp", {}))
        setup.update({key: v for key, v in change.items() if key != "ddp"})
    return setup


def build(setup, rank):
    model = MODELS[setup["model"]]().finish()
    if setup["own_parameters"]:
        fill_parameters(model, phase=0.3 + rank)
    if setup["own_buffers"]:
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.add_(0.25 * rank)
    return model


def wrap(model, setup):
    if setup["ignore"]:
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            model, list(setup["ignore"])
        )
    if setup["in_backward"]:
        _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), SGD)
    options = dict(setup["ddp"])
    if setup["delay"]:
        parameters = dict(model.named_parameters())
        options["delay_all_reduce_named_params"] = [
            (name, parameters[name]) for name in setup["delay"]
        ]
        options["param_to_hook_all_reduce"] = parameters["a.weight"]
    ddp = DistributedDataParallel(model, **options)
    if setup["hook"]:
        ddp.register_comm_hook(None, setup["hook"])
    return ddp


def train_step(ddp, setup, rank, world, step):
    """One step's backward passes; the sum of the parts' losses."""
    micro = setup["micro"]
    x = ddp.module.inputs(world * micro * ROWS, step)
    total = 0.0
    kept = []
    for i in range(micro):
        row = (rank * micro + i) * ROWS
        ddp.module.kind = setup["kind"](rank, step + i)
        since = setup["no_sync"]
        waits = since is not None and step >= since and i + 1 < micro
        with ddp.no_sync() if waits else contextlib.nullcontext():
            output = ddp(x[row : row + ROWS])
            loss = output.to(torch.float64).pow(2).mean() / micro
            total += loss.item()
            if setup["joint"]:
                kept.append(loss)
            else:
                loss.backward()
                wait_for_delayed()
    if kept:
        sum(kept).backward()
    return total


def spoil_first_reduction(ddp):
    """With mixed precision the first bucket's views point to its memory of
    before it was cast, and the reduced gradients are what lay in memory: not
    what is to be compared with. From the second backward on they are right."""
    model = ddp.module
    kept = [buffer.clone() for buffer in model.buffers()]
    ddp(model.inputs(ROWS, 0)).sum().backward()
    model.zero_grad()
    for buffer, value in zip(model.buffers(), kept):
        buffer.copy_(value)


def train(setup, rank, world):
    model = build(setup, rank)
    ddp = wrap(model, setup)
    if setup["streams"]:
        spoil_first_reduction(ddp)
    optimizer = torch.optim.SGD(model.parameters(), **SGD)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=not setup["zero"])
        losses.append(train_step(ddp, setup, rank, world, step))
        if not setup["in_backward"]:
            optimizer.step()
    parameters = dict(model.named_parameters())
    return {
        "losses": losses,
        "parameters": {n: flat(p.detach()) for n, p in parameters.items()},
        "gradients": {n: flat(p.grad) for n, p in parameters.items()},
        "buffers": {n: flat(b) for n, b in model.named_buffers()},
    }


def flat(tensor):
    if tensor is None:
        return None
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    return tensor.to(torch.float64).flatten().tolist()


class NoStream(contextlib.nullcontext):
    """A stream or event of a device that has none."""

    def record(self, stream=None):
        pass

    def wait(self, stream=None):
        pass

    def wait_stream(self, stream):
        pass


DELAYED = []


def wait_for_delayed():
    """DDP starts the delayed reduction and never waits for it, which is enough
    on a stream of an accelerator, but not with gloo."""
    for work in DELAYED:
        work.wait()
    DELAYED.clear()


def stand_ins(setup):
    """Mocks for what DDP expects of an accelerator, or of its device."""
    stack = contextlib.ExitStack()
    patch = unittest.mock.patch
    if setup["streams"] or setup["in_backward"]:
        for name in ("Stream", "Event", "accelerator.current_stream"):
            stack.enter_context(patch(f"torch.{name}", NoStream))
    if setup["delay"]:
        all_reduce = dist.all_reduce

        def kept(*args, **kwargs):
            DELAYED.append(all_reduce(*args, **kwargs))
            return DELAYED[-1]

        stack.enter_context(patch("torch.distributed.all_reduce", kept))
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)  # of the delayed buffer
    return stack


def message_of(error):
    text = re.sub(r' at "[^"]*":\d+', "", str(error).splitlines()[0])
    return f"{type(error).__name__}: {text[:200]}"


def attempt(setup, rank, world, method):
    """The result, or {"error": ..}, in a process group of its own."""
    dist.init_process_group(
        "gloo", method, timedelta(seconds=20), rank=rank, world_size=world
    )
    try:
        return train(setup, rank, world)
    except Exception as error:  # noqa: BLE001: whatever it is, it is the result
        return {"error": message_of(error)}
    finally:
        dist.destroy_process_group()


def worker(rank, world, folder, cases):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    results = {}
    for case in cases:
        setup = setup_of(case)
        path = f"file://{folder}/{world}.{case}"
        with stand_ins(setup):
            result = attempt(setup, rank, world, path)
        if setup["streams"] or setup["in_backward"]:
            bare = attempt(setup, rank, world, path + ".bare")
            result["without stand-ins"] = bare.get("error", "works")
        results[case] = result
        if rank == 0:
            print(world, case, result.get("error", result.get("losses")), flush=True)
    pathlib.Path(f"{folder}/{world}.{rank}.json").write_text(json.dumps(results))


def compact(by_rank):
    """Rank 0's result with all ranks' losses, and what others have that differs."""
    errors = [other["error"] for other in by_rank if "error" in other]
    result = {**by_rank[0]}
    if errors or "nan" in json.dumps(by_rank).lower():
        return {"error": errors[0] if errors else "not finite"}
    result["losses"] = [other["losses"] for other in by_rank]
    for rank, other in enumerate(by_rank[1:], 1):
        for kind in ("parameters", "gradients", "buffers"):
            differs = {n: v for n, v in other[kind].items() if v != result[kind][n]}
            if differs:
                others = result.setdefault("others", {})
                others.setdefault(str(rank), {})[kind] = differs
    return result


def are_equal(a, b):
    """Up to the order of additions."""
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-14
    if type(a) is not type(b) or isinstance(a, (str, type(None))):
        return a == b
    if len(a) != len(b):
        return False
    if isinstance(a, dict):
        return all(key in b and are_equal(a[key], b[key]) for key in a)
    return all(are_equal(*both) for both in zip(a, b))


def run_world(world, cases):
    """The results of each case on `world` ranks."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (world, folder, cases), nprocs=world)
        by_rank = [
            json.loads(pathlib.Path(f"{folder}/{world}.{rank}.json").read_text())
            for rank in range(world)
        ]
    return {case: compact([each[case] for each in by_rank]) for case in cases}


def main():
    cases = sys.argv[1:] or CASES
    table, results = {}, []
    for world in WORLD_SIZES:
        for case, result in run_world(world, cases).items():
            equal = (i for i, r in enumerate(results) if are_equal(r, result))
            number = next(equal, len(results))
            if number == len(results):
                results.append(result)
            table.setdefault(case, []).append(number)
    head = {"torch": torch.__version__, "world_sizes": WORLD_SIZES}
    text = json.dumps({**head, "notes": NOTES, "cases": table})[:-1]
    lines = [json.dumps(result, separators=(",", ":")) for result in results]
    text += ',\n"results":[\n' + ",\n".join(lines) + "\n]}\n"
    if not sys.argv[1:]:
        OUTPUT.write_text(text)
    print(len(cases), "cases,", len(results), "results,", len(text), "bytes")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes ddp_options.json: what PyTorch's DDP computes with each option.

    .venv-peer/bin/python tests/ddp/oracle/ddp_options.py

Trains the models of option_models.py on 1, 2 and 3 ranks over gloo, for each
case of option_cases.py with the options that its name lists ("a+b": both), and
stores, in full precision, every rank's losses and the parameters, buffers and
last gradients at the end.
tests/ddp/options/options_test.cpp compares with them under the same names. Results that
are equal up to the order of additions are stored once. What PyTorch refuses is
stored as the text of its error; notes say which of its results are no model.
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
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from option_cases import CASES, NOTES, setup_of  # noqa: E402
from option_models import MODELS, ROWS, fill_parameters  # noqa: E402

OUTPUT = pathlib.Path(__file__).with_suffix(".json")
STEPS = 4
SGD = {"lr": 0.2, "momentum": 0.9}
WORLD_SIZES = (1, 2, 3)


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
            if case in NOTES and "error" not in result:
                result = {"losses": result["losses"]}
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

#!/usr/bin/env python3
"""Writes join.json: what PyTorch's DDP computes under Join.

    .venv-peer/bin/python tests/ddp/oracle/join.py [case ..]

Trains the models of option_models.py over gloo on ranks that have different
numbers of batches, with the options of option_cases.py, and stores, in full
precision, the parameters and buffers that the ranks have at the end.
tests/ddp/join/join_test.cpp compares with them; tests/ddp/join/join_training.h has the
same inputs. What PyTorch refuses, or hangs in, is stored as an error. With names
of cases only these are made anew.
"""

import contextlib
import itertools
import json
import logging
import pathlib
import sys
import tempfile
import warnings
from datetime import timedelta

import torch
import torch._dynamo  # what DDP imports later, before processes fork
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    powerSGD_hook,
)
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.distributed.optim import ZeroRedundancyOptimizer

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import option_cases  # noqa: E402
from ddp_options import (  # noqa: E402
    SGD,
    are_equal,
    build,
    flat,
    message_of,
    spoil_first_reduction,
    stand_ins,
    wrap,
)

OUTPUT = pathlib.Path(__file__).with_suffix(".json")
TIMEOUT = timedelta(seconds=5)
LIMIT = 20  # seconds a process may take
GONE = "a collective does not fit that of another rank, or hangs"
FORK = mp.get_context("fork")

# More than option_cases.FEATURES.
FEATURES = {
    "power_sgd": {"power_sgd": True},
    "stacked_hook": {"power_sgd": True, "stacked": True},
    "clip": {"clip": 0.1},
    "counter": {"joinables": "counter"},
    "zero": {"joinables": "zero"},
}
# As those of tests/ddp/join/join_cases.cpp.
COUNTS = {
    "": [(5, 3), (3, 5), (8, 0), (0, 8), (4, 4), (5, 3, 8), (0, 4, 2), (5,), (0,)],
    "no_sync": [(6, 2), (2, 4), (5, 3), (3, 4), (4, 0, 6), (3, 6, 1)],
    "multiple_forwards": [(6, 2), (2, 4), (4, 0, 6)],
}
CASES = [
    "plain",
    "zeroed",
    "bucket_cap_mb",
    "broadcast_buffers",
    "broadcast_buffers_off",
    "find_unused_parameters",
    "find_unused_parameters+bucket_cap_mb",
    "gradient_as_bucket_view",
    "static_graph",
    "static_graph_unused",
    "static_graph_checkpointed",
    "reused",
    "tied",
    "embedding",
    "sparse_embedding",
    "no_sync",
    "no_sync+gradient_as_bucket_view",
    "static_graph+no_sync",
    "find_unused_parameters+no_sync",
    "multiple_forwards",
    "static_graph+multiple_forwards",
    "mixed_precision",
    "mixed_precision_bf16",
    "allreduce_hook",
    "fp16_compress_hook",
    "bf16_compress_hook",
    "fp16_compress_hook+no_sync",
    "power_sgd",
    "stacked_hook",
    "delay_all_reduce",
    "optimizer_in_backward",
    "ignored_parameters",
    "clip",
    "counter",
    "zero",
]


def setup_of(case):
    own = [name for name in case.split("+") if name in FEATURES]
    others = [name for name in case.split("+") if name not in FEATURES]
    setup = option_cases.setup_of("+".join(others or ["plain"]))
    setup.update({"power_sgd": False, "stacked": False, "clip": None})
    setup["joinables"] = ""
    for name in own:
        setup.update(FEATURES[name])
    return setup


def counts_of(case):
    for name in ("no_sync", "multiple_forwards"):
        if name in case.split("+"):
            return COUNTS[name]
    return COUNTS[""]


def rows_of(model, rank, batch):
    """A rank's batches have 2 to 4 rows."""
    return model.inputs(2 + (rank + batch) % 3, 8 * batch + rank)


class Counter(Joinable):
    """How many ranks had an input, added up over the iterations."""

    class Hook(JoinHook):
        def __init__(self, counter):
            self.counter = counter

        def main_hook(self):
            self.counter.add(0.0)

        def post_hook(self, is_last_joiner):
            self.counter.joined_last = float(is_last_joiner)

    def __init__(self):
        super().__init__()
        self.total, self.joined_last = 0.0, None

    def add(self, one):
        number = torch.tensor([one], dtype=torch.float64)
        dist.all_reduce(number)
        self.total += number.item()

    def __call__(self):
        Join.notify_join_context(self)
        self.add(1.0)

    def join_hook(self, **kwargs):
        return self.Hook(self)

    @property
    def join_device(self):
        return torch.device("cpu")

    @property
    def join_process_group(self):
        return dist.group.WORLD


def register_power_sgd(ddp, setup):
    """Of full rank, so that nothing is lost but digits."""
    state = powerSGD_hook.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=6,
        start_powerSGD_iter=2,
        min_compression_rate=0.1,
        orthogonalization_epsilon=0,
    )
    hook = powerSGD_hook.powerSGD_hook
    if setup["stacked"]:
        hook = default_hooks.fp16_compress_wrapper(hook)
    ddp.register_comm_hook(state, hook)


def train_batch(ddp, setup, rank, batch, kept):
    """Forward, and backward if it is time; whether gradients are reduced."""
    micro = setup["micro"]
    ends = batch % micro == micro - 1
    ddp.module.kind = setup["kind"](rank, batch)
    waits = setup["no_sync"] is not None and not ends
    with ddp.no_sync() if waits else contextlib.nullcontext():
        output = ddp(rows_of(ddp.module, rank, batch))
        loss = output.to(torch.float64).pow(2).mean() / micro
        if setup["joint"]:
            kept.append(loss)
            if ends:
                sum(kept).backward()
                kept.clear()
        else:
            loss.backward()
    return ends


def train(setup, rank, count, initial):
    model = build(setup, rank)
    ddp = wrap(model, setup)
    if setup["power_sgd"]:
        register_power_sgd(ddp, setup)
    if setup["streams"]:
        spoil_first_reduction(ddp)
    joinables, counter = [ddp], Counter()
    if setup["joinables"] == "zero":
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, **SGD
        )
        joinables.append(optimizer)
    else:
        optimizer = torch.optim.SGD(model.parameters(), **SGD)
    if setup["joinables"] == "counter":
        joinables.append(counter)
    kept = []
    with Join(joinables, divide_by_initial_world_size=initial):
        for batch in range(count):
            if not train_batch(ddp, setup, rank, batch, kept):
                continue
            if setup["joinables"] == "counter":
                counter()
            if setup["clip"]:
                torch.nn.utils.clip_grad_norm_(model.parameters(), setup["clip"])
            if not setup["in_backward"]:
                optimizer.step()
            optimizer.zero_grad(set_to_none=not setup["zero"])
    result = {
        "parameters": {n: flat(p.detach()) for n, p in model.named_parameters()},
        "buffers": {n: flat(b) for n, b in model.named_buffers()},
    }
    if setup["joinables"] == "counter":
        result["counter"] = [counter.total, counter.joined_last]
    return result


def attempt(setup, rank, counts, initial, method):
    """The result, or {"error": ..}, in a process group of its own."""
    dist.init_process_group(
        "gloo", method, TIMEOUT, rank=rank, world_size=len(counts)
    )
    try:
        return train(setup, rank, counts[rank], initial)
    except Exception as error:  # noqa: BLE001: whatever it is, it is the result
        return {"error": message_of(error)}
    finally:
        dist.destroy_process_group()


def key_of(counts, initial):
    division = "initial" if initial else "effective"
    return ",".join(map(str, counts)) + " " + division


def worker(rank, folder, case, counts, initial):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    warnings.simplefilter = lambda *_: None  # Join sets one
    logging.disable(logging.WARNING)
    setup = setup_of(case)
    with stand_ins(setup):
        result = attempt(setup, rank, counts, initial, f"file://{folder}/store")
    pathlib.Path(f"{folder}/{rank}.json").write_text(json.dumps(result))


def run(case, counts, initial):
    """In processes of their own: a collective that does not fit ends them."""
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            FORK.Process(target=worker, args=(rank, folder, case, counts, initial))
            for rank in range(len(counts))
        ]
        for process in processes:
            process.start()
        by_rank = []
        for rank, process in enumerate(processes):
            process.join(LIMIT)
            if process.exitcode is None:
                process.kill()
            path = pathlib.Path(f"{folder}/{rank}.json")
            by_rank.append(
                json.loads(path.read_text()) if path.exists() else {"error": GONE}
            )
    return compact(by_rank)


def compact(by_rank):
    """Rank 0's result, and what the others have that differs."""
    errors = [other["error"] for other in by_rank if "error" in other]
    # Addresses of sockets are no result.
    errors = [GONE if "gloo" in text else text for text in errors]
    errors.sort(key=lambda text: text == GONE)
    if errors or "nan" in json.dumps(by_rank).lower():
        return {"error": errors[0] if errors else "not finite"}
    result = {**by_rank[0]}
    for rank, other in enumerate(by_rank[1:], 1):
        for kind in ("parameters", "buffers"):
            differs = {n: v for n, v in other[kind].items() if v != result[kind][n]}
            if differs:
                others = result.setdefault("others", {})
                others.setdefault(str(rank), {})[kind] = differs
        if "counter" in other:
            result["counter"] = result["counter"] + other["counter"]
    return result


def write(runs):
    """Equal results once."""
    table, results = {}, []
    for case, by_key in runs.items():
        for key, result in by_key.items():
            equal = (i for i, r in enumerate(results) if are_equal(r, result))
            number = next(equal, len(results))
            if number == len(results):
                results.append(result)
            table.setdefault(case, {})[key] = number
    text = json.dumps({"torch": torch.__version__, "cases": table})[:-1]
    lines = [json.dumps(result, separators=(",", ":")) for result in results]
    text += ',\n"results":[\n' + ",\n".join(lines) + "\n]}\n"
    OUTPUT.write_text(text)
    return f"{len(results)} results, {len(text)} bytes"


def read():
    if not OUTPUT.exists():
        return {}
    stored = json.loads(OUTPUT.read_text())
    return {
        case: {key: stored["results"][number] for key, number in numbers.items()}
        for case, numbers in stored["cases"].items()
    }


def main():
    cases = sys.argv[1:] or CASES
    runs = read() if sys.argv[1:] else {}
    for case in cases:
        runs[case] = {}
        for counts, initial in itertools.product(counts_of(case), (True, False)):
            result = run(case, counts, initial)
            key = key_of(counts, initial)
            runs[case][key] = result
            print(case, key, result.get("error", "done"), flush=True)
        print(write({name: runs[name] for name in CASES if name in runs}))


if __name__ == "__main__":
    main()

"""The cases of ddp_options.py; tests/ddp/options/option_cases.cpp has the same."""

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel.distributed import _MixedPrecision

from option_models import KINDS

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
    *pairs(["bucket_cap_mb"], ["no_sync", "static_graph", "multiple_forwards"]),
    *pairs(["tied"], ["no_sync", "static_graph", "mixed_precision"]),
    *pairs(["sparse_embedding"], [
        VIEW, "static_graph", "batched_grad_copy", "lazy_bucket_allocation",
    ]),
    "find_unused_parameters+sparse_embedding",
    *pairs(["delay_all_reduce"], [
        "zeroed", "static_graph", "mixed_precision", "batched_grad_copy",
        "lazy_bucket_allocation", "allreduce_hook",
    ]),
    *pairs(["skip_all_reduce_unused_params"], [
        "batched_grad_copy", "lazy_bucket_allocation", "zeroed",
    ]),
    *pairs(["mixed_precision"], [
        "multiple_forwards", "zeroed", "bucket_cap_mb",
        "lazy_bucket_allocation", "allreduce_hook",
    ]),
    *pairs(["optimizer_in_backward"], [
        "allreduce_hook", "mixed_precision",
        "batched_grad_copy", "lazy_bucket_allocation", "static_graph_unused",
    ]),
    *pairs(["ignored_parameters"], [
        "allreduce_hook", "no_sync", "static_graph", "batched_grad_copy",
    ]),
    "fp16_compress_hook+no_sync",
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

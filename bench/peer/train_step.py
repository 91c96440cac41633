"""PyTorch's side of `weft bench step`: one Llama training step over dp x tp ranks.

    torchrun --nproc-per-node 4 bench/peer/train_step.py --dp 2 --tp 2

Written as PyTorch's documentation tells its users to combine DDP and tensor
parallelism. Takes the flags of `weft bench step` and prints one line of JSON
with the same keys from rank 0.
"""

import argparse
import json
import os
import resource
import statistics
import time

STARTED = float(os.environ.get("PEER_T0", time.time()))

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor import parallel as tp
from torch.nn.parallel import DistributedDataParallel


def read_flags():
    parser = argparse.ArgumentParser()
    defaults = {
        "dp": 2, "tp": 2, "dim": 256, "layers": 4, "heads": 8, "kv_heads": 0,
        "ffn_dim": 0, "seq": 128, "batch": 4, "vocab": 256, "steps": 30,
        "warmup": 5, "sp": 1, "threads": 1, "bucket_mb": 25,
        "join": 0,
    }
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--compile", action="store_true")
    # float32 weights and optimizer, products in bfloat16.
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="float32")
    flags = parser.parse_args()
    flags.kv_heads = flags.kv_heads or flags.heads
    flags.ffn_dim = flags.ffn_dim or 4 * flags.dim
    return flags


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
        return x * scale * self.weight


def turn(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


class Attention(nn.Module):
    """Computes with this rank's heads, as PyTorch's tensor parallelism wants."""

    def __init__(self, flags):
        super().__init__()
        self.head_dim = flags.dim // flags.heads
        self.grouped = flags.heads != flags.kv_heads
        kv_dim = flags.kv_heads * self.head_dim
        self.q_proj = nn.Linear(flags.dim, flags.dim, bias=False)
        self.k_proj = nn.Linear(flags.dim, kv_dim, bias=False)
        self.v_proj = nn.Linear(flags.dim, kv_dim, bias=False)
        self.o_proj = nn.Linear(flags.dim, flags.dim, bias=False)

    def split(self, x):
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x, cos, sin):
        q = turn(self.split(self.q_proj(x)), cos, sin)
        k = turn(self.split(self.k_proj(x)), cos, sin)
        v = self.split(self.v_proj(x))
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.grouped)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, flags):
        super().__init__()
        self.gate_proj = nn.Linear(flags.dim, flags.ffn_dim, bias=False)
        self.up_proj = nn.Linear(flags.dim, flags.ffn_dim, bias=False)
        self.down_proj = nn.Linear(flags.ffn_dim, flags.dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, flags):
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(flags.dim), Attention(flags)
        self.mlp_norm, self.mlp = RMSNorm(flags.dim), MLP(flags)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self, flags):
        super().__init__()
        self.embedding = nn.Embedding(flags.vocab, flags.dim)
        self.layers = nn.ModuleList([Layer(flags) for _ in range(flags.layers)])
        self.norm = RMSNorm(flags.dim)
        self.head = nn.Linear(flags.dim, flags.vocab, bias=False)
        head_dim = flags.dim // flags.heads
        inverse = 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
        angles = torch.arange(flags.seq)[:, None] * inverse
        angles = torch.cat([angles, angles], dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(self.norm(x))


def parallelize(model, mesh, sequence_parallel):
    stream = Shard(1) if sequence_parallel else Replicate()
    whole = {"desired_input_layouts": Replicate()}
    plan = {
        "embedding": tp.RowwiseParallel(
            input_layouts=Replicate(), output_layouts=stream),
        "head": tp.ColwiseParallel(
            input_layouts=stream, output_layouts=Shard(-1),
            use_local_output=False),
    }
    layer_plan = {
        "attention.o_proj": tp.RowwiseParallel(output_layouts=stream),
        "mlp.down_proj": tp.RowwiseParallel(output_layouts=stream),
    }
    for name in ["attention.q_proj", "attention.k_proj", "attention.v_proj",
                 "mlp.gate_proj", "mlp.up_proj"]:
        layer_plan[name] = tp.ColwiseParallel()
    if sequence_parallel:
        plan["norm"] = tp.SequenceParallel()
        for norm in ["attention_norm", "mlp_norm"]:
            layer_plan[norm] = tp.SequenceParallel()
        layer_plan["attention"] = tp.PrepareModuleInput(
            input_layouts=(Shard(1), None, None),
            desired_input_layouts=(Replicate(), None, None))
        layer_plan["mlp"] = tp.PrepareModuleInput(
            input_layouts=Shard(1), **whole)
    tp.parallelize_module(model, mesh, plan)
    for layer in model.layers:
        tp.parallelize_module(layer, mesh, layer_plan)


def build(flags, mesh):
    torch.manual_seed(0)
    model = Llama(flags).to(flags.device, getattr(torch, flags.dtype))
    if flags.tp > 1:
        parallelize(model, mesh["tp"], flags.sp)
    if flags.dp > 1:
        if flags.tp > 1:
            from torch.distributed.tensor.parallel.ddp import (
                _pre_dp_module_transform)
            _pre_dp_module_transform(model)
        model = DistributedDataParallel(
            model, process_group=mesh.get_group("dp"),
            bucket_cap_mb=flags.bucket_mb, gradient_as_bucket_view=True)
    return torch.compile(model) if flags.compile else model


def train_step(model, optimizer, data, flags):
    def backward():
        with torch.autocast(
                flags.device, torch.bfloat16, enabled=flags.autocast):
            logits = model(data[:, :-1]).flatten(0, 1).float()
            loss = F.cross_entropy(logits, data[:, 1:].reshape(-1))
        loss.backward()
        return loss
    if flags.tp > 1:
        with tp.loss_parallel():
            loss = backward()
            if hasattr(loss, "full_tensor"):
                loss = loss.full_tensor()
    else:
        loss = backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def join_times(flags, seconds, ends):
    """Steps within a Join beside those between, without warm-up."""
    steps = [1e3 * x for x in seconds[flags.warmup:]]
    joined = [i // flags.join % 2 == 0 for i in range(len(steps))]
    inside = statistics.median(x for x, j in zip(steps, joined) if j)
    outside = statistics.median(x for x, j in zip(steps, joined) if not j)
    return {
        "ms_per_step": round(inside, 3), "ms_without": round(outside, 3),
        "ratio": round(inside / outside, 4),
        "end_ms": round(statistics.median(ends), 3)}


def main():
    flags = read_flags()
    torch.set_num_threads(flags.threads)
    on_gpu = flags.device == "cuda"
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    mesh = init_device_mesh(
        flags.device, (flags.dp, flags.tp), mesh_dim_names=("dp", "tp"))
    model = build(flags, mesh)
    fastest = {"fused": True} if on_gpu else {"foreach": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **fastest)
    generator = torch.Generator().manual_seed(1 + mesh.get_local_rank("dp"))
    losses, seconds, ends, first_step = [], [], [], None

    def run_steps(count):
        nonlocal first_step
        for _ in range(count):
            data = torch.randint(
                0, flags.vocab, (flags.batch, flags.seq + 1),
                generator=generator)
            data = data.to(flags.device)
            begin = time.perf_counter()
            losses.append(train_step(model, optimizer, data, flags))
            seconds.append(time.perf_counter() - begin)
            if first_step is None:
                first_step = time.time() - STARTED

    run_steps(flags.warmup)
    dist.barrier()
    if flags.join == 0:
        run_steps(flags.steps)
    for i in range(0, flags.steps if flags.join else 0, flags.join or 1):
        joins = i // flags.join % 2 == 0
        with model.join(enable=joins):
            run_steps(flags.join)
            last = time.perf_counter()
        if joins:
            ends.append(1e3 * (time.perf_counter() - last))
    peak = torch.tensor(
        [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024])
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        ms = 1e3 * statistics.median(seconds[flags.warmup:])
        tokens = flags.dp * flags.batch * flags.seq
        print(json.dumps({
            "peer": "pytorch", "torch": torch.__version__,
            "device": flags.device, "dtype": flags.dtype,
            "autocast": flags.autocast, "dp": flags.dp, "tp": flags.tp,
            "engine": "compile" if flags.compile else "ddp",
            "ms_per_step": round(ms, 2),
            "tokens_per_s": round(tokens / ms * 1e3),
            "first_step_s": round(first_step, 3),
            "peak_rss_mb": round(peak.item()),
            "losses": [round(x, 4) for x in losses[:3] + losses[-1:]],
            **({"join": join_times(flags, seconds, ends)} if flags.join else {}),
            **({"peak_device_mb": round(
                torch.cuda.max_memory_allocated() / 2**20)} if on_gpu else {}),
        }))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes tp_traffic.json: what PyTorch's tensor parallelism sends for the
models of models/.

    .venv-peer/bin/python tests/integration/oracle/tp_traffic.py

Each is written here as PyTorch's tutorials write models for tensor parallelism
(attention computes with this rank's heads), with the plan that models/
has, put so that PyTorch sends least: a block's input is prepared once
(PrepareModuleInput), not by each of the Linears that share it. Two and three
gloo ranks run a step; CommDebugMode counts the collectives, and those of a
step are told apart as forward, backward and gradients: what backward left
pending (norms under sequence parallelism), which an optimizer would have to
sum. Bytes are those of a rank's larger side, as Weft's ledger counts them.
Losses and gradients are checked against one rank.

The experts of a mixture have no PyTorch peer: here the feed-forward of "moe"
is a router without experts, which leaves attention and the rest of the model.

tests/integration/tp_traffic_test.cpp reads the file.
"""

import contextlib
import copy
import itertools
import json
import pathlib
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

OUTPUT = pathlib.Path(__file__).with_suffix(".json")
# Those of tp_traffic_test.cpp: heads that two and three ranks share, logits
# that are larger than all else.
BATCH, DIM, HEADS, FFN, VOCABULARY, CLASSES = 2, 24, 6, 48, 300, 3000
IMAGE, PATCH, EXPERTS = 8, 2, 6


class Attention(nn.Module):
    def __init__(self, bias, causal, out):
        super().__init__()
        self.causal, self.out = causal, out
        for name in ("q_proj", "k_proj", "v_proj", out):
            self.add_module(name, nn.Linear(DIM, DIM, bias=bias))

    def forward(self, x):
        q, k, v = (
            layer(x).unflatten(-1, (-1, DIM // HEADS)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return getattr(self, self.out)(y.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(DIM, FFN, bias=False)
        self.up_proj = nn.Linear(DIM, FFN, bias=False)
        self.down_proj = nn.Linear(FFN, DIM, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Gelu(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.names = first, second
        self.add_module(first, nn.Linear(DIM, FFN))
        self.add_module(second, nn.Linear(FFN, DIM))

    def forward(self, x):
        first, second = (getattr(self, name) for name in self.names)
        return second(F.gelu(first(x)))


class Router(nn.Module):
    """What is left of a mixture without its experts."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, EXPERTS, bias=False)

    def forward(self, x):
        probabilities = torch.softmax(self.gate(x), -1)
        return (x.unflatten(-1, (EXPERTS, -1)) * probabilities[..., None]).flatten(-2)


class Block(nn.Module):
    def __init__(self, norm, attention, mlp):
        super().__init__()
        self.norm_1, self.attention = norm(), attention()
        self.norm_2, self.mlp = norm(), mlp()

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


def run_blocks(blocks, x, recomputed):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False) if recomputed else block(x)
    return x


class Positions(nn.Module):
    """Learned, as many as the sequence is long."""

    def __init__(self, length):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, length, DIM))

    def forward(self):
        # A view: hooks see no parameter pass.
        return self.weight.view_as(self.weight)


class Language(nn.Module):
    """Llama, GPT-2 or what is left of a mixture."""

    def __init__(self, kind, layers, tied, length):
        super().__init__()
        gpt2 = kind == "gpt2"
        mlp = {
            "llama": SwiGLU, "moe": Router, "gpt2": lambda: Gelu("c_fc", "c_proj"),
        }[kind]
        norm = (lambda: nn.LayerNorm(DIM)) if gpt2 else (lambda: nn.RMSNorm(DIM))
        self.embed = nn.Embedding(VOCABULARY, DIM)
        self.positions = Positions(length) if gpt2 else None
        self.blocks = nn.ModuleList(
            Block(norm, lambda: Attention(gpt2, True, "o_proj"), mlp)
            for _ in range(layers)
        )
        self.norm = norm()
        self.head = nn.Linear(DIM, VOCABULARY, bias=False)
        self.tied = tied
        self.tie()

    def tie(self):
        if self.tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens, recomputed):
        x = self.embed(tokens)
        if self.positions is not None:
            x = x + self.positions()
        return self.head(self.norm(run_blocks(self.blocks, x, recomputed)))


class VitEmbeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 1, DIM))
        self.positions = nn.Parameter(
            torch.randn(1, (IMAGE // PATCH) ** 2 + 1, DIM))
        self.projection = nn.Linear(PATCH * PATCH, DIM)

    def forward(self, pixels):
        patches = F.unfold(pixels, PATCH, stride=PATCH).transpose(1, 2)
        cls = self.cls_token.expand(pixels.shape[0], -1, -1)
        return torch.cat([cls, self.projection(patches)], 1) + self.positions


class VitBody(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.embeddings = VitEmbeddings()
        self.blocks = nn.ModuleList(
            Block(
                lambda: nn.LayerNorm(DIM),
                lambda: Attention(True, False, "o_proj"),
                lambda: Gelu("fc1", "fc2"),
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(DIM)

    def forward(self, pixels, recomputed):
        return self.norm(
            run_blocks(self.blocks, self.embeddings(pixels), recomputed))


class Vit(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.vit = VitBody(layers)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, pixels, recomputed):
        return self.head(self.vit(pixels, recomputed)[:, 0])


class Mlp(nn.Module):
    def __init__(self, layers):
        super().__init__()
        widths = [IMAGE * IMAGE] + [FFN] * layers
        self.layers = nn.ModuleList(
            nn.Linear(*pair) for pair in itertools.pairwise(widths))
        self.head = nn.Linear(FFN, CLASSES)

    def forward(self, pixels, recomputed):
        x = pixels.flatten(1)
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


def logits_layout(case):
    """That of the head's output, which stays a DTensor for loss_parallel."""
    cut = case["loss_parallel"]
    return {
        "output_layouts": Shard(-1) if cut else Replicate(),
        "use_local_output": not cut,
    }


def block_plan(case, names):
    """Of blocks and the norm after them. Under sequence parallelism all of the
    stream are DTensors, which know how long a sequence is that no number of
    ranks divides."""
    cut = case["sequence_parallel"]
    stream = Shard(1) if cut else Replicate()
    whole = PrepareModuleInput(
        input_layouts=stream, desired_input_layouts=Replicate())
    rows = RowwiseParallel(output_layouts=stream, use_local_output=not cut)
    plan = {"attention": whole, "attention.o_proj": rows}
    for name in ("q_proj", "k_proj", "v_proj"):
        plan["attention." + name] = ColwiseParallel()
    if names:
        plan["mlp"] = whole
        plan |= {"mlp." + name: ColwiseParallel() for name in names[:-1]}
        plan["mlp." + names[-1]] = rows
    if cut:
        plan |= {"norm_1": SequenceParallel(), "norm_2": SequenceParallel()}
        if not names:
            plan["mlp.gate"] = SequenceParallel()
    return plan


MLP_NAMES = {
    "llama": ("gate_proj", "up_proj", "down_proj"), "moe": (),
    "gpt2": ("c_fc", "c_proj"), "vit": ("fc1", "fc2"),
}


def parallelize_blocks(body, mesh, case):
    plan = block_plan(case, MLP_NAMES[case["model"]])
    for block in body.blocks:
        parallelize_module(block, mesh, plan)
    if case["sequence_parallel"]:
        parallelize_module(body.norm, mesh, SequenceParallel())


def cut_output():
    """Of what every rank computes whole."""
    return PrepareModuleOutput(
        output_layouts=Replicate(), desired_output_layouts=Shard(1),
        use_local_output=False)


def parallelize_language(model, mesh, case):
    cut = case["sequence_parallel"]
    stream = Shard(1) if cut else Replicate()
    embed = RowwiseParallel(
        input_layouts=Replicate(), output_layouts=stream,
        use_local_output=not cut)
    head = ColwiseParallel(input_layouts=stream, **logits_layout(case))
    parallelize_module(model, mesh, {"embed": embed, "head": head})
    model.tie()
    parallelize_blocks(model, mesh, case)
    if cut and model.positions is not None:
        parallelize_module(model.positions, mesh, cut_output())


def parallelize_vit(model, mesh, case):
    parallelize_module(model.head, mesh, ColwiseParallel(**logits_layout(case)))
    parallelize_blocks(model.vit, mesh, case)
    if case["sequence_parallel"]:
        parallelize_module(model.vit.embeddings, mesh, cut_output())
        whole = PrepareModuleOutput(
            output_layouts=Shard(1), desired_output_layouts=Replicate())
        parallelize_module(model.vit, mesh, whole)


def parallelize_mlp(model, mesh, case):
    for i, layer in enumerate(model.layers):
        style = RowwiseParallel() if i % 2 else ColwiseParallel()
        parallelize_module(layer, mesh, style)
    style = RowwiseParallel if len(model.layers) % 2 else ColwiseParallel
    parallelize_module(model.head, mesh, style(**logits_layout(case)))


def make_model(case):
    torch.manual_seed(0)
    kind, layers = case["model"], case["layers"]
    if kind == "vit":
        return Vit(layers), parallelize_vit
    if kind == "mlp":
        return Mlp(layers), parallelize_mlp
    model = Language(kind, layers, case["tied"], case["length"])
    return model, parallelize_language


def batch_of(case):
    generator = torch.Generator().manual_seed(1)
    if case["model"] in ("vit", "mlp"):
        pixels = torch.randn(BATCH, 1, IMAGE, IMAGE, generator=generator)
        return pixels, torch.randint(CLASSES, (BATCH,), generator=generator)
    tokens = torch.randint(
        VOCABULARY, (BATCH, case["length"] + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


COLLECTIVES = torch.ops._c10d_functional
KINDS = {
    COLLECTIVES.all_gather_into_tensor: "all_gather",
    COLLECTIVES.all_reduce: "all_reduce",
    COLLECTIVES.all_to_all_single: "all_to_all",
    COLLECTIVES.reduce_scatter_tensor: "reduce_scatter",
}


class Sizes(TorchDispatchMode):
    """Calls and bytes of collectives by kind."""

    def __init__(self):
        super().__init__()
        self.sent = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        kind = KINDS.get(func.overloadpacket)
        if kind is not None:
            sides = (args[0], out)
            size = max(t.numel() * t.element_size() for t in sides)
            calls, total = self.sent.get(kind, (0, 0))
            self.sent[kind] = calls + 1, total + size
        return out


def counted(run, recomputes=False):
    """CommDebugMode fails where a block is run again in backward: it takes the
    block for the whole model, and looks for the names of before."""
    sizes, mode = Sizes(), CommDebugMode()
    with contextlib.nullcontext() if recomputes else mode, sizes:
        result = run()
    calls = sum(count for count, _ in sizes.sent.values())
    assert recomputes or calls == mode.get_total_counts(), sizes.sent
    return result, sizes.sent


def loss_of(model, case, batch):
    logits = model(batch[0], case["checkpoint"])
    targets = batch[1].flatten()
    return F.cross_entropy(
        logits.flatten(0, -2), targets, reduction="sum") / targets.numel()


def finish_gradients(model):
    """What an optimizer would do first."""
    for parameter in model.parameters():
        grad = parameter.grad
        if isinstance(grad, DTensor) and grad.placements != parameter.placements:
            parameter.grad = grad.redistribute(placements=parameter.placements)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def check(model, loss, alone, case, batch):
    expected = loss_of(alone, case, batch)
    expected.backward()
    torch.testing.assert_close(whole(loss), expected, rtol=1e-5, atol=0)
    wanted = dict(alone.named_parameters())
    for name, parameter in model.named_parameters():
        grad = whole(parameter.grad)
        error = (grad - wanted[name].grad).norm()
        # A softmax does not see the bias of keys.
        floor = 1e-6 if name.endswith("k_proj.bias") else 0
        assert error <= 1e-4 * wanted[name].grad.norm() + floor, (case, name)


def run_case(mesh, case):
    model, parallelize = make_model(case)
    alone = copy.deepcopy(model)
    parallelize(model, mesh, case)
    batch = batch_of(case)
    scope = loss_parallel() if case["loss_parallel"] else contextlib.nullcontext()
    with scope:
        loss, forward = counted(lambda: loss_of(model, case, batch))
        _, backward = counted(loss.backward, case["checkpoint"])
    _, gradients = counted(lambda: finish_gradients(model))
    check(model, loss, alone, case, batch)
    return dict(
        case, ranks=mesh.size(), forward=forward, backward=backward,
        gradients=gradients)


def cases():
    models = [
        ("llama", False), ("llama", True), ("gpt2", True), ("moe", False),
        ("moe", True), ("vit", False), ("mlp", False),
    ]
    both = (False, True)
    for (model, tied), cut, loss, recomputed in itertools.product(
            models, both, both, both):
        if model == "mlp" and (cut or recomputed):
            continue
        lengths = (0,) if model in ("vit", "mlp") else (6, 7)
        for length, layers in itertools.product(lengths, (2, 3, 4)):
            if layers < 4 or model == "mlp":
                yield dict(
                    model=model, layers=layers, length=length, tied=tied,
                    sequence_parallel=cut, loss_parallel=loss,
                    checkpoint=recomputed)


def run_rank(rank, ranks, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store{ranks}", rank=rank,
        world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    results = [run_case(mesh, case) for case in cases()]
    if rank == 0:
        pathlib.Path(folder, str(ranks)).write_text(json.dumps(results))
    dist.destroy_process_group()


def main():
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (2, 3):
            mp.spawn(run_rank, (ranks, folder), nprocs=ranks)
            results += json.loads(pathlib.Path(folder, str(ranks)).read_text())
    lines = ",\n".join(json.dumps(r, separators=(",", ":")) for r in results)
    OUTPUT.write_text(
        f'{{"torch": "{torch.__version__}", "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()

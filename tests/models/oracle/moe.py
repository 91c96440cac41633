"""Makes moe.json: what transformers' Mixtral gives for weights, tokens and
targets that moe_test.cpp makes by the same formulas.

Needs torch and transformers: python tests/models/oracle/moe.py
"""

import json
import pathlib

import torch
import transformers
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

CONFIG = dict(
    vocab_size=29,
    hidden_size=16,
    intermediate_size=12,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_local_experts=4,
    num_experts_per_tok=2,
    max_position_embeddings=8,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    sliding_window=None,
    attn_implementation="eager",
    experts_implementation="eager",
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
)
BATCH, LENGTH = 3, 7
AUX_COEF, Z_COEF = 0.5, 0.1


def wave(count, phase):
    i = torch.arange(count, dtype=torch.float64)
    return torch.sin(0.013 * i * i + 0.7 * i + phase)


def fill(model):
    for position, (name, parameter) in enumerate(sorted(model.named_parameters())):
        values = wave(parameter.numel(), position).view(parameter.shape)
        norm = name.endswith("norm.weight")
        with torch.no_grad():
            parameter.copy_(1 + 0.1 * values if norm else 0.4 * values)


def main():
    config = transformers.MixtralConfig(**CONFIG)
    model = transformers.MixtralForCausalLM(config).double().train()
    fill(model)
    count = BATCH * LENGTH
    tokens = (torch.arange(count) * 7919 % 29).view(BATCH, LENGTH)
    targets = ((torch.arange(count) * 7919 + 3) % 29).view(BATCH, LENGTH)
    output = model(tokens, output_router_logits=True, use_cache=False)
    loss = torch.nn.functional.cross_entropy(
        output.logits.flatten(0, 1), targets.flatten(), reduction="sum"
    )
    layers = len(output.router_logits)
    balance, z = 0, 0
    for logits in output.router_logits:
        for sample in logits.view(BATCH, LENGTH, -1):
            # Its shares add up to k.
            balance = balance + load_balancing_loss_func(
                (sample,), config.num_local_experts, config.num_experts_per_tok
            ) / (config.num_experts_per_tok * layers)
            z = z + torch.logsumexp(sample, -1).square().mean() / layers
    (loss + AUX_COEF * balance + Z_COEF * z).backward()
    gradients = {}
    for name, parameter in sorted(model.named_parameters()):
        grad = parameter.grad.flatten()
        gradients[name] = [
            grad.norm().item(),
            grad.dot(wave(grad.numel(), 0.5)).item(),
        ]
    stored = dict(
        torch=torch.__version__,
        transformers=transformers.__version__,
        logits=output.logits.flatten().tolist(),
        loss=loss.item(),
        balance=balance.item(),
        z=z.item(),
        gradients=gradients,
    )
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(stored, indent=1) + "\n")


main()

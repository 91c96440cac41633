"""Makes models.json: what transformers' GPT-2, Llama (with scaled rotary
frequencies) and ViT give for weights and inputs that models_test.cpp makes by
the same formulas.

Needs torch and transformers: python tests/models/oracle/models.py
"""

import json
import pathlib

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

VOCABULARY, BATCH, LENGTH, CLASSES = 29, 3, 7, 5
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)
# Frequencies of all three kinds among the four of a head of 8.
SMALL_LLAMA3 = dict(LLAMA3, factor=4.0, original_max_position_embeddings=64)
LINEAR = dict(rope_type="linear", rope_theta=10000.0, factor=4.0)


def wave(count, phase):
    i = torch.arange(count, dtype=torch.float64)
    return torch.sin(0.013 * i * i + 0.7 * i + phase)


def is_norm(name):
    return name.endswith(".weight") and ("norm" in name or ".ln_" in name)


def fill(parameters):
    """By name: 1 + a tenth of the wave for norms, else 0.4 of it."""
    for position, name in enumerate(sorted(parameters)):
        values = wave(parameters[name].numel(), position)
        values = values.view(parameters[name].shape)
        with torch.no_grad():
            parameters[name].copy_(1 + 0.1 * values if is_norm(name) else 0.4 * values)


def gpt2_parameters(model):
    """Those of models/gpt2.h, and how they get into Hugging Face's layers."""
    split, put = {}, []
    for name, parameter in model.named_parameters():
        if ".c_attn." in name:
            for i, which in enumerate("qkv"):
                part = parameter.data.chunk(3, -1)[i].T
                key = name.replace("c_attn", which + "_proj")
                split[key] = part.contiguous()
                put.append((part, split[key]))
        elif ".c_" in name and name.endswith(".weight"):
            split[name] = parameter.data.T.contiguous()
            put.append((parameter.data.T, split[name]))
        else:
            split[name] = parameter.data
    return split, put


def gpt2_gradients(model):
    gradients = {}
    for name, parameter in model.named_parameters():
        if ".c_attn." in name:
            for i, which in enumerate("qkv"):
                part = parameter.grad.chunk(3, -1)[i]
                gradients[name.replace("c_attn", which + "_proj")] = part.T
        elif ".c_" in name and name.endswith(".weight"):
            gradients[name] = parameter.grad.T
        else:
            gradients[name] = parameter.grad
    return gradients


def summary(gradient):
    flat = gradient.flatten()
    return [flat.norm().item(), flat.dot(wave(flat.numel(), 0.5)).item()]


def record(logits, targets, model, gradients):
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), reduction="sum"
    )
    loss.backward()
    return dict(
        logits=logits.flatten().tolist(),
        loss=loss.item(),
        gradients={name: summary(g) for name, g in gradients(model).items()},
    )


def plain_gradients(model):
    return {name: p.grad for name, p in model.named_parameters()}


def tokens_and_targets():
    count = torch.arange(BATCH * LENGTH)
    tokens = (count * 7919 % VOCABULARY).view(BATCH, LENGTH)
    return tokens, ((count * 7919 + 3) % VOCABULARY).view(BATCH, LENGTH)


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4, n_inner=24,
        n_positions=9, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=None, eos_token_id=None, attn_implementation="eager",
    )
    model = transformers.GPT2LMHeadModel(config).double()
    split, put = gpt2_parameters(model)
    fill(split)
    for place, values in put:
        place.copy_(values)
    tokens, targets = tokens_and_targets()
    return record(model(tokens).logits, targets, model, gpt2_gradients)


def llama(rope):
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=24,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, rms_norm_eps=1e-5,
        tie_word_embeddings=False, attn_implementation="eager",
        rope_parameters=rope,
    )
    model = transformers.LlamaForCausalLM(config).double()
    fill(dict(model.named_parameters()))
    tokens, targets = tokens_and_targets()
    return record(model(tokens).logits, targets, model, plain_gradients)


def vit():
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=24, image_size=8, patch_size=4, num_channels=2,
        num_labels=CLASSES, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, layer_norm_eps=1e-12,
        attn_implementation="eager",
    )
    model = transformers.ViTForImageClassification(config).double()
    fill(dict(model.named_parameters()))
    pixels = wave(BATCH * 2 * 8 * 8, 0.25).view(BATCH, 2, 8, 8)
    return record(
        model(pixels).logits, torch.arange(BATCH) * 2 % CLASSES, model,
        plain_gradients,
    )


def frequencies(rope, head_dim):
    config = transformers.LlamaConfig(
        hidden_size=4 * head_dim, num_attention_heads=4, rope_parameters=dict(rope),
    )
    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, None)[0].double().tolist()


def main():
    stored = dict(
        versions=f"torch {torch.__version__}, transformers {transformers.__version__}",
        gpt2=gpt2(),
        llama_linear=llama(LINEAR),
        llama3=llama(SMALL_LLAMA3),
        vit=vit(),
        frequencies=dict(
            linear=frequencies(LINEAR, 128),
            llama3=frequencies(dict(LLAMA3, rope_theta=500000.0), 128),
            llama3_small=frequencies(SMALL_LLAMA3, 8),
        ),
    )
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(stored) + "\n")


if __name__ == "__main__":
    main()

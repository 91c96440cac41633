"""Makes hub/: small models as transformers saves them, and hub.json: what they
give for tokens that hub_load_test.cpp makes by the same formula.

Needs torch and transformers: python tests/hf/oracle/hub.py
"""

import json
import pathlib

import torch
import transformers

HERE = pathlib.Path(__file__).parent
VOCABULARY, BATCH, LENGTH = 331, 4, 40
# Every so many of the logits is kept.
STRIDE = 97
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
LLAMA = dict(
    vocab_size=VOCABULARY,
    intermediate_size=152,
    num_hidden_layers=1,
    num_attention_heads=6,
    max_position_embeddings=LENGTH,
    initializer_range=0.3,
    rms_norm_eps=1e-5,
    bos_token_id=None,
    eos_token_id=None,
)
MODELS = {
    "llama": (
        transformers.LlamaConfig(hidden_size=12, num_key_value_heads=1, **LLAMA),
        torch.float32,
        "1GB",
    ),
    "llama_tied": (
        transformers.LlamaConfig(
            hidden_size=24,
            num_key_value_heads=6,
            tie_word_embeddings=True,
            rope_parameters=LLAMA3,
            **LLAMA,
        ),
        torch.bfloat16,
        "10KB",
    ),
    "gpt2": (
        transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=12,
            n_layer=1,
            n_head=6,
            n_inner=152,
            n_positions=LENGTH,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=None,
        ),
        torch.float32,
        "1GB",
    ),
    "mixtral": (
        transformers.MixtralConfig(
            vocab_size=VOCABULARY,
            hidden_size=12,
            intermediate_size=20,
            num_hidden_layers=1,
            num_attention_heads=6,
            num_key_value_heads=6,
            num_local_experts=3,
            max_position_embeddings=LENGTH,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=None,
        ),
        torch.bfloat16,
        "1GB",
    ),
}


def tokens(shift):
    i = torch.arange(BATCH * LENGTH)
    return ((i * i * 7 + i * 101 + shift) % VOCABULARY).view(BATCH, LENGTH)


def randomize(model):
    """Biases and norms too, which transformers begins with 0 and 1."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))


def main():
    stored = {}
    for name, (config, dtype, shard_size) in MODELS.items():
        torch.manual_seed(len(stored))
        model = transformers.AutoModelForCausalLM.from_config(config)
        randomize(model)
        folder = HERE / "hub" / name
        model.to(dtype).save_pretrained(folder, max_shard_size=shard_size)
        # In float, as Weft computes.
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32
        ).eval()
        with torch.no_grad():
            logits = model(tokens(0)).logits
        loss = torch.nn.functional.cross_entropy(
            logits.double().flatten(0, 1), tokens(3).flatten()
        )
        stored[name] = dict(
            loss=loss.item(),
            logits=[float(f"{x:.7g}") for x in logits.flatten()[::STRIDE]],
        )
    (HERE / "hub.json").write_text(json.dumps(stored, indent=1) + "\n")


main()

"""Makes generate.json: what transformers' generate() continues small models
with, and what its warpers leave of logits. generate_test.cpp makes the same
weights, by the formulas of models.py.

Needs torch and transformers: python tests/models/oracle/generate.py
"""

import json
import pathlib

import torch
import transformers
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from models import fill, gpt2_parameters, wave

VOCABULARY, LENGTH = 29, 24
PROMPTS = [[3, 17, 5, 11], [28, 1]]


def llama():
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=24,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, rms_norm_eps=1e-5,
        tie_word_embeddings=False, attn_implementation="eager",
        bos_token_id=None, eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).double().eval()
    fill(dict(model.named_parameters()))
    return model


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4, n_inner=24,
        n_positions=64, bos_token_id=None, eos_token_id=None,
        attn_implementation="eager",
    )
    model = transformers.GPT2LMHeadModel(config).double().eval()
    split, put = gpt2_parameters(model)
    fill(split)
    for place, values in put:
        place.copy_(values)
    return model


def greedy(model, prompt, **more):
    output = model.generate(
        torch.tensor([prompt]), max_new_tokens=LENGTH, do_sample=False, **more
    )
    return output[0, len(prompt):].tolist()


def continued(model):
    plain = [greedy(model, prompt) for prompt in PROMPTS]
    # A token that comes in the middle ends the next.
    end = plain[0][LENGTH // 3]
    ended = greedy(model, PROMPTS[0], eos_token_id=end, pad_token_id=end)
    with torch.no_grad():
        logits = model(torch.tensor([PROMPTS[0]])).logits[0, -1]
    return dict(greedy=plain, eos=end, ended=ended, logits=logits.tolist())


def warped():
    # The last two of the likeliest five are alike.
    logits = 3 * wave(40, 0.3).float().unsqueeze(0)
    order = logits[0].argsort(descending=True)
    logits[0, order[5]] = logits[0, order[4]]
    cases = []
    for temperature, top_k, top_p in [
        (1.0, 0, 1.0), (0.5, 0, 1.0), (1.0, 5, 1.0), (1.0, 1, 1.0),
        (1.0, 100, 1.0), (1.0, 0, 0.6), (1.0, 0, 0.001), (1.0, 0, 0.999),
        (0.7, 12, 0.8), (2.5, 12, 0.5),
    ]:
        scores = logits
        if temperature != 1.0:
            scores = TemperatureLogitsWarper(temperature)(None, scores)
        if top_k > 0:
            scores = TopKLogitsWarper(top_k)(None, scores)
        if top_p < 1.0:
            scores = TopPLogitsWarper(top_p)(None, scores)
        values = [x if x > -1e30 else None for x in scores[0].tolist()]
        cases.append(dict(
            temperature=temperature, top_k=top_k, top_p=top_p, scores=values
        ))
    return dict(logits=logits[0].tolist(), cases=cases)


def main():
    stored = dict(
        versions=f"torch {torch.__version__}, transformers {transformers.__version__}",
        prompts=PROMPTS,
        llama=continued(llama()),
        gpt2=continued(gpt2()),
        warped=warped(),
    )
    path = pathlib.Path(__file__).with_suffix(".json")
    path.write_text(json.dumps(stored) + "\n")


if __name__ == "__main__":
    main()

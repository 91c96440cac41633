"""Makes a small Llama with a tokenizer, as a Hugging Face folder.

    .venv-peer/bin/python bench/peer/small_llama.py FOLDER [--steps 300]

For trying what docs/hub.md shows without a download: a byte-level BPE of 1,024
tokens and a Llama of 1 M parameters, trained by PyTorch on this project's
documentation for a minute or two.
"""

import argparse
import glob

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END = "<|endoftext|>"
SEQUENCE = 128
BATCH = 16


def train_tokenizer(paths):
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train(paths, vocab_size=1024, special_tokens=[END],
                    show_progress=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer, eos_token=END)


def make_model(tokenizer):
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=1024, hidden_size=128, intermediate_size=384,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=SEQUENCE, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id))


def train(model, tokens, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(steps):
        starts = torch.randint(0, len(tokens) - SEQUENCE, (BATCH,))
        batch = torch.stack([tokens[at:at + SEQUENCE] for at in starts])
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}/{steps}  loss {loss.item():.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    paths = sorted(glob.glob("docs/*.md"))
    tokenizer = train_tokenizer(paths)
    text = END.join(open(path, encoding="utf-8").read() for path in paths)
    tokens = torch.tensor(tokenizer(text)["input_ids"])
    model = make_model(tokenizer)
    train(model, tokens, options.steps)
    model.save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)


if __name__ == "__main__":
    main()

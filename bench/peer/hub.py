"""Compares Weft with transformers on models that transformers makes, both ways.

For each: a model with random weights, saved by transformers; `weft eval` of its
folder on meshes of 1 to 4 ranks against transformers' loss; the same through a
checkpoint and back, `weft checkpoint import` and `export`, as transformers loads
it: no names missing, unexpected or misshapen, and its logits. A Weft run with
adapters is exported too and its loss compared.

Needs torch and transformers, and Weft built:
    python bench/peer/hub.py [--bin build/bin]
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers

VOCABULARY, LENGTH, WINDOWS = 331, 40, 7
MESHES = ((1, 1), (1, 2), (1, 3), (2, 2))
LLAMA = dict(
    vocab_size=VOCABULARY,
    hidden_size=96,
    intermediate_size=152,
    num_hidden_layers=3,
    num_attention_heads=12,
    num_key_value_heads=6,
    max_position_embeddings=64,
    initializer_range=0.1,
    rms_norm_eps=1e-5,
    bos_token_id=None,
    eos_token_id=None,
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
LINEAR = dict(rope_type="linear", rope_theta=10000.0, factor=2.0)


def configs():
    for tied in (False, True):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for rope in (None, LINEAR, LLAMA3):
                name = "llama {} {} {}".format(
                    "tied" if tied else "untied",
                    str(dtype).removeprefix("torch."),
                    rope["rope_type"] if rope else "plain",
                )
                yield name, dtype, transformers.LlamaConfig(
                    tie_word_embeddings=tied, rope_parameters=rope, **LLAMA
                )
    for dtype in (torch.float32, torch.bfloat16):
        yield f"gpt2 {str(dtype).removeprefix('torch.')}", dtype, (
            transformers.GPT2Config(
                vocab_size=VOCABULARY,
                n_embd=96,
                n_layer=3,
                n_head=12,
                n_inner=152,
                n_positions=64,
                initializer_range=0.1,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
        yield f"mixtral {str(dtype).removeprefix('torch.')}", dtype, (
            transformers.MixtralConfig(
                vocab_size=VOCABULARY,
                hidden_size=96,
                intermediate_size=76,
                num_hidden_layers=2,
                num_attention_heads=12,
                num_key_value_heads=6,
                num_local_experts=4,
                max_position_embeddings=64,
                initializer_range=0.1,
                bos_token_id=None,
                eos_token_id=None,
            )
        )


def load(folder):
    """In float; fails if a name or a shape does not fit."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    wrong = {kind: names for kind, names in info.items() if names}
    assert not wrong, (folder, wrong)
    return model.eval()


def evaluate(model, tokens):
    """Logits, and the loss as `weft eval` takes it, in double."""
    windows = torch.tensor(
        [
            tokens[i * LENGTH : i * LENGTH + LENGTH + 1]
            for i in range((len(tokens) - 1) // LENGTH)
        ]
    )
    with torch.no_grad():
        logits = model(windows[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(
        logits.double().flatten(0, 1), windows[:, 1:].flatten()
    )
    return logits, loss.item()


class Weft:
    def __init__(self, binaries, folder):
        self.binaries = pathlib.Path(binaries).resolve()
        self.folder = folder

    def run(self, *words, ranks=1):
        command = [str(self.binaries / "weft"), *map(str, words)]
        if ranks > 1:
            launcher = str(self.binaries / "weftrun")
            command = [launcher, "--nproc-per-node", str(ranks), "--", *command]
        done = subprocess.run(
            command,
            cwd=self.folder,
            capture_output=True,
            text=True,
            env=dict(os.environ, OMP_NUM_THREADS="1"),
        )
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.returncode}\n{done.stderr}")
        return done.stdout

    def loss(self, recipe, dp, tp, *more):
        mesh = (f"mesh.dp={dp}", f"mesh.tp={tp}")
        out = self.run(
            "eval",
            recipe,
            *mesh,
            *more,
            "--tokens",
            "tokens.bin",
            "--json",
            ranks=dp * tp,
        )
        return json.loads(out)["loss"]


def compare(name, dtype, config, weft, tokens):
    here = weft.folder
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    slug = name.replace(" ", "_")
    model.to(dtype).save_pretrained(here / slug, max_shard_size="150KB")
    (here / f"{slug}.yaml").write_text(
        f"model: {{from: {slug}}}\n"
        f"data: {{paths: [none], sequence_length: {LENGTH}}}\n"
    )
    logits, loss = evaluate(load(here / slug), tokens)
    losses = [weft.loss(f"{slug}.yaml", dp, tp) for dp, tp in MESHES]
    worst = max(abs(each - loss) / loss for each in losses)
    weft.run("checkpoint", "import", slug, f"{slug}_run")
    weft.run(
        "checkpoint",
        "export",
        f"{slug}_run",
        f"{slug}_back",
        "--max-shard-size",
        "200KB",
    )
    back, back_loss = evaluate(load(here / f"{slug}_back"), tokens)
    difference = (back - logits).abs().max().item()
    print(
        f"{name:28} loss {loss:.7f}  weft, relative {worst:.1e}  "
        f"exported: loss {abs(back_loss - loss) / loss:.1e}, logits {difference:.1e}",
        flush=True,
    )
    return worst <= 2e-5 and difference <= 1e-4


def compare_adapted(weft, tokens):
    """A short run with adapters, exported at its end."""
    here = weft.folder
    (here / "text.txt").write_text("the quick brown fox jumps over it\n" * 400)
    (here / "adapted.yaml").write_text(
        "model: {from: llama_untied_float32_llama3}\n"
        f"data: {{paths: [text.txt], sequence_length: {LENGTH}}}\n"
        "train: {steps: 20, global_batch_size: 4}\n"
        "optimizer: {lr: 1.0e-2}\n"
        "eval: {batches: 0}\n"
        'lora: {rank: 4, target_modules: ["**.self_attn.*", "**.up_proj"]}\n'
        "checkpoint: {export_to: adapted_out}\n"
    )
    weft.run("train", "adapted.yaml", "mesh.dp=2", "mesh.tp=2", ranks=4)
    losses = [weft.loss("adapted.yaml", dp, tp) for dp, tp in MESHES]
    _, loss = evaluate(load(here / "adapted_out"), tokens)
    worst = max(abs(each - loss) / loss for each in losses)
    print(f"adapters, merged: loss {loss:.7f}  weft, relative {worst:.1e}")
    return worst <= 2e-5


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default="build/bin")
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        weft = Weft(arguments.bin, pathlib.Path(folder))
        i = numpy.arange(WINDOWS * LENGTH + 8)
        tokens = (i * i * 7 + i * 101) % VOCABULARY
        tokens.astype("<u2").tofile(weft.folder / "tokens.bin")
        tokens = tokens.tolist()
        fine = [
            compare(name, dtype, config, weft, tokens)
            for name, dtype, config in configs()
        ]
        fine.append(compare_adapted(weft, tokens))
    print("all as transformers" if all(fine) else "NOT as transformers")
    sys.exit(not all(fine))


main()

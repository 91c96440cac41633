"""Whether `weft tokenize` gives the ids of the reference libraries, and how
fast: tokenizers are trained on text of this machine, and 10 MB of it encoded by
both.

    .venv-peer/bin/python bench/peer/tokens.py [--megabytes 10] [--keep FOLDER]

It needs `tokenizers` (of .venv-peer: make peer), Debian's `sentencepiece`, and
build/bin/weft. SentencePiece's own program takes lines: there every line is a
document, else the file is one.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
import unicodedata

import numpy as np
from tokenizers import (Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

ROOT = pathlib.Path(__file__).parents[2]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
ODD = ["\r\n", "\n\n", "\t", "  ", "      ", "\u00a0", "\u3000", "\u180e",
       "\u0085", "\x00", "\u0301", "\u200d", "<|endoftext|>", "<s>", "</s>",
       "'\u017f", "'LL", "'re", "123456", "\u2460", "\u00bd", "\u0663\u0664",
       "\u2028", "\u2581", "\u2581\u2581", "<0x41>", "\x0b", "\u0130"]


def machine_text(size):
    """Sources, documentation and locales, in an order of its own."""
    files = []
    for root in [sysconfig.get_paths()["stdlib"], "/usr/share/i18n",
                 "/usr/share/doc", "/usr/share/perl"]:
        for folder, folders, names in os.walk(root):
            folders.sort()
            if "site-packages" not in folder:
                files += [os.path.join(folder, name) for name in sorted(names)]
    random.Random(0).shuffle(files)
    texts, total = [], 0
    for file in files:
        try:
            with open(file, encoding="utf-8", newline="") as opened:
                text = opened.read(100_000)
        except (OSError, UnicodeDecodeError):
            continue
        texts.append(text)
        total += len(text.encode())
        if total >= size:
            break
    return "".join(texts)


def odd_text(rng, characters):
    """A stretch of any characters, of one script, of emoji, of pitfalls."""
    count = rng.randint(20, 150)
    kind = rng.random()
    if kind < 0.4:
        return "".join(rng.choices(characters, k=count))
    if kind < 0.7:
        first = rng.choice([0x370, 0x410, 0x530, 0x5d0, 0x620, 0x910, 0xe10,
                            0x3040, 0x4e00, 0xac00])
        return "".join(chr(first + rng.randint(0, 80))
                       if rng.random() < 0.85 else " " for _ in range(count))
    if kind < 0.85:
        return "".join(chr(rng.randint(0x1f300, 0x1f6ff))
                       + rng.choice(["", "\u200d", "\ufe0f"])
                       for _ in range(count))
    return "".join(rng.choice(ODD) + rng.choice(["", "a", "Z", "9", " ", "."])
                   for _ in range(count))


def corpus(size):
    rng = random.Random(1)
    characters = [chr(point) for point in range(32, 0x20000) if
                  unicodedata.category(chr(point)) not in ("Cs", "Cn", "Co")]
    text = machine_text(size)
    parts, begin = [], 0
    while begin < len(text):
        step = rng.randint(2000, 6000)
        parts += [text[begin:begin + step], odd_text(rng, characters)]
        begin += step
    return "".join(parts)


def trained(tokenizer, text, vocab_size, special, **options):
    tokenizer.train_from_iterator(
        text.splitlines(keepends=True),
        trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False,
                            special_tokens=special, **options))
    return tokenizer


def bpe_tokenizers(text):
    """Name and tokenizer.json: GPT-2's kind, Llama 3's, a Metaspace one, and
    Llama 2's, which has no words."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    gpt2 = Tokenizer(models.BPE())
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    gpt2.decoder = decoders.ByteLevel()
    trained(gpt2, text, 8000, ["<|endoftext|>"], initial_alphabet=alphabet)
    yield "BPE, GPT-2's words", gpt2.to_str()

    llama3 = Tokenizer(models.BPE(ignore_merges=True))
    llama3.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    llama3.decoder = decoders.ByteLevel()
    llama3.post_processor = processors.ByteLevel(trim_offsets=False)
    trained(llama3, text, 12000, ["<|begin_of_text|>", "<|endoftext|>"],
            initial_alphabet=alphabet)
    yield "BPE, Llama 3's words", llama3.to_str()

    names = [f"<0x{byte:02X}>" for byte in range(256)]
    spaces = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True,
                                  byte_fallback=True))
    spaces.normalizer = normalizers.Sequence([
        normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    spaces.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    spaces.decoder = decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(),
        decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    trained(spaces, text, 6000, ["<unk>", "<s>", "</s>"] + names,
            limit_alphabet=200)
    written = json.loads(spaces.to_str())
    written["added_tokens"] = written["added_tokens"][:3]
    yield "BPE, Metaspace", json.dumps(written)
    written["pre_tokenizer"] = None
    yield "BPE, Llama 2's (no words)", json.dumps(written)


def pieces(folder, name, options):
    subprocess.run(
        ["spm_train", f"--input={folder}/train.txt", "--minloglevel=2",
         f"--model_prefix={folder}/{name}", "--max_sentence_length=100000",
         "--character_coverage=0.995", *options], check=True)
    return f"{folder}/{name}.model"


def by_weft(tokenizer, text, *options):
    out = pathlib.Path(text).with_name("out.bin")
    begin = time.perf_counter()
    subprocess.run(
        [ROOT / "build/bin/weft", "tokenize", tokenizer, text, "-o", out,
         "--dtype", "uint32", *options], check=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL)
    seconds = time.perf_counter() - begin
    return np.fromfile(out, dtype="<u4"), seconds


def by_tokenizers(path, text):
    tokenizer = Tokenizer.from_file(path)
    begin = time.perf_counter()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return np.array(ids, dtype=np.uint32), time.perf_counter() - begin


def by_sentencepiece(path, text_path):
    begin = time.perf_counter()
    with open(text_path, "rb") as text:
        ids = subprocess.run(
            ["spm_encode", f"--model={path}", "--output_format=id"],
            stdin=text, stdout=subprocess.PIPE, check=True).stdout
    seconds = time.perf_counter() - begin
    return np.array(ids.split(), dtype=np.uint32), seconds


def row(name, size, reference, own):
    (expected, reference_s), (found, own_s) = reference, own
    equal = np.array_equal(expected, found)
    print(f"| {name} | {len(expected)} | {'equal' if equal else 'DIFFERENT'} | "
          f"{size / reference_s:.1f} | {size / own_s:.1f} |", flush=True)
    return equal


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--keep", help="folder for text and tokenizers")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(arguments.keep or temporary)
        folder.mkdir(exist_ok=True)
        text = corpus(arguments.megabytes * 1e6)
        path = folder / "text.txt"
        path.write_text(text, encoding="utf-8", newline="")
        sample = text[:3_000_000]
        (folder / "train.txt").write_text(sample, newline="")
        size = path.stat().st_size / 1e6
        print(f"{size:.1f} MB, {len(text)} characters, "
              f"{sum(c > chr(127) for c in text)} of them not ASCII\n")
        print("| tokenizer | tokens | ids | reference MB/s | weft MB/s |\n"
              "|---|---|---|---|---|")
        equal = True
        for index, (name, written) in enumerate(bpe_tokenizers(sample)):
            file = str(folder / f"{index}.json")
            pathlib.Path(file).write_text(written)
            equal &= row(name, size, by_tokenizers(file, text),
                         by_weft(file, path))
        for name, options in [
                ("bpe", ["--model_type=bpe", "--vocab_size=10000",
                         "--byte_fallback",
                         "--normalization_rule_name=identity",
                         "--remove_extra_whitespaces=false"]),
                ("unigram", ["--model_type=unigram", "--vocab_size=10000",
                             "--input_sentence_size=20000"])]:
            file = pieces(folder, name, options)
            equal &= row(f"SentencePiece, {name}, lines", size,
                         by_sentencepiece(file, path),
                         by_weft(file, path, "--document-separator", "\n"))
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()

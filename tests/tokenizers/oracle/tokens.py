"""Trains small tokenizers on this repository's documentation and stores what
their own libraries make of tricky texts: the expectations of
tests/tokenizers/tokenizer_test.cpp.

    .venv-peer/bin/python tests/tokenizers/oracle/tokens.py

It needs `tokenizers` (of .venv-peer) and Debian's `sentencepiece`.
"""

import json
import pathlib
import shutil
import subprocess
import tempfile

import tokenizers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models,
                        normalizers, pre_tokenizers, processors, trainers)

HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "tokens"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*"
         r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

TEXTS = [
    "", " ", "a", "Hello world", " Hello  world ", "Hello, world! It's 2024.",
    "I'LL say 'S and 'ſ and don't, we've", "x=1234567;y=0.5e-10",
    "tabs\tand\t\ttabs", "line\nline\r\nline\r\n\r\nlast\r", "\n", "\n\n\n",
    "   \n   \n x", "trailing   ", "a\x00b\x00\x00c", "\x01\x7f\x1c\x85 x",
    "caf\u00e9 cafe\u0301 \u00c5ngstr\u00f6m A\u030a", "\u0301\u0301 alone",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea\ufe0f",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f",
    "\u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 "
    "\u05e9\u05dc\u05d5\u05dd", "nbsp\u00a0em\u2003ideo\u3000zw\u200b",
    "mongolian\u180eseparator \u2028 line \u2029 para\u0085next",
    "\u00bd \u2460 \u0663\u0664 \u216b \u00b2", "\u2581\u2581a \u2581b",
    "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> <|endoftext|>",
    "<|endoftext", "<|begin_of_text|>hi<|end_of_text|>", "<s> hi </s> <unk>",
    "<0x41><0x0A>", "a <mask> b", "a<mask>b", "word wordy xword word.word",
    "  left  right  ", "__init__(self, *args) -> None: pass",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "the model the model the model", "a-b--c---d-", "--", "-", "1a22b333",
    "CamelCaseWordsHTTPServer", "https://example.org/a?b=c&d=%20#e",
    "\ufeffbom", "\ue000private \U00010330 \U0010ffff", " \u0300 \u200d ",
]


def corpus():
    root = HERE.parents[2]
    files = sorted(root.glob("docs/*.md")) + [root / "README.md"]
    text = "".join(file.read_text() for file in files)
    return text[:400_000]


def byte_level(pre_tokenizer, post_processor, vocab_size, special, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = post_processor
    train(tokenizer, vocab_size, special,
          initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    return tokenizer


def train(tokenizer, vocab_size, special, **options):
    tokenizer.train_from_iterator(
        corpus().splitlines(keepends=True),
        trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False,
                            special_tokens=special, **options))


def gpt2():
    tokenizer = byte_level(
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        processors.ByteLevel(trim_offsets=False), 500, ["<|endoftext|>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.add_tokens([
        AddedToken("word", single_word=True),
        AddedToken("right", rstrip=True), AddedToken("left", lstrip=True)])
    return tokenizer


def llama3():
    return byte_level(
        pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A",
                special_tokens=[("<|begin_of_text|>", 0)])]),
        600, ["<|begin_of_text|>", "<|end_of_text|>"], ignore_merges=True)


def byte_names():
    return [f"<0x{byte:02X}>" for byte in range(256)]


def llama2():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True,
                                     byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(),
        decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    # Trained with words, which the file has not.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    train(tokenizer, 700, ["<unk>", "<s>", "</s>"] + byte_names(),
          limit_alphabet=80)
    written = json.loads(tokenizer.to_str())
    written["pre_tokenizer"] = None
    written["added_tokens"] = written["added_tokens"][:3]
    # Files of before 2024 write merges as "a b".
    written["model"]["merges"] = [
        " ".join(pair) for pair in written["model"]["merges"]]
    return Tokenizer.from_str(json.dumps(written)), written


def metaspace():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    train(tokenizer, 400, ["<unk>"], limit_alphabet=80)
    return tokenizer


def splits():
    """Ways to cut words, put in the place of gpt2.json's."""
    byte_words = {"type": "ByteLevel", "add_prefix_space": True,
                  "trim_offsets": True, "use_regex": False}
    stages = [
        [{"type": "Split", "pattern": pattern, "behavior": behavior,
          "invert": invert}]
        for behavior in ["Isolated", "Removed", "MergedWithPrevious",
                         "MergedWithNext", "Contiguous"]
        for invert in [False, True]
        for pattern in [{"String": "-"}, {"Regex": "[\\s\\d]"}]]
    stages += [
        [{"type": "Split", "pattern": {"Regex": O200K}, "behavior": "Removed",
          "invert": True}],
        [{"type": "Split", "pattern": {"Regex": "(?=[A-Z])|\\w+"},
          "behavior": "Isolated", "invert": False}],
        [{"type": "Split", "pattern": {"Regex": "^\\p{Han}?|(?<=e)$"},
          "behavior": "MergedWithPrevious", "invert": False}],
        [{"type": "Digits", "individual_digits": True}],
        [{"type": "Digits", "individual_digits": False},
         {"type": "Punctuation", "behavior": "Contiguous"}],
        [{"type": "WhitespaceSplit"}],
    ]
    return [{"type": "Sequence", "pretokenizers": stage + [byte_words]}
            for stage in stages]


def results(tokenizer):
    found = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        found.append({"text": text, "ids": ids,
                      "decoded": tokenizer.decode(ids)})
    return found


def pieces(name, options):
    """A SentencePiece model, by Debian's programs, which take lines."""
    with tempfile.TemporaryDirectory() as folder:
        lines = pathlib.Path(folder, "lines.txt")
        lines.write_text(corpus())
        # In the folder: the model keeps the names that it was given.
        subprocess.run(
            ["spm_train", f"--input={lines.name}", f"--model_prefix={name}",
             "--minloglevel=2", "--num_threads=1", *options], check=True,
            cwd=folder)
        shutil.copy(pathlib.Path(folder, f"{name}.model"), FOLDER)
        texts = [text for text in TEXTS if "\n" not in text]
        model = FOLDER / f"{name}.model"
        ids = subprocess.run(
            ["spm_encode", f"--model={model}", "--output_format=id"],
            input="".join(text + "\n" for text in texts).encode(),
            stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()
        decoded = subprocess.run(
            ["spm_decode", f"--model={model}", "--input_format=id"],
            input="".join(line + "\n" for line in ids).encode(),
            stdout=subprocess.PIPE, check=True).stdout.decode().split("\n")
    assert len(ids) == len(texts) == len(decoded) - 1
    return [{"text": text, "ids": [int(token) for token in line.split()],
             "decoded": back}
            for text, line, back in zip(texts, ids, decoded)]


def main():
    FOLDER.mkdir(exist_ok=True)
    cases = []
    base = gpt2()
    written_llama2 = llama2()
    for name, tokenizer, written in [
            ("gpt2", base, None), ("llama3", llama3(), None),
            ("llama2", *written_llama2), ("metaspace", metaspace(), None)]:
        written = written or json.loads(tokenizer.to_str())
        (FOLDER / f"{name}.json").write_text(
            json.dumps(written, ensure_ascii=False, separators=(",", ":")))
        cases.append({"file": f"{name}.json", "results": results(tokenizer)})
    for words in splits():
        changed = json.loads(base.to_str()) | {"pre_tokenizer": words}
        cases.append({"file": "gpt2.json", "pre_tokenizer": words,
                      "results": results(
                          Tokenizer.from_str(json.dumps(changed)))})
    for name, options in [
            ("bytes", ["--model_type=bpe", "--vocab_size=600",
                       "--byte_fallback", "--character_coverage=0.99",
                       "--normalization_rule_name=identity",
                       "--remove_extra_whitespaces=false"]),
            ("unigram", ["--model_type=unigram", "--vocab_size=300",
                         "--normalization_rule_name=identity"])]:
        cases.append({"file": f"{name}.model",
                      "results": pieces(name, options)})
    text = json.dumps({"tokenizers": tokenizers.__version__, "cases": cases},
                      separators=(",", ":"))
    (HERE / "tokens.json").write_text(text + "\n")


if __name__ == "__main__":
    main()

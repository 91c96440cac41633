"""Random tables of added tokens and chains of normalizers and pre-tokenizers,
and what their own library makes of tricky texts: the expectations of
tests/tokenizers/tokenizer_test.cpp for how a text falls apart.

    .venv-peer/bin/python tests/tokenizers/oracle/random_tokenizers.py [FOLDER]

It needs `tokenizers` (of .venv-peer). It writes added_tokens.jsonl and
chains.jsonl, by default next to itself. Their first line holds two
tokenizer.json, "characters" and "bytes"; every other line changes one of them:

    {"of": "characters", "with": {MERGE PATCH}, "texts": [..], "ids": [[..]]}

"with" is a JSON merge patch (RFC 7386). Flags of added tokens that have their
default value are left out. Every pair of characters is a merge, so that ids
show where a text was cut.

Left out is what the library does not answer, or not twice alike:
 - texts on which it panics: one token's rstrip takes the spaces that another
   one, with lstrip, ends in;
 - tables in which two tokens are the same after normalization: it takes any; or
   in which one is empty then: it cuts everywhere, also inside of characters;
 - Strip or ByteLevel after an insertion at the beginning that replaces nothing
   (Replace of an empty match, Prepend of ""): it repeats text, or panics.
"""

import json
import os
import pathlib
import random
import sys

os.environ["RUST_BACKTRACE"] = "0"

import tokenizers
from tokenizers import Tokenizer, pre_tokenizers

HERE = pathlib.Path(__file__).parent
SEED = 20240607
TABLES, CHAINS, TEXTS = 2000, 500, 4
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False,
         "normalized": True, "special": False}
# Letters, a mark, a joiner; digits and punctuation; spaces. "z" and "\u1680" (a
# space) are in no vocabulary.
WORD = list("abA\u00e9\u4e2d\u0301\u200dz_")
OTHER = list("12.-\u2581")
SPACE = list("  \n\t\u3000\u00a0\u1680")
SPACES = [" ", "  ", "\n", "\n\n", " \n ", "\t ", "\u3000", "\u00a0 ", "\u1680"]
VOCABULARY = list("<>abA\u00e9\u4e2d\u0301\u200d_12.- \n\t\u3000\u00a0\u2581")
BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
             "Contiguous"]
REGEXES = ["\\s+", "\\s", "[ab]+", "\\d", "\\p{L}+", "\\w+|\\s", "[^\\s\\w]+",
           "\\s+(?!\\S)", "(?=[A-Z])", "(?<=a)", "^", "$", "a*", "^\\s*", "ab?"]
STRINGS = [" ", "a", "ab", "\u2581", "\u00e9", ".", "  ", "\n", ""]
CONTENTS = ["", " ", "\u2581", "a", "bA", "\u00e9", "\u4e2db", "a ", " \u2581"]


def tokenizer_json(alphabet, rng):
    vocab = {"<unk>": 0}
    for character in alphabet:
        vocab.setdefault(character, len(vocab))
    merges = [[left, right] for left in alphabet for right in alphabet]
    rng.shuffle(merges)
    for left, right in merges:
        vocab[left + right] = len(vocab)
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None,
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>",
                      "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False,
                      "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": merges}}


def bases(rng):
    """A vocabulary of characters, and of bytes as ByteLevel spells them."""
    spelt = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    text = "".join(c for c in VOCABULARY if c not in "\u2581<>")
    bytes_ = sorted(set(spelt.pre_tokenize_str(text)[0][0]))
    return {"characters": tokenizer_json(VOCABULARY, rng),
            "bytes": tokenizer_json(bytes_, rng)}


# ---- tables of added tokens -------------------------------------------------

def random_content(rng, known):
    kind = rng.random()
    if known and kind < 0.45:
        one, other = rng.choice(known), rng.choice(known)
        return rng.choice([one + other, one[:-1], one[1:], one + one,
                           one + rng.choice(SPACES), rng.choice(SPACES) + one,
                           one + rng.choice(WORD), rng.choice(WORD) + one])[:6]
    if kind < 0.65:
        return rng.choice(SPACES)
    if kind < 0.75:
        return "<" + rng.choice(["s", "a", "\u00e9 "]) + ">"
    letters = rng.choice([WORD, WORD + OTHER, WORD + OTHER + SPACE])
    return "".join(rng.choices(letters, k=rng.randint(1, 3)))


def random_table(rng, vocab):
    contents, table = [], []
    for _ in range(rng.randint(1, 5)):
        content = random_content(rng, contents)
        if content and content not in contents:
            contents.append(content)
    likely = rng.choice([0.2, 0.5, 0.8])
    next_id = len(vocab)
    for content in contents:
        token = {"id": vocab.get(content, next_id), "content": content,
                 "single_word": rng.random() < 0.2,
                 "lstrip": rng.random() < likely,
                 "rstrip": rng.random() < likely,
                 "normalized": rng.random() < 0.5,
                 "special": rng.random() < 0.3}
        next_id += content not in vocab
        table.append(token)
    return table


def simple_normalizer(rng):
    if rng.random() < 0.5:
        return None
    return rng.choice([
        {"type": "Strip", "strip_left": True, "strip_right": False},
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Prepend", "prepend": "\u2581"},
        replace("String", " ", "\u2581"), replace("String", "a", "b"),
        replace("String", "\n", ""), replace("Regex", "\\s+", " "),
        {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            replace("String", " ", "\u2581")]}])


def simple_pre_tokenizer(rng):
    kind = rng.random()
    if kind < 0.4:
        return None
    if kind < 0.7:
        return metaspace("\u2581", "first", rng.random() < 0.7)
    return rng.choice([metaspace("\u2581", "always", True),
                       {"type": "WhitespaceSplit"},
                       {"type": "Digits", "individual_digits": False},
                       byte_level(False, True), byte_level(True, False)])


# ---- chains -----------------------------------------------------------------

def replace(kind, pattern, content):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def metaspace(replacement, scheme, split):
    return {"type": "Metaspace", "replacement": replacement,
            "prepend_scheme": scheme, "split": split}


def byte_level(add_prefix_space, use_regex):
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space,
            "trim_offsets": True, "use_regex": use_regex}


def random_pattern(rng):
    return rng.choice([("Regex", rng.choice(REGEXES)),
                       ("String", rng.choice(STRINGS))])


def random_normalizer(rng):
    kind = rng.random()
    if kind < 0.3:
        return {"type": "Strip", "strip_left": rng.random() < 0.7,
                "strip_right": rng.random() < 0.5}
    if kind < 0.5:
        return {"type": "Prepend", "prepend": rng.choice(
            ["\u2581", " ", "a", "ab", "\u00e9", ""])}
    return replace(*random_pattern(rng), rng.choice(CONTENTS))


def random_pre_tokenizer(rng):
    kind = rng.random()
    if kind < 0.5:
        found = metaspace(rng.choice(["\u2581"] * 3 + ["_", "\u00e9"]),
                          rng.choice(["first"] * 3 + ["always", "never"]),
                          rng.random() < 0.6)
        if rng.random() < 0.15:  # as files of before 2024
            del found["split"]
            found["add_prefix_space"] = found["prepend_scheme"] != "never"
            if found["prepend_scheme"] == "always":
                del found["prepend_scheme"]
        return found
    if kind < 0.8:
        name, pattern = random_pattern(rng)
        return {"type": "Split", "pattern": {name: pattern},
                "behavior": rng.choice(BEHAVIORS),
                "invert": rng.random() < 0.3}
    return rng.choice([
        {"type": "Digits", "individual_digits": rng.random() < 0.5},
        {"type": "Punctuation", "behavior": rng.choice(BEHAVIORS)},
        {"type": "WhitespaceSplit"}])


def sequence(rng, key, steps):
    """The steps, some of them in a sequence of their own."""
    if not steps:
        return None
    if len(steps) == 1 and rng.random() < 0.7:
        return steps[0]
    if len(steps) > 2 and rng.random() < 0.3:
        steps = steps[:1] + [{"type": "Sequence", key: steps[1:]}]
    return {"type": "Sequence", key: steps}


def inserts_at_nothing(step):
    """Whether it may put characters at the beginning in the place of none."""
    if step["type"] == "Prepend":
        return step["prepend"] == ""
    return step["type"] == "Replace" and step["content"] != "" and (
        step["pattern"].get("String") == "" or
        step["pattern"].get("Regex") in ["(?=[A-Z])", "(?<=a)", "^", "$", "a*",
                                         "^\\s*"])


def random_chain(rng):
    steps, inserts = [], False
    for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4])):
        step = random_normalizer(rng)
        if inserts and step["type"] == "Strip":
            continue
        inserts = inserts or inserts_at_nothing(step)
        steps.append(step)
    stages = [random_pre_tokenizer(rng)
              for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3]))]
    if not inserts and rng.random() < 0.2:
        stages.append(byte_level(rng.random() < 0.5, rng.random() < 0.5))
    return (sequence(rng, "normalizers", steps),
            sequence(rng, "pretokenizers", stages))


# ---- what the library makes of them -----------------------------------------

def random_text(rng, contents):
    parts = []
    for _ in range(rng.randint(0, 7)):
        kind = rng.random()
        if contents and kind < 0.45:
            parts.append(rng.choice(contents))
        elif kind < 0.7:
            parts.append(rng.choice(SPACES))
        else:
            parts.append("".join(rng.choices(WORD + OTHER,
                                             k=rng.randint(1, 3))))
    return "".join(parts)


def is_byte_level(pre_tokenizer):
    return "ByteLevel" in json.dumps(pre_tokenizer)


def is_ambiguous(tokenizer, table):
    """Whether two tokens are the same text after normalization, or one is no
    text."""
    normalizer = tokenizer.normalizer
    texts = [normalizer.normalize_str(token["content"]) if normalizer
             else token["content"] for token in table if token["normalized"]]
    return len(set(texts)) < len(texts) or "" in texts


def encoded(tokenizer, text):
    try:
        return tokenizer.encode(text, add_special_tokens=False).ids
    except BaseException as error:  # PanicException is no Exception
        if type(error).__name__ != "PanicException":
            raise
        return None


def case(rng, known, table, normalizer, pre_tokenizer):
    """A line of the files, and how many texts the library panics on. No line if
    it takes any of two tokens."""
    name = "bytes" if is_byte_level(pre_tokenizer) else "characters"
    changed = {"added_tokens": table, "normalizer": normalizer,
               "pre_tokenizer": pre_tokenizer}
    tokenizer = Tokenizer.from_str(json.dumps(known[name] | changed))
    if is_ambiguous(tokenizer, table):
        return None, 0
    for token in table:
        assert tokenizer.token_to_id(token["content"]) == token["id"], token
    contents = [token["content"] for token in table]
    texts = sorted({random_text(rng, contents) for _ in range(TEXTS)})
    ids = [encoded(tokenizer, text) for text in texts]
    changed["added_tokens"] = [
        {key: value for key, value in token.items() if value != FLAGS.get(key)}
        for token in table]
    answered = [i for i, found in enumerate(ids) if found is not None]
    return {"of": name,
            "with": {key: value for key, value in changed.items() if value},
            "texts": [texts[i] for i in answered],
            "ids": [ids[i] for i in answered]}, len(ids) - len(answered)


def write(path, known, make, count):
    lines = [{"tokenizers": tokenizers.__version__, "bases": known}]
    panics = ambiguous = texts = 0
    while len(lines) <= count:
        line, panicked = make()
        ambiguous += line is None
        panics += panicked
        if line and line["texts"]:
            lines.append(line)
            texts += len(line["texts"])
    path.write_text("".join(
        json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n"
        for line in lines), encoding="utf-8")
    print(f"{path}: {len(lines) - 1} tokenizers, {texts} texts, "
          f"{path.stat().st_size} bytes. Left out: {panics} texts (panic), "
          f"{ambiguous} tables (ambiguous)")


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    # The library writes its panics there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    rng = random.Random(SEED)
    known = bases(rng)

    def table_case():
        pre_tokenizer = simple_pre_tokenizer(rng)
        name = "bytes" if is_byte_level(pre_tokenizer) else "characters"
        table = random_table(rng, known[name]["model"]["vocab"])
        return case(rng, known, table, simple_normalizer(rng), pre_tokenizer)

    def chain_case():
        chain = random_chain(rng)
        name = "bytes" if is_byte_level(chain[1]) else "characters"
        table = (random_table(rng, known[name]["model"]["vocab"])
                 if rng.random() < 0.3 else [])
        return case(rng, known, table, *chain)

    write(folder / "added_tokens.jsonl", known, table_case, TABLES)
    write(folder / "chains.jsonl", known, chain_case, CHAINS)


if __name__ == "__main__":
    main()

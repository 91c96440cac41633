"""snippets.py ROOT FIXTURES OUT: makes a program of all ```cpp blocks of
README.md and docs/*.md, as FIXTURES says (fixtures.txt explains its lines).
Fails for a block without an entry and for an entry without a block.

The ranks of the program are threads, so World::from_env() is replaced by the
world of the rank; nothing else of a block changes.
"""

import pathlib
import re
import sys


def blocks_of(root):
    documents = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    for path in documents:
        name = path.relative_to(root).as_posix()
        text = path.read_text()
        for block in re.finditer(r"^```cpp\n(.*?)^```$", text, re.S | re.M):
            line = text.count("\n", 0, block.start()) + 1
            yield name, line, block[1]


def entries_of(path):
    text = re.sub(r"^#(?!include).*\n", "", path.read_text(), flags=re.M)
    for part in re.split(r"^== ", text, flags=re.M)[1:]:
        head, _, body = part.partition("\n")
        # A line of code may have " | " in it, a document and HOW have not.
        document, rest = head.split(" | ", 1)
        line, how = rest.rsplit(" | ", 1)
        outside, _, inside = body.rpartition("-- body\n")
        before, _, after = inside.partition("--\n")
        yield document, line, how, outside, before, after


def match(blocks, entries):
    """Pairs of a block and its entry, and what is wrong."""
    pairs, errors, used = [], [], set()
    for document, line, how, *code in entries:
        found = [
            b for b in blocks
            if b[0] == document and line in map(str.strip, b[2].splitlines())
        ]
        if len(found) != 1 or found[0] in used:
            errors.append(
                f"fixtures.txt: {len(found)} blocks of {document} have the "
                f"line {line!r}; expected one without another entry")
            continue
        used.add(found[0])
        pairs.append((found[0], how, *code))
    errors += [
        f"{name}:{line}: no entry in tests/outside/fixtures.txt for this block"
        for name, line, text in blocks if (name, line, text) not in used
    ]
    return pairs, errors


def squeezed(text):
    return re.sub(r"\s", "", text)


def source_of(number, block, outside, before, after):
    name, line, text = block
    includes = re.findall(r"^#include.*$", text, re.M)
    text = re.sub(r"^#include.*\n", "", text, flags=re.M)
    text = re.sub(r"(weft::)?(mesh::)?World::from_env\(\)", "rank.world", text)
    return "\n".join([
        *includes, f"namespace outside::snippet_{number} {{", outside,
        "void run([[maybe_unused]] weft::testkit::RankContext& rank) {", before,
        f'#line {line + 1 + len(includes)} "{name}"', text,
        f'#line 1 "after {name}:{line}"', after, "}", "}", ""])


def main():
    root, fixtures, out = map(pathlib.Path, sys.argv[1:])
    blocks = list(blocks_of(root))
    pairs, errors = match(blocks, entries_of(fixtures))
    sources, table, declarations = [], [], []
    for number, (block, how, *code) in enumerate(pairs):
        if how.startswith("quotes "):
            quoted = (root / how.removeprefix("quotes ")).read_text()
            # A block may leave lines out between its parts.
            for part in re.split(r"\n\n", block[2].strip()):
                if squeezed(part) not in squeezed(quoted):
                    errors.append(f"{block[0]}:{block[1]}: not in {how[7:]}: "
                                  f"{part}")
            continue
        sources.append(source_of(number, block, *code))
        declarations.append(
            f"namespace outside::snippet_{number} {{ "
            "void run(weft::testkit::RankContext& rank); }")
        if how == "run":
            table.append(f'{{"{block[0]}:{block[1]}", '
                         f"&outside::snippet_{number}::run}},")
        elif not re.fullmatch(r"compile: \S.*", how):
            errors.append(f"fixtures.txt: {block[0]}: unknown {how!r}")
    if errors:
        sys.exit("\n".join(errors))
    out.mkdir(parents=True, exist_ok=True)
    (out / "blocks.cpp").write_text('#include "fixtures.h"\n' + "".join(sources))
    (out / "blocks.inc").write_text("\n".join(
        [*declarations, "const Snippet kSnippets[] = {", *table, "};", ""]))
    print(f"{len(blocks)} blocks, {len(table)} run")


main()

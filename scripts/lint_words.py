"""Finds the phrases of scripts/lint_words.txt in the files of the repository.

    python3 scripts/lint_words.py

Prints `FILE:LINE: PHRASE    <- REGEX` for each and exits with 1 if there are any.
Files are those that git knows, or all below the root without git.
"""

import pathlib
import re
import subprocess
import sys

BEGINS = "begins: "
PRODUCT = ",".join(
    f"{folder}/**/*.{suffix}" for suffix in ("cpp", "cu")
    for folder in """base lighthouse mesh matmul dtensor cuda tp data_parallel ddp elastic
    fsdp checkpoint config tokenizers models data hf train inference cli launcher
    testkit""".split())
ROOT = pathlib.Path(__file__).resolve().parent.parent


def regex_of(glob):
    """The regex of a glob in which `**` also matches folders."""
    text = re.escape(glob).replace(r"\*\*/", "(?:.*/)?").replace(r"\*\*", ".*")
    return re.compile(text.replace(r"\*", "[^/]*") + "$")


def read_rules(path):
    """[(regex, begins, [glob regex, ...])], and the globs of exempt files. `begins` is
    true for a rule that concerns the first line of a comment only."""
    rules, exempt = [], []
    for line in path.read_text().splitlines():
        if line.startswith("!"):
            exempt.append(regex_of(line[1:]))
        elif line and not line.startswith("#"):
            regex, globs = line.split("\t")
            globs = globs.replace("@product", PRODUCT)
            begins = regex.startswith(BEGINS)
            rules.append((re.compile(regex.removeprefix(BEGINS)), begins,
                          [regex_of(glob) for glob in globs.split(",")]))
    return rules, exempt


def files():
    known = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if known.returncode == 0:
        return known.stdout.splitlines()
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*")
                  if path.is_file() and "build" not in path.parts
                  and not any(part.startswith(".") for part in path.parts))


def findings(name, rules):
    text = (ROOT / name).read_bytes().decode(errors="replace")
    is_inside = False
    for number, line in enumerate(text.splitlines(), 1):
        was_inside, is_inside = is_inside, line.lstrip().startswith("//")
        for regex, begins in rules:
            match = regex.search(line)
            if match and not (begins and was_inside and is_inside):
                yield f"{name}:{number}: {match[0].strip()}    <- {regex.pattern}"


def main():
    rules, exempt = read_rules(ROOT / "scripts" / "lint_words.txt")
    found = 0
    for name in files():
        own = [(regex, begins) for regex, begins, globs in rules
               if any(glob.match(name) for glob in globs)]
        if not own or any(glob.match(name) for glob in exempt) or not (
                ROOT / name).is_file():
            continue
        for finding in findings(name, own):
            print(finding)
            found += 1
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()

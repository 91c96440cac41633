"""share_comments.py HEADER: the header as Doxygen reads it (INPUT_FILTER).
An overload, but no constructor, that is declared directly below a documented one
shares its comment. Left out are friends, which are not members, and without a
comment destructors and members that are defaulted or deleted.
"""
import re
import sys

SPECIAL = re.compile(r"= (default|delete);$|^ *(virtual )?~\w+\(\).*;$")
NAME = re.compile(r"([a-z_]\w*|operator\S+?)\(")


def declarations(lines):
    """Pairs of the first line and the line behind the last of each declaration
    that ends with a semicolon or a one-line body; others are skipped."""
    at = 0
    while at < len(lines):
        first = at
        while at < len(lines) and not re.search(r"[;{}:]\s*$|^\s*(//|#|$)", lines[at]):
            at += 1
        at += 1
        yield first, at


def main():
    lines = open(sys.argv[1]).read().split("\n")
    lines = [
        "" if re.match(r" *friend .*;$", line) or
        (SPECIAL.search(line) and "///" not in lines[i - 1]) else line
        for i, line in enumerate(lines)]
    out = []
    comment, name = [], None
    for first, end in declarations(lines):
        text = lines[first:end]
        if re.match(r"\s*///", text[0]):
            if name is not None:
                comment, name = [], None
            comment.append(text[0])
        else:
            found = NAME.search(" ".join(text).split(" = ")[0])
            own = found[1] if found and text[-1].endswith(";") else None
            if own and own == name:
                out.extend(comment)
            elif own and comment and name is None:
                name = own
            else:
                comment, name = [], None
        out.extend(text)
    print("\n".join(out), end="")


if __name__ == "__main__":
    main()

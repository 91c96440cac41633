"""console_blocks.py ROOT BUILD LIBTORCH SCRATCH DOCUMENT: runs the ```console
blocks of a document in order, in a folder that looks like the clone, and compares
what they print.

A line "$ ..." is a command; it goes on after a backslash, or on lines "> ...".
The other lines are its output. A shown line must match a line of the output, in
order: any number matches any number, any space any space, "..." any text, and a
line "..." stands for lines that are left out. Comments before a block change this:

    <!-- no-run: REASON -->      the block is not run
    <!-- no-compare: REASON -->  the output is not compared
    <!-- needs: PROGRAM -->      the block is not run if there is no such program
    <!-- exit: CODE -->          the last command ends with this status, and those
                                 before it with it or with 0
    <!-- setup: COMMAND -->      is run before the block, and not shown

Exit codes: 0; 1 with the block that failed; 77 if all blocks need programs that
are missing. With --list as DOCUMENT, instead, prints the documents with blocks to run, and
with --summary the number of blocks.
"""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

COMMENT = re.compile(r"^<!-- ([a-z-]+): (.*?) -->\n", re.S | re.M)
BLOCK = re.compile(
    r"((?:^<!-- [a-z-]+: [^\n]*? -->\n)*)^```console\n(.*?)^```$", re.S | re.M)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")
MARK = "\x1e"
COMMENTS = {"no-run", "no-compare", "needs", "exit", "setup"}
PATIENCE_S = 200 # ctest ends the test later, and would show nothing


class Failure(Exception):
    pass


def documents(root):
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def blocks_of(document):
    """(line, {comment: value}, text) of each block."""
    text = document.read_text()
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start(2)) + 1
        comments = COMMENT.findall(found[1])
        names = [name for name, _ in comments]
        if set(names) - COMMENTS or len(names) != len(set(names)):
            sys.exit(f"{document}:{line}: unknown or repeated comment: {names}")
        yield line, dict(comments), found[2]


def commands_of(text):
    """Pairs of a command and the lines of output that are shown."""
    commands = []
    goes_on = False
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append([line[2:], []])
        elif goes_on:
            commands[-1][0] += "\n" + line.removeprefix("> ")
        elif commands:
            commands[-1][1].append(line)
        else:
            raise Failure("a block begins with a command: $ ...")
        goes_on = line.endswith("\\") and not commands[-1][1]
    return commands


def squeezed(line):
    return " ".join(line.split())


def pattern_of(line):
    parts = []
    for part in squeezed(line).split("..."):
        parts.append(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?".join(
            re.escape(text) for text in NUMBER.split(part)))
    return re.compile(".*".join(parts) + "$")


def compare(command, shown, output):
    lines = iter(output.splitlines())
    for line in shown:
        if line.strip() == "...":
            continue
        pattern = pattern_of(line)
        if not any(pattern.match(squeezed(actual)) for actual in lines):
            raise Failure(
                f"$ {command}\ndoes not print this line, or not in this order:\n"
                f"{line}\nIts output:\n{output}")


def run(text, comments, scratch, environment):
    commands = commands_of(text)
    expected = int(comments.get("exit", 0))
    script = (f"{{ {comments.get('setup', ':')}; }} >.setup 2>&1 || "
              "{ cat .setup; exit 1; }\n")
    for command, _ in commands:
        script += (f"printf '\\036'\n{command}\nstatus=$?\n"
                   f"((status == 0 || status == {expected})) || exit $status\n")
    script += "exit $status\n"
    # A file, not a pipe, which a job in the background would keep open.
    with open(scratch / ".output", "w+", errors="replace") as output:
        process = subprocess.Popen(
            ["bash", "-c", script], cwd=scratch, env=environment,
            stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            status = "a wait for something that did not come"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        setup, *parts = output.read().split(MARK)
    if len(parts) != len(commands) or status != expected:
        command = commands[len(parts) - 1][0] if parts else comments.get("setup")
        raise Failure(
            f"$ {command}\nended with {status}, not with {expected}. "
            f"Its output:\n{parts[-1] if parts else setup}")
    if "no-compare" not in comments:
        for (command, shown), part in zip(commands, parts):
            compare(command, shown, part)


def make_scratch(root, build, libtorch, scratch):
    shutil.rmtree(scratch, ignore_errors=True)
    # The text that the recipes train on: a part of it, since each rank of each run
    # looks at all its files.
    text = pathlib.Path("include/torch/csrc/api/include")
    shutil.copytree(
        libtorch / text, scratch / ".venv/lib/python3/site-packages/torch" / text)
    (scratch / "build").symlink_to(build)
    for name in ("docs", "examples", "recipes"):
        (scratch / name).symlink_to(root / name)


def why_not(comments, environment):
    """The reason why a block is not run, or nothing."""
    if "no-run" in comments:
        return comments["no-run"]
    program = comments.get("needs")
    if program and not shutil.which(program, path=environment["PATH"]):
        return f"there is no {program}"
    return None


def main():
    root, build, libtorch, scratch = (
        pathlib.Path(p).resolve() for p in sys.argv[1:5])
    if sys.argv[5] == "--list":
        for document in documents(root):
            if any("no-run" not in comments
                   for _, comments, _ in blocks_of(document)):
                print(document.relative_to(root))
        return 0
    if sys.argv[5] == "--summary":
        blocks = [b for d in documents(root) for b in blocks_of(d)]
        left_out = sum("no-run" in comments for _, comments, _ in blocks)
        print(f"{len(blocks)} blocks, {left_out} of them are not run")
        return 0
    name = sys.argv[5]
    make_scratch(root, build, libtorch, scratch)
    environment = dict(os.environ, PATH=f"{build}/bin:{os.environ['PATH']}")
    ran = 0
    lacks = False
    for line, comments, text in blocks_of(root / name):
        reason = why_not(comments, environment)
        if reason:
            print(f"{name}:{line}: not run: {reason}")
            lacks = lacks or "needs" in comments
            continue
        begin = time.monotonic()
        try:
            run(text, comments, scratch, environment)
        except Failure as failure:
            print(f"{name}:{line}: {failure}")
            return 1
        print(f"{name}:{line}: ran ({time.monotonic() - begin:.1f} s)")
        ran += 1
    print(f"{name}: {ran} blocks ran")
    shutil.rmtree(scratch)
    return 77 if lacks and ran == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Power fails at every moment of saving: what the disk may hold afterwards.

bench/power_loss.py [--shuffles 6] [--seed 1] [--folder DIR] [--async] [--most N]

Four ranks of `weft train` on a mesh of 2x2 save four steps and keep two, under
strace. What they do to the checkpoints' folder is then replayed: after each call
the power fails, and of the disk's state only that is certain which an fsync has
asked for:

  - bytes of a file, by fdatasync or fsync of it that has returned;
  - names in a folder, by an fsync of the folder.

All else may be there or not. For each moment the folder is rebuilt with nothing
of it, all of it, all names but no bytes (empty files, or zeros), and in
--shuffles random ways: any of the folder's pending changes in their order up to
some point or a random part of them, and of each file's unsynced writes none, all,
half or zeros. `weft checkpoint ls --verify` reads every different outcome: a step
whose save has returned must be there and whole unless retention took it, and no
step may be torn. --most looks at N of the outcomes, chosen by --seed. Prints one
line of JSON; exits 1 if anything is not so, 77 where there is no strace.

The model is that of Pillai et al., All File Systems Are Not Created Equal, OSDI
2014, without assuming anything of the file system beyond POSIX.
"""

import argparse
import codecs
import concurrent.futures
import hashlib
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CALLS = ("openat,openat2,mkdir,mkdirat,write,pwrite64,pwritev,ftruncate,"
         "fallocate,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,"
         "rmdir")
STEPS, EVERY, KEEP = 8, 2, 2
TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
FD = re.compile(r"(\d+|AT_FDCWD)<([^>]*)>")


class Folder:
    def __init__(self):
        self.durable = {}
        self.names = {}
        self.pending = []  # lists of (name, inode or None), each done at once

    def change(self, *changes):
        self.pending.append(changes)
        self.apply(self.names, changes)

    @staticmethod
    def apply(names, changes):
        for name, inode in changes:
            if inode is None:
                names.pop(name, None)
            else:
                names[name] = inode


class File:
    def __init__(self):
        self.durable = b""
        self.content = b""

    def write(self, offset, data):
        end = offset + len(data)
        old = self.content.ljust(end, b"\0")
        self.content = old[:offset] + data + old[end:]


def record(folder, programs, flags):
    """Runs the training; returns its calls in the order in which they ended."""
    text = folder / "text.txt"
    text.write_text("".join(chr(97 + i * i % 23) for i in range(1 << 16)))
    log = folder / "calls"
    subprocess.run(
        ["strace", "-f", "-y", "-s", "1000000", "-e", f"trace={CALLS}", "-o", log,
         programs / "weftrun", "--nproc-per-node", "4", "--",
         programs / "weft", "train",
         ROOT / "recipes/quickstart.yaml", "output_dir=run",
         f"train.steps={STEPS}", f"checkpoint.every={EVERY}",
         f"checkpoint.keep={KEEP}", f"data.paths=[{text}]", "eval.every=1000",
         "model.dim=32", "model.ffn_dim=64", "model.layers=1",
         "data.sequence_length=16", "train.global_batch_size=8", *flags],
        cwd=folder, check=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL)
    return log


def calls_of(log):
    """(name, arguments, result, whether it had begun before) of each."""
    begun = {}
    with open(log, encoding="latin-1") as lines:
        for line in lines:
            pid, _, rest = line.rstrip("\n").partition(" ")
            rest = rest.strip()
            if rest.endswith("<unfinished ...>"):
                begun[pid] = rest[:-len("<unfinished ...>")]
                yield "begin", pid, begun[pid], ""
                continue
            resumed = re.match(r"<\.\.\. \w+ resumed>(.*)", rest)
            was_begun = resumed is not None and pid in begun
            if was_begun:
                rest = begun.pop(pid) + resumed[1]
            match = re.match(r"(\w+)\((.*)\)\s*= (-?\d+)", rest, re.DOTALL)
            if match:
                if not was_begun:
                    yield "begin", pid, rest, ""
                yield match[1], pid, match[2], match[3]


def unescape(text):
    return codecs.escape_decode(text.encode("latin-1"))[0]


class Disk:
    """The checkpoints' folder, as the calls change it."""

    def __init__(self, base):
        self.base = str(base)
        self.root = Folder()
        self.syncing = {}  # of each thread: what its fsync will have written

    def inside(self, path):
        """The parts of a path below the folder; None if it is elsewhere."""
        if path != self.base and not path.startswith(self.base + "/"):
            return None
        return [part for part in path[len(self.base):].split("/") if part]

    def find(self, parts):
        node = self.root
        for part in parts:
            node = node.names.get(part) if isinstance(node, Folder) else None
        return node

    def path_of(self, descriptor, text, cwd):
        name = unescape(text).decode()
        if name.startswith("/"):
            return name
        folder = descriptor[2] if descriptor else cwd
        return folder if name == "." else f"{folder}/{name}"

    def begin(self, pid, text, cwd):
        match = re.match(r"(fsync|fdatasync)\((\d+)<([^>]*)>", text)
        parts = self.inside(match[3]) if match else None
        node = None if parts is None else self.find(parts)
        if isinstance(node, File):
            self.syncing[pid] = node, node.content
        elif isinstance(node, Folder):
            self.syncing[pid] = node, len(node.pending)

    def end_sync(self, pid, ok):
        node, snapshot = self.syncing.pop(pid, (None, None))
        if node is None or not ok:
            return False
        if isinstance(node, File):
            node.durable = snapshot
        else:
            for changes in node.pending[:snapshot]:
                Folder.apply(node.durable, changes)
            del node.pending[:snapshot]
        return True

    def paths(self, arguments, cwd):
        """The paths that a call names, each with the folder it is named in."""
        found = []
        position = 0
        descriptor = None
        while position < len(arguments):
            fd = FD.match(arguments, position)
            text = TEXT.match(arguments, position)
            if fd:
                descriptor = fd
                position = fd.end()
            elif text:
                found.append(self.path_of(descriptor, text[1], cwd))
                position = text.end()
            else:
                position += 1
        return found

    def apply(self, name, pid, arguments, result, cwd):
        """Returns whether the call changed anything."""
        if name in ("fsync", "fdatasync"):
            return self.end_sync(pid, result == "0")
        if result.startswith("-"):
            return False
        if name in ("write", "pwrite64", "pwritev", "ftruncate", "fallocate"):
            return self.write(name, arguments, int(result))
        return self.rename_things(name, self.paths(arguments, cwd), arguments)

    def rename_things(self, name, paths, arguments):
        parts = [self.inside(path) for path in paths]
        if not parts or parts[0] is None or not parts[0]:
            return False
        parent = self.find(parts[0][:-1])
        last = parts[0][-1]
        if name.startswith("mkdir"):
            parent.change((last, Folder()))
        elif name.startswith("open"):
            if "O_CREAT" not in arguments or last in parent.names:
                return False
            parent.change((last, File()))
        elif name.startswith("rename"):
            assert parts[0][:-1] == parts[1][:-1], "another folder"
            parent.change((last, None), (parts[1][-1], parent.names[last]))
        else:
            parent.change((last, None))
        return True

    def write(self, name, arguments, result):
        descriptor = FD.match(arguments)
        parts = self.inside(descriptor[2]) if descriptor else None
        file = None if parts is None else self.find(parts)
        if not isinstance(file, File):
            return False
        numbers = re.findall(r", (\d+)", arguments)
        if name == "ftruncate":
            file.content = file.content[:int(numbers[-1])].ljust(
                int(numbers[-1]), b"\0")
        elif name == "fallocate":
            file.content = file.content.ljust(
                int(numbers[-1]) + int(numbers[-2]), b"\0")
        else:
            data = b"".join(unescape(text) for text in TEXT.findall(arguments))
            offset = int(numbers[-1]) if name != "write" else len(file.content)
            file.write(offset, data[:result])
        return True


class Chooser:
    """What an outcome keeps of all that was not synced."""

    def __init__(self, names, content):
        self.names, self.content = names, content

    def folder(self, folder):
        names = dict(folder.durable)
        for changes in self.names(folder.pending):
            Folder.apply(names, changes)
        return names

    def file(self, file):
        return (file.durable if file.content == file.durable
                else self.content(file))


def zeros(file):
    return b"\0" * len(file.content)


def half(file):
    return file.content[:len(file.content) // 2]


def choosers(count, generator):
    yield Chooser(lambda pending: [], lambda file: file.durable)
    yield Chooser(lambda pending: pending, lambda file: file.content)
    yield Chooser(lambda pending: pending, lambda file: b"")
    yield Chooser(lambda pending: pending, zeros)
    contents = [lambda file: file.durable, lambda file: file.content, zeros, half]
    for i in range(count):
        def names(pending):
            if generator.random() < 0.5:
                return pending[:generator.randint(0, len(pending))]
            return [changes for changes in pending if generator.random() < 0.5]
        yield Chooser(names, lambda file: generator.choice(contents)(file))


def outcome_of(node, chooser):
    """Nested dicts of names; bytes are files."""
    if isinstance(node, File):
        return chooser.file(node)
    return {name: outcome_of(child, chooser)
            for name, child in sorted(chooser.folder(node).items())}


def digest(outcome, into):
    if isinstance(outcome, bytes):
        into.update(b"f%d:" % len(outcome) + outcome)
        return
    for name, child in outcome.items():
        into.update(b"n" + name.encode() + b"\0")
        digest(child, into)
    into.update(b"e")


def build(outcome, path):
    if isinstance(outcome, bytes):
        path.write_bytes(outcome)
        return
    path.mkdir()
    for name, child in outcome.items():
        build(child, path / name)


def outcomes_of(log, base, cwd, options):
    """Each different outcome, the step that must be there, and after what."""
    disk, generator = Disk(base), random.Random(options.seed)
    seen, moments, committed = set(), 0, None
    renamed = None
    for name, pid, arguments, result in calls_of(log):
        if name == "begin":
            disk.begin(pid, arguments, cwd)
            continue
        if not disk.apply(name, pid, arguments, result, cwd):
            continue
        moments += 1
        if step := re.search(r'"step-(\d+)", RENAME_NOREPLACE', arguments):
            renamed = int(step[1])
        elif name == "fsync" and disk.root.durable.get(f"step-{renamed}"):
            committed = renamed
        for chooser in choosers(options.shuffles, generator):
            outcome = outcome_of(disk.root, chooser)
            hash_ = hashlib.sha256()
            digest(outcome, hash_)
            key = hash_.digest(), committed
            if key not in seen:
                seen.add(key)
                yield moments, outcome, committed, f"{name}({arguments[:150]}"


def judge(job):
    weft, folder, (moment, outcome, committed, after) = job
    path = folder / "checkpoints"
    folder.mkdir()
    build(outcome, path)
    said = subprocess.run([weft, "checkpoint", "ls", "--verify", "--json", folder],
                          capture_output=True, text=True)
    shutil.rmtree(folder)
    steps = json.loads(said.stdout)["steps"] if said.stdout else []
    whole = [step["step"] for step in steps if step["valid"] == "bytes"]
    return {"moment": moment, "after": after, "committed": committed,
            "whole": whole,
            "torn": [step["step"] for step in steps if step["valid"] != "bytes"],
            "lost": committed is not None and committed not in whole,
            "said": said.stderr.strip() if not steps else ""}


def read_options():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shuffles", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--async", dest="is_async", action="store_true")
    parser.add_argument("--most", type=int)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/bin")
    return parser.parse_args()


def sample(outcomes, options):
    """The last one is there: it has to have the last step."""
    if options.most is None:
        return outcomes
    outcomes = list(outcomes)
    chosen = random.Random(options.seed).sample(
        range(len(outcomes) - 1), min(options.most, len(outcomes)) - 1)
    return [outcomes[i] for i in sorted(chosen)] + outcomes[-1:]


def main():
    options = read_options()
    if shutil.which("strace") is None:
        print("skipped: strace is not installed")
        sys.exit(77)
    folder = pathlib.Path(
        tempfile.mkdtemp(prefix="weft_power_", dir=options.folder)).resolve()
    try:
        log = record(folder, options.bin.resolve(),
                     [f"checkpoint.async={str(options.is_async).lower()}"])
        outcomes = sample(outcomes_of(
            log, folder / "run/checkpoints", str(folder), options), options)
        jobs = ((options.bin / "weft", folder / f"outcome{i}", case)
                for i, case in enumerate(outcomes))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = list(pool.map(judge, jobs))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    bad = [result for result in results if result["lost"] or result["torn"]]
    for result in bad[:10]:
        print(json.dumps(result), file=sys.stderr)
    last = results[-1]["whole"] if results else []
    print(json.dumps({
        "moments": max((result["moment"] for result in results), default=0),
        "outcomes": len(results),
        "lost": sum(result["lost"] for result in results),
        "torn": sum(bool(result["torn"]) for result in results),
        "most_steps_whole": max((len(r["whole"]) for r in results), default=0),
        "last": last}))
    # A replay that saw no whole step has tried nothing.
    sys.exit(1 if bad or STEPS not in last else 0)


if __name__ == "__main__":
    main()

"""Measures Weft beside PyTorch, row by row, and writes docs/benchmarks.md.

    .venv-peer/bin/python bench/benchmarks.py [--only step,dispatch] [--resume]
        [--tables] [--quick]

Each row is measured in one go and kept in build/bench/ROW.json, the document
written after each. --only measures some rows; --resume leaves out those that
have a result; --tables measures nothing and writes what there is. --quick tries
this script: the fewest runs that give a table, and everything, a copy of the
document too, in build/bench/quick. In the document only what lies between
`<!-- ROW -->` and `<!-- end of ROW -->` is written: the words around it stay, and
so do the facts and the table of a row that has no result here.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys

import compare_checkpoint
import compare_collective
import compare_compiled
import compare_dispatch
import compare_matmul
import compare_redistribute
import compare_reducer
import compare_step
import measure_explain
import memory
import scaling
import trace_picture
from measure import processor, table

DOCUMENT = pathlib.Path("docs/benchmarks.md")
RESULTS = pathlib.Path("build/bench")
QUICK = RESULTS / "quick"
# A row that is more commits old is said to be.
MOST_COMMITS = 300
FEW_STEPS = ["--pairs=1", "--steps=2", "--warmup=1"]
BFLOAT16 = ["--row=step_bfloat16", "--layouts=1x1,2x2", "--dtype=bfloat16"]
DIM_1024 = ["--row=step_1024", "--layouts=1x1,2x2", "--dim=1024", "--layers=6",
            "--heads=16"]
DIM_2048 = ["--row=step_2048", "--layouts=1x1", "--dim=2048", "--layers=2",
            "--heads=16"]
# What each row runs, and the flags beyond its defaults: in full, and quick.
ROWS = {
    "step": (compare_step, [], FEW_STEPS),
    "step_bfloat16": (compare_step, BFLOAT16, [*BFLOAT16, *FEW_STEPS]),
    "step_1024": (compare_step, [*DIM_1024, "--steps=5", "--warmup=2"],
                  [*DIM_1024, *FEW_STEPS, "--layouts=1x1"]),
    "step_2048": (compare_step, [*DIM_2048, "--steps=3", "--warmup=1"],
                  [*DIM_2048, *FEW_STEPS]),
    "compiled": (compare_compiled, [], FEW_STEPS),
    "matmul": (compare_matmul, [], ["--pairs=1", "--models=256x4"]),
    "dispatch": (compare_dispatch, [], ["--pairs=1"]),
    "collective": (compare_collective, [],
                   ["--rounds=3", "--ranks=2", "--sizes=1KB,1MB"]),
    "checkpoint": (compare_checkpoint, [], ["--pairs=1", "--mb=12"]),
    "explain": (measure_explain, [], ["--runs=1"]),
    "redistribute": (compare_redistribute, [], ["--pairs=1"]),
    "reducer": (compare_reducer, [],
                ["--pairs=1", "--rounds=2", "--warmup=1"]),
    "ddp_trace": (trace_picture, [],
                  ["--pairs=1", "--steps=1", "--layouts=2x2"]),
    "memory": (memory, [], ["--steps=400", "--every=20"]),
    "scaling": (scaling, [], ["--layouts=2x2"]),
}


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def compiler():
    """Of build/, or the one that is there by default."""
    cache = pathlib.Path("build/CMakeCache.txt")
    text = cache.read_text() if cache.exists() else ""
    found = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)", text, re.MULTILINE)
    program = shutil.which(found[1]) if found else None
    return output_of(program or "c++", "--version").split("\n")[0]


def machine():
    system = re.search(r'PRETTY_NAME="(.*)"',
                       pathlib.Path("/etc/os-release").read_text())
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    torch = output_of(sys.executable, "-c",
                      "import torch; print(torch.__version__)")
    return {
        "machine": f"{os.cpu_count()} cores of {processor()}, "
                   f"{memory_gb:.0f} GB",
        "system": f"{system[1] if system else platform.system()}, Linux "
                  + ".".join(platform.release().split(".")[:2]),
        "compiler": compiler(),
        "PyTorch": f"{torch}, Python {platform.python_version()}"}


def weft_version():
    """The commit, and whether tracked files differ from it. Those of docs/, which
    the rows before have written, and of tests/ do not count."""
    changed = output_of(
        "git", "--no-optional-locks", "status", "--porcelain",
        "--untracked-files=no", "--", ".", ":(exclude)docs",
        ":(exclude)tests")
    return output_of("git", "describe", "--always") + "-dirty" * bool(changed)


def facts():
    """What was true when a row was measured."""
    return {"on": datetime.date.today().isoformat(),
            "weft": weft_version(),
            "processor": processor(),
            "load before": f"{os.getloadavg()[0]:.1f}"}


def busy_others(result):
    """The shares of the machine that others took, of all runs in `result`."""
    if isinstance(result, dict):
        own = [result["others"]] if "others" in result else []
        result = list(result.values())
        return own + busy_others(result)
    if isinstance(result, list):
        return [share for part in result for share in busy_others(part)]
    return []


def read_results(folder):
    paths = {name: folder / f"{name}.json" for name in ROWS}
    return {name: json.loads(path.read_text())
            for name, path in paths.items() if path.exists()}


def measure_row(name, folder, options):
    module, full, few = ROWS[name]
    parser = module.parser()
    row_options, row_options.flags = parser.parse_known_args(
        few if options.quick else full)
    if options.quick and "plot" in row_options:
        row_options.plot = folder / f"{name}.svg"
    if "out" in row_options:
        row_options.out = folder / f"{name}.jsonl"
        if not options.resume:
            row_options.out.unlink(missing_ok=True)
    started = facts()
    result = module.measure(row_options)
    if hasattr(module, "draw"):
        module.draw(result, row_options)
    (folder / f"{name}.json").write_text(
        json.dumps({"facts": started, "result": result}))


def earlier_targets(text):
    """The document's lines of the table of targets, by row."""
    lines = {}
    for line in re.findall(r"^\| `\w+` \| .* \| (?:met|\*\*missed\*\*) \|$", text,
                           re.MULTILINE):
        cells = line.strip("| ").split(" | ")
        lines.setdefault(cells[0].strip("`"), []).append(cells)
    return lines


def overview(results, text):
    """Of rows without a result, what `text`, the document, says already."""
    lines = {**earlier_targets(text), **{
        name: [[f"`{name}`", what, bound, value, "met" if met else "**missed**"]
               for what, bound, value, met in ROWS[name][0].targets(saved["result"])]
        for name, saved in results.items()}}
    return table(["row", "what", "target", "measured", ""],
                 [line for name in ROWS for line in lines.get(name, [])])


def facts_text(saved):
    # A processor needs no word before it.
    said = [f"{key} {value}".removeprefix("processor ")
            for key, value in saved["facts"].items()]
    others = busy_others(saved["result"])
    if others:
        said.append(f"others took {100 * statistics.median(others):.0f} % of "
                    f"the machine ({100 * max(others):.0f} % at most)")
    return ", ".join(said)


def earlier_facts(text):
    """What the document says of its rows, without the marks."""
    found = re.findall(r"^\| `(\w+)` \| (on .*) \|$", text, re.MULTILINE)
    return {name: re.sub(r", \*\*.*?\*\*", "", said) for name, said in found}


def marks(said):
    """What to beware of in a row of which the document says `said`."""
    commit = re.search(r"weft ([^,]*)", said)[1]
    found = ["**from a dirty tree**"] if commit.endswith("-dirty") else []
    behind = output_of("git", "rev-list", "--count",
                       f"{commit.removesuffix('-dirty')}..HEAD")
    if not behind:
        found.append("**of a commit that is not known here**")
    elif int(behind) > MOST_COMMITS:
        found.append(f"**not measured for {behind} commits**")
    return found


def environment(results, text):
    """Of rows without a result, what `text`, the document, says already."""
    said = {**earlier_facts(text),
            **{name: facts_text(saved) for name, saved in results.items()}}
    return table(["", ""], [
        *machine().items(),
        *([f"`{name}`", ", ".join([said[name], *marks(said[name])])]
          for name in ROWS if name in said)])


def replace_part(text, name, content):
    pattern = f"(<!-- {name} -->\n).*?(<!-- end of {name} -->)"
    text, count = re.subn(pattern, lambda m: f"{m[1]}{content}\n{m[2]}", text,
                          flags=re.DOTALL)
    if count != 1:
        sys.exit(f"{DOCUMENT}: {count} parts named {name}, not one")
    return text


def write_document(folder, document):
    results = read_results(folder)
    text = document.read_text()
    text = replace_part(text, "environment", environment(results, text))
    text = replace_part(text, "targets", overview(results, text))
    for name, saved in results.items():
        text = replace_part(
            text, name, ROWS[name][0].markdown(saved["result"]))
    document.write_text(text)


def read_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(ROWS))
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.only = [] if options.tables else options.only.split(",")
    unknown = set(options.only) - set(ROWS)
    if unknown:
        parser.error(f"no row {', '.join(unknown)}; rows: {', '.join(ROWS)}")
    return options


def main():
    options = read_options()
    folder, document = RESULTS, DOCUMENT
    if options.quick:
        folder, document = QUICK, QUICK / DOCUMENT.name
    os.makedirs(folder, exist_ok=True)
    if options.quick:
        shutil.copy(DOCUMENT, document)
    for name in options.only:
        if options.resume and (folder / f"{name}.json").exists():
            continue
        print(f"{name} ...", file=sys.stderr)
        measure_row(name, folder, options)
        write_document(folder, document)
    write_document(folder, document)
    print(f"{document} is written", file=sys.stderr)


if __name__ == "__main__":
    main()

"""Sums up what scripts/gpu_check.sh left in a folder.

    python3 bench/gpu_report.py build-gpu/check

Writes gpu_check.json and gpu_check.md there, prints the latter, and exits with
1 if a test failed or a run is further from its reference than it may be.
"""

import json
import os
import statistics
import sys

# Run, reference, the largest relative difference of a loss that rounding
# explains over 40 steps. Gradients of embeddings are added with atomics on a
# GPU, so even the same run twice differs in last bits.
RUNS = [
    ("run-cuda", "run-cpu", 2e-3),
    ("run-cuda-again", "run-cuda", 1e-4),
    ("run-cuda-bfloat16", "run-cpu", 3e-2),
    ("run-cuda-resumed", "run-cuda-straight", 1e-4),
    ("run-cuda-2x2-one-gpu", "run-cpu", 2e-3),
    ("run-cuda-2x2", "run-cpu", 2e-3),
    ("run-cuda-1x2", "run-cpu", 2e-3),
    ("run-cuda-2x1", "run-cpu", 2e-3),
    ("run-nccl-2x2", "run-cpu", 2e-3),
    ("run-nccl-4x1", "run-cpu", 2e-3),
    ("run-nccl-fsdp-2x2", "run-cpu", 2e-3),
    ("run-nccl-bfloat16", "run-cpu", 3e-2),
]


def read_facts(path):
    with open(path) as file:
        pairs = [line.rstrip("\n").split(": ", 1) for line in file]
    return {pair[0]: pair[1] if len(pair) > 1 else "" for pair in pairs}


def read_tests(path):
    with open(path) as file:
        suites = json.load(file)["testsuites"]
    tests = [test for suite in suites for test in suite["testsuite"]]
    name = "{classname}.{name}".format_map
    return {
        "passed": sum(
            test["result"] == "COMPLETED" and "failures" not in test
            for test in tests),
        "failed": [name(test) for test in tests if "failures" in test],
        "skipped": [
            name(test) for test in tests if test["result"] == "SKIPPED"],
    }


def read_lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file if line.startswith("{")]


def compare(folder, run, reference, bound):
    paths = [os.path.join(folder, name, "metrics.jsonl")
             for name in (run, reference)]
    if not all(map(os.path.exists, paths)):
        return None
    ours, theirs = ({line["step"]: line for line in read_lines(path)}
                    for path in paths)
    steps = sorted(ours.keys() & theirs.keys())
    if not steps or len(ours) != len(theirs):
        return {"run": run, "reference": reference, "steps": len(ours),
                "bound": bound, "largest": None, "ok": False}
    largest = max(abs(ours[s]["loss"] - theirs[s]["loss"])
                  / abs(theirs[s]["loss"]) for s in steps)
    last = ours[steps[-1]]
    return {"run": run, "reference": reference, "steps": len(steps),
            "bound": bound, "largest": largest, "ok": largest <= bound,
            "first_loss": ours[steps[0]]["loss"], "last_loss": last["loss"],
            "tokens_per_s": last["tokens_per_s"],
            "peak_device_mb": last.get("peak_device_mb")}


def speeds(path):
    groups = {}
    for line in read_lines(path):
        sides = groups.setdefault(line["flags"], {"weft": [], "pytorch": []})
        sides[line["peer"]].append(line)
    rows = []
    for flags, sides in groups.items():
        if not all(sides.values()):
            continue
        row = {"flags": flags, "pairs": len(sides["weft"])}
        for side, lines in sides.items():
            for key in ("ms_per_step", "first_step_s", "peak_device_mb",
                        "peak_rss_mb"):
                row[f"{side}_{key}"] = statistics.median(
                    line.get(key, 0) for line in lines)
        row["ratio"] = row["pytorch_ms_per_step"] / row["weft_ms_per_step"]
        rows.append(row)
    return rows


def markdown(result):
    lines = ["| | |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in result["facts"].items()]
    tests = result.get("tests")
    if tests:
        lines.append(
            f"| tests | {tests['passed']} passed, {len(tests['failed'])} failed"
            f"{' (' + ', '.join(tests['failed']) + ')' if tests['failed'] else ''}"
            f", {len(tests['skipped'])} skipped |")
    lines += ["", "| run | against | steps | largest relative difference of a "
              "loss | allowed | loss, first and last | tokens/s | peak MB |",
              "|---|---|---|---|---|---|---|---|"]
    for run in result["runs"]:
        if run["largest"] is None:
            lines.append(f"| {run['run']} | {run['reference']} | {run['steps']} "
                         "| broke off | | | | |")
            continue
        lines.append(
            f"| {run['run']} | {run['reference']} | {run['steps']} "
            f"| {run['largest']:.1e}{'' if run['ok'] else ' **too large**'} "
            f"| {run['bound']:.0e} "
            f"| {run['first_loss']:.4f}, {run['last_loss']:.4f} "
            f"| {run['tokens_per_s']:.0f} | {run['peak_device_mb'] or ''} |")
    if result["faults"]:
        lines += ["", "| fault | exit code | seconds until all had ended |",
                  "|---|---|---|"]
        lines += [f"| {fault['fault']} | {fault['exit_code']} "
                  f"| {fault['seconds']:.1f} |" for fault in result["faults"]]
    lines += ["", "| `bench step` flags | Weft ms | PyTorch ms | PyTorch / Weft "
              "| first step s (PyTorch) | GPU MB (PyTorch) | host MB (PyTorch) |",
              "|---|---|---|---|---|---|---|"]
    for row in result["speed"]:
        lines.append(
            f"| {row['flags']} | {row['weft_ms_per_step']:.2f} "
            f"| {row['pytorch_ms_per_step']:.2f} | {row['ratio']:.2f} "
            f"| {row['weft_first_step_s']:.1f} "
            f"({row['pytorch_first_step_s']:.1f}) "
            f"| {row['weft_peak_device_mb']:.0f} "
            f"({row['pytorch_peak_device_mb']:.0f}) "
            f"| {row['weft_peak_rss_mb']:.0f} "
            f"({row['pytorch_peak_rss_mb']:.0f}) |")
    return "\n".join(lines) + "\n"


def main():
    folder = sys.argv[1]

    def path(name):
        return os.path.join(folder, name)

    def has(name):
        return os.path.exists(path(name))

    result = {"facts": read_facts(path("facts.txt")) if has("facts.txt") else {}}
    if has("tests.json"):
        result["tests"] = read_tests(path("tests.json"))
    compared = (compare(folder, *run) for run in RUNS)
    result["runs"] = [run for run in compared if run]
    result["speed"] = speeds(path("speed.jsonl")) if has("speed.jsonl") else []
    result["faults"] = (
        read_lines(path("faults.jsonl")) if has("faults.jsonl") else [])
    # A check that skips everything has shown nothing.
    tests = result.get("tests", {"passed": 1, "failed": []})
    result["ok"] = (not tests["failed"] and tests["passed"] > 0
                    and not tests.get("skipped")
                    and all(run["ok"] for run in result["runs"]))
    with open(path("gpu_check.json"), "w") as file:
        json.dump(result, file, indent=1)
    text = markdown(result)
    with open(path("gpu_check.md"), "w") as file:
        file.write(text)
    print(text, end="")
    sys.exit(0 if result["ok"] else 1)


if __name__ == "__main__":
    main()

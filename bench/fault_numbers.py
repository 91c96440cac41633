"""Numbers that are none (F16), and faults that have a script of their own: bits
that flip (F17), slow ranks (F21), runs that are told to end (F25)."""

import json
import subprocess
import sys

from fault_runs import ROOT, Run, clean_environment, row, without_prefix

STEPS = 8
RECIPE = f"""name: faulty
model: {{type: faulty}}
data: {{paths: [corpus.txt], sequence_length: 16}}
train: {{steps: {STEPS}, global_batch_size: 8, log_every: 1}}
eval: {{batches: 0}}
checkpoint: {{every: 1, keep: 0, async: false}}
"""
VALUES = "nan", "inf", "-inf", "1e38"
PARAMETERS = "up.weight", "down.weight", "down.bias"
MESHES = (1, 1), (2, 1), (1, 2), (2, 2)


def not_finite(suite):
    """F16: one element of one gradient on one rank, in both policies."""
    (suite.folder / "faulty.yaml").write_text(RECIPE)
    for policy in ("stop", "skip"):
        hits = [spoil(suite, policy, value, mesh, number)
                for number in range(suite.runs)
                for mesh in MESHES for value in VALUES]
        right = sum(not hit["problem"] for hit in hits)
        yield {**row(
            f"a number that is none, policy {policy}",
            f"{', '.join(VALUES)} in one element of a gradient, on a random "
            f"rank at a random step of {STEPS}; {len(hits)} times on 1x1, 2x1, "
            "1x2 and 2x2",
            "all ranks agree on that step, and its weights are nowhere saved; "
            + ("exit 3, step, parameter and rank named" if policy == "stop" else
               "it is skipped, named, and the run goes on to its end"),
            f"{right} of {len(hits)}; steps until it is seen 0",
            right == len(hits)), "figures": hits}


def spoil(suite, policy, value, mesh, number):
    dp, tp = mesh
    rank, step = suite.dice.randrange(dp * tp), suite.dice.randrange(2, STEPS)
    name = suite.dice.choice(PARAMETERS)
    output = f"{policy}{dp}{tp}{value}{number}"
    run = Run(suite.programs.launched(
        dp * tp, suite.programs.faulty, "train", "faulty.yaml", f"mesh.dp={dp}",
        f"mesh.tp={tp}", f"output_dir={output}", f"train.on_non_finite={policy}"),
        suite.folder, WEFT_FAULT=f"{rank} {step} {name} {value}")
    code = run.end()
    checkpoints = suite.folder / output / "checkpoints"
    latest = (checkpoints / "latest").read_text().strip()
    if policy == "stop":
        said = run.find(rf"^ERROR 3 rank=0 op=train step {step}: the gradient of "
                        rf"{name} .* on rank {rank}\. The weights were not updated")
        good = code == 3 and said and latest == f"step-{step - 1}"
    else:
        said = run.find(rf"^step {step} skipped, 1 in a row of at most 10: the "
                        rf"gradient of {name} .* on rank {rank}$")
        good = code == 0 and said and latest == f"step-{STEPS}"
    hit = {"mesh": f"{dp}x{tp}", "rank": rank, "step": step, "name": name,
           "value": value, "problem": None if good else f"exit {code}, {latest}"}
    if not good:
        print(hit, run.text(), sep="\n", file=sys.stderr)
    return hit


def script(suite, name, *words):
    """What a script of bench/ says: its lines of JSON."""
    result = subprocess.run(
        [sys.executable, str(ROOT / "bench" / name), *map(str, words)],
        cwd=ROOT, env=clean_environment(), text=True, capture_output=True,
        check=False)
    found = [json.loads(line) for line in result.stdout.splitlines()
             if line.startswith("{")]
    if not found:
        raise RuntimeError(result.stderr[-2000:])
    return found


def flipped(suite):
    """F17"""
    for found in script(suite, "bit_flips.py", "--only", "flips", "--flips",
                        suite.runs, "--seed", suite.options.seed):
        all_found = found["found"] == found["flips"]
        yield {**row(
            f"a bit of a weight flips, {found['mesh']}, integrity_check.every "
            f"{found['every']}, seal {found['seal']}",
            f"{found['flips']} mantissa bits at random (tensor, element, bit, "
            "rank, step)",
            "each is found, and the rank is blamed rightly",
            f"{found['found']} found, {found['named_right']} blamed rightly, "
            f"{found['named_wrong']} wrongly; after steps: "
            f"{json.dumps(found['steps_until'])}",
            all_found and found["named_wrong"] == 0), "figures": found}


def slowed(suite):
    """F21"""
    found = script(suite, "stragglers.py", "--only", "sleep", "--steps",
                   suite.runs)
    for case in found:
        rank, phase, _ = case["slower"].split(":")
        said = [(step, without_prefix(text)) for step, text in case["said"]]
        named = [(step, text) for step, text in said
                 if text.startswith(f"rank {rank} is slow: ") and step > 0]
        case["steps"] = named[0][0] if named else None
        case["phase"] = bool(named) and f": {phase} takes" in named[0][1]
        case["others"] = len(case["said"]) - len(named)
    for percent in sorted({int(case["slower"].split(":")[2]) for case in found}):
        cases = [case for case in found
                 if case["slower"].endswith(f":{percent}")]
        steps = sorted(case["steps"] for case in cases if case["steps"])
        phases = sum(case["phase"] for case in cases)
        others = sum(case["others"] for case in cases)
        quick = sum(each <= 20 for each in steps)
        yield {**row(
            "a rank is slow",
            f"one rank's forward, backward or pause between steps is longer by "
            f"{percent} % of its busy time; {len(cases)} times on 2x1, 1x2, 2x2",
            "a warning with rank and phase within 20 steps",
            f"{len(steps)} of {len(cases)} named, {quick} within 20 steps, "
            f"{phases} with the phase; after steps {steps}; other lines {others}",
            percent < 50 or (quick == len(cases) and others == 0)),
            "figures": cases}


def told_to_end(suite):
    """F25"""
    found = script(suite, "end_signals.py", "--runs", suite.runs, "--seed",
                   suite.options.seed)[-1]
    for name, case in found["cases"].items():
        yield {**row(
            f"told to end: {name}", f"{case['of']} times on 2x2, at random "
            "moments", "one save, exit 143; the same command goes on and ends "
            "bit for bit as it must",
            f"{case['in_order']} of {case['of']}; {case['seconds_median']} s "
            f"(at most {case['seconds_most']} s) from the signal to the end",
            case["in_order"] == case["of"]), "figures": case}

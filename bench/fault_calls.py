"""Collectives that do not fit (F18), and gloo's end of a process (F19)."""

import re
import sys

from fault_runs import Run, row, spread

KINDS = ("shape", "dtype", "op", "reduction", "order", "root", "group", "skip",
         "extra")


def mismatched(suite):
    """F18: four ranks, one of which calls something else at some step."""
    for backend, where in (("cpu", "shared memory"), ("gloo", "gloo")):
        kinds = suite.dice.sample(KINDS, 3) if suite.sample else KINDS
        hits = [call_wrongly(suite, kind, backend)
                for _ in range(suite.runs) for kind in kinds]
        good = [hit for hit in hits if not hit["problem"]]
        everywhere = sum(hit["ranks"] == 4 for hit in hits)
        yield {**row(
            f"ranks call different things, over {where}",
            f"a random rank of four: {', '.join(kinds)}; {suite.runs} times "
            "each, at a random step",
            f"exit 5{'' if suite.sample else ' in 2 s'}; the line has both "
            "calls (op, shape, name, number) and the odd rank",
            f"{len(good)} of {len(hits)}; the first line after "
            f"{spread(hits, 'named')}, all gone after {spread(hits, 'gone')}; "
            f"said by all four ranks in {everywhere}",
            len(good) == len(hits)), "figures": hits}


def call_wrongly(suite, kind, backend):
    rank, step = suite.dice.randrange(4), suite.dice.randrange(1, 300)
    run = Run(suite.programs.launched(4, suite.programs.odd, kind, rank, step,
                                      backend), suite.folder)
    code = run.end()
    begun = run.find("^odd from now on")
    first = run.find(r"^ERROR 5 rank=\d op=odd_collective ")
    hit = {"kind": kind, "rank": rank, "step": step}
    if code != 5 or not begun or not first:
        hit["problem"] = f"exit {code}: {run.last_error()}"
    else:
        hit |= {"named": first[0] - begun[0], "gone": run.ended_at - begun[0]}
        line = first[1].string
        names_both = (re.search(rf"\brank {rank}\b", line)
                      and line.count("#") >= 2)
        # Beside other tests a rank may have to wait for a processor.
        in_time = suite.sample or hit["named"] < 2
        hit["problem"] = None if names_both and in_time else line
    hit["ranks"] = len({match[1] for _, line in run.lines
                        for match in [re.match(r"ERROR 5 rank=(\d)", line)]
                        if match})
    if hit["problem"]:
        print(hit, run.told(), sep="\n", file=sys.stderr)
    return hit


def gloo_abort(suite):
    """F19: c10d's own gloo, which checks nothing, ends a process."""
    hits = []
    for _ in range(suite.runs):
        run = Run(suite.programs.launched(2, suite.programs.gloo_abort),
                  suite.folder)
        code = run.end()
        cause = run.find(r"^  rank \d .*signal 6 \(SIGABRT\).*<- first cause")
        line = run.last_error()
        hits.append({"line": line, "right": bool(
            code == 134 and cause and re.match(
                r"ERROR 134 rank=\d op=crash SIGABRT by an uncaught "
                r"gloo::EnforceNotMet", line))})
    right = sum(hit["right"] for hit in hits)
    yield {**row(
        "gloo ends a process on its own thread",
        f"c10d's gloo without Weft's checks, tensors of 1000 and 4000 elements, "
        f"{len(hits)} times",
        "the rank that died of SIGABRT is the cause, not the one whose "
        "connection was reset; exit 134",
        f"{right} of {len(hits)}", right == len(hits)), "figures": hits}

"""Ranks that are killed (F1) or stopped (F20) in the middle of a run."""

import os
import re
import shutil
import signal
import sys
import time

from fault_runs import STEPS, row, spread, steps_done

RESUMES = r"^(?:resumes from \S+: step (\d+),|starts from step (0))"
MESHES = [(2, 2), (2, 2), (2, 1), (1, 2)]


class Hit:
    """A run of which one rank is hit a random moment after a random step, and
    what came of it; `figures` holds seconds since then."""

    def __init__(self, suite, number, *changes):
        self.programs = suite.programs
        self.mesh = MESHES[number % len(MESHES)]
        self.output = f"hit{number}"
        self.rank = suite.dice.randrange(self.mesh[0] * self.mesh[1])
        step, pause = suite.dice.randrange(1, STEPS), suite.dice.uniform(0, 0.03)
        self.run = self.programs.train(self.mesh, self.output, *changes,
                                       restarts=3)
        self.run.await_line(rf"^step {step}/{STEPS} ")
        time.sleep(pause)
        self.process = self.run.workers().get(self.rank)
        self.figures = {"mesh": "{}x{}".format(*self.mesh), "rank": self.rank,
                        "step": step}

    def send(self, number):
        os.kill(self.process, number)
        self.hit_at = time.monotonic()
        self.run.end(180)

    def note(self, name, pattern):
        """When, since the hit, a line said so."""
        found = self.run.find(pattern, self.hit_at)
        self.figures[name] = found and found[0] - self.hit_at

    def judge(self):
        """Restarted, from where, and whether it ended as it must."""
        problems = []
        resumed = self.run.find(RESUMES, self.hit_at)
        stepped = resumed and self.run.find(rf"^step \d+/{STEPS} ", resumed[0])
        begun = resumed and int(resumed[1][1] or resumed[1][2])
        if resumed:
            self.figures |= {
                "resumed": resumed[0] - self.hit_at,
                "stepped": stepped and stepped[0] - self.hit_at,
                "lost": steps_done(self.run, resumed[0]) - begun}
        if not resumed or not (stepped or begun == STEPS):
            problems.append("no restart")
        if self.run.process.returncode != 0:
            problems.append(f"exit {self.run.process.returncode}")
        else:
            problems += self.programs.differences(self.mesh, self.output)
        self.figures["problems"] = problems
        if problems or not self.figures["named"]:
            print(f"{self.figures}\n{self.run.told()}", file=sys.stderr)
        shutil.rmtree(self.run.folder / self.output, ignore_errors=True)


def killed(suite):
    """F1"""
    hits = []
    for number in range(suite.runs):
        hit = Hit(suite, number)
        if hit.process is None:
            hit.run.end()
            continue  # it was over
        hit.send(signal.SIGKILL)
        hit.note("survivor", r"^ERROR 150 .*connection closed by rank "
                 rf"{hit.rank} of the world")
        hit.note("named", rf"^ERROR 137 rank={hit.rank} op=launch worker killed "
                 r"by signal 9 \(SIGKILL\) from another process")
        hit.judge()
        hits.append(hit.figures)
    yield summary_of_kills(hits)


def summary_of_kills(hits):
    alike = sum(not hit["problems"] for hit in hits)
    named = sum(hit["named"] is not None for hit in hits)
    return {**row(
        "a rank dies",
        f"kill -9 of a random rank at a random step of {STEPS}, {len(hits)} "
        "times on 2x2, 2x1 and 1x2, a save every 4 steps, --max-restarts 3",
        "the group restarts; losses, tensors and state at the end are those of "
        "a run that nobody disturbed; weftrun names the rank",
        f"{alike} of {len(hits)} identical, {named} of {len(hits)} named; a "
        f"survivor's line after {spread(hits, 'survivor')}, weftrun's, all "
        f"ranks gone, after {spread(hits, 'named')}, " + restart_text(hits),
        hits and alike == named == len(hits)), "figures": hits}


def restart_text(hits):
    return (f"resumed after {spread(hits, 'resumed')} of which 1 s is a pause, "
            f"first step after {spread(hits, 'stepped')}; steps lost "
            f"{spread(hits, 'lost', '')}")


def stopped(suite):
    """F20"""
    timeout = 3 if suite.sample else 20
    hits = []
    for number in range(suite.runs):
        hit = Hit(suite, number, f"comm.timeout_s={timeout}")
        if hit.process is None:
            hit.run.end()
            continue  # it was over
        hit.send(signal.SIGSTOP)
        keeper = ", which has the store," if hit.rank == 0 else ""
        sign = (rf"[Rr]ank {hit.rank}{keeper} is not responding \(process "
                rf"{hit.process} is stopped \(SIGSTOP\)\)")
        hit.note("warned", rf"^WARNING rank=\d+ op=watch .*{sign}")
        hit.note("named", rf"^ERROR 150 rank=\d+ op=train .*{sign}")
        hit.note("gone", r"^weftrun: restart 1 of")
        hit.figures["wrong_blame"] = blames_another(hit)
        hit.judge()
        hits.append(hit.figures)
    yield summary_of_stops(hits, timeout, suite.sample)


def summary_of_stops(hits, timeout, is_sample=False):
    alike = sum(not hit["problems"] for hit in hits)
    named, warned = (sum(hit[key] is not None for hit in hits)
                     for key in ("named", "warned"))
    wrong = sum(hit["wrong_blame"] for hit in hits)
    return {**row(
        "a rank stops",
        f"SIGSTOP of a random rank at a random step of {STEPS}, {len(hits)} "
        f"times on 2x2, 2x1 and 1x2, comm.timeout_s {timeout}",
        "named while the others wait, and when the time is over; all ends, "
        "restarts, and ends as it must; nobody else is blamed",
        f"{alike} of {len(hits)} identical, {named} of {len(hits)} named, "
        f"others blamed {wrong}; WARNING after {spread(hits, 'warned')}, ERROR "
        f"150 after {spread(hits, 'named')}, all processes gone after "
        f"{spread(hits, 'gone')}, " + restart_text(hits),
        alike == named == len(hits) and wrong == 0
        and (is_sample or warned == len(hits))), "figures": hits}


def blames_another(hit):
    """Lines that say of a rank that was not hit that it shows no life. The one
    that was, woken up to be ended, finds the others gone."""
    return sum(
        int(other) != hit.rank
        for when, line in hit.run.lines
        if when >= hit.hit_at and f" rank={hit.rank} " not in line
        for other in re.findall(r"[Rr]ank (\d+)[^0-9]* is not responding", line))

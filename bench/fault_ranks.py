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


class Restarts:
    """What came of runs that lost a rank and were started again."""

    def __init__(self, suite):
        self.suite, self.programs = suite, suite.programs
        self.dice = suite.dice
        self.wrong, self.alike, self.blamed = [], 0, 0
        self.detected, self.restarted, self.stepped = [], [], []
        self.lost = []

    def at_some_step(self, mesh, number, *changes):
        """A run, and the rank whose turn it is, a random moment after a random
        step."""
        run = self.programs.train(mesh, f"hit{number}", *changes, restarts=3)
        step = self.dice.randrange(1, STEPS)
        run.await_line(rf"^step {step}/{STEPS} ")
        time.sleep(self.dice.uniform(0, 0.03))
        return run, self.dice.randrange(mesh[0] * mesh[1])

    def judge(self, mesh, number, run, hit_at, expected_error):
        """After the run has ended: times since it was hit, and how it ended."""
        problems = []
        resumed = run.find(RESUMES, hit_at)
        stepped = resumed and run.find(rf"^step \d+/{STEPS} ", resumed[0])
        said = run.find(expected_error, hit_at)
        self.blamed += said is not None
        if not said:
            problems.append("the wrong rank is blamed")
        if not resumed or not stepped:
            problems.append("no restart")
        else:
            begun = int(resumed[1][1] or resumed[1][2])
            self.restarted.append(resumed[0] - hit_at)
            self.stepped.append(stepped[0] - hit_at)
            self.lost.append(steps_done(run, resumed[0]) - begun)
        if run.process.returncode != 0:
            problems.append(f"exit {run.process.returncode}")
        else:
            problems += self.programs.differences(mesh, f"hit{number}")
            self.alike += not problems
        if problems:
            self.wrong.append(f"run {number}: {', '.join(problems)}")
            print(f"{self.wrong[-1]}\n{run.text()}", file=sys.stderr)
        shutil.rmtree(run.folder / f"hit{number}", ignore_errors=True)

    def summary(self):
        return (f"first step again after {spread(self.stepped)}; "
                f"{spread(self.lost, '')} steps lost")


def killed(suite):
    """F1"""
    found, first_line, hits = Restarts(suite), [], 0
    for number in range(suite.runs):
        mesh = MESHES[number % len(MESHES)]
        run, rank = found.at_some_step(mesh, number)
        process = run.workers().get(rank)
        if process is None:
            run.end()
            continue  # it was over
        os.kill(process, signal.SIGKILL)
        hit_at, hits = time.monotonic(), hits + 1
        run.end()
        survivor = run.find(
            rf"^ERROR 150 .*connection closed by rank {rank} of the world",
            hit_at)
        launcher = run.find(rf"^ERROR 137 rank={rank} op=launch worker killed "
                            r"by signal 9 \(SIGKILL\) by somebody", hit_at)
        first_line += [survivor[0] - hit_at] if survivor else []
        found.detected += [launcher[0] - hit_at] if launcher else []
        found.judge(mesh, number, run, hit_at,
                    rf"^ERROR 137 rank={rank} op=launch worker killed by "
                    r"signal 9")
    yield row(
        "a rank dies",
        f"kill -9 of a random rank at a random step of {STEPS}, {hits} times on "
        "2x2, 2x1 and 1x2, a save every 4 steps, --max-restarts 3",
        "the group restarts; losses, tensors and state at the end are those of "
        "a run that nobody disturbed; weftrun names the rank",
        f"{found.alike} of {hits} identical, {found.blamed} of {hits} named; "
        f"a survivor's line after {spread(first_line)}, weftrun's (all ranks "
        f"gone) after {spread(found.detected)}, loaded again after "
        f"{spread(found.restarted)} (1 s of it is the pause), "
        + found.summary(),
        not found.wrong and hits > 0 and found.alike == hits)


def stopped(suite):
    """F20"""
    timeout = 3 if suite.sample else 20
    found, warned, failed, gone, wrong_blame = Restarts(suite), [], [], [], 0
    for number in range(suite.runs):
        mesh = MESHES[number % len(MESHES)]
        run, rank = found.at_some_step(mesh, number, f"comm.timeout_s={timeout}")
        process = run.workers()[rank]
        os.kill(process, signal.SIGSTOP)
        hit_at = time.monotonic()
        run.end(180)
        sign = (rf"rank {rank} gives no sign of life \(process {process} is "
                r"stopped \(SIGSTOP\)\)")
        warning = run.find(rf"^WARNING rank=\d+ op=watch .*{sign}", hit_at)
        error = run.find(rf"^ERROR 150 rank=\d+ op=train .*{sign}", hit_at)
        restart = run.find(r"^weftrun: restart 1 of", hit_at)
        warned += [warning[0] - hit_at] if warning else []
        failed += [error[0] - hit_at] if error else []
        gone += [restart[0] - hit_at] if restart else []
        wrong_blame += blames_another(run, rank, hit_at)
        found.judge(mesh, number, run, hit_at,
                    rf"^ERROR 150 rank=\d+ op=train .*{sign}")
    yield row(
        "a rank stops",
        f"SIGSTOP of a random rank at a random step of {STEPS}, {suite.runs} "
        f"times on 2x2, 2x1 and 1x2, comm.timeout_s {timeout}",
        "named while the others wait and when the time is over; all ends, "
        "restarts, and ends as it must; nobody else is blamed",
        f"{found.alike} of {suite.runs} identical, {found.blamed} of "
        f"{suite.runs} named, others blamed {wrong_blame}; WARNING after "
        f"{spread(warned)}, ERROR after {spread(failed)}, all processes gone "
        f"after {spread(gone)}, " + found.summary(),
        not found.wrong and wrong_blame == 0
        and (suite.sample or len(warned) == suite.runs))


def blames_another(run, rank, hit_at):
    """Lines that say of a rank that was not hit that it shows no life."""
    return sum(
        int(other) != rank
        for when, line in run.lines if when >= hit_at
        for other in re.findall(r"rank (\d+) gives no sign of life", line))

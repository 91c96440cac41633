#!/usr/bin/env python3
"""mutants.py CXX SOURCE_DIR BUILD_DIR OBJECT...

Breaks one rule of the elastic protocol at a time and runs the simulation, which
must find a violation. A rule that no schedule needs is either superfluous or not
tested. The objects are those of the simulation.
"""

import pathlib
import subprocess
import sys

SOURCES = ["messages", "lighthouse", "member"]

# The rule that is broken, the source, what stands there, what is put there, and
# a schedule that finds it. If that one no longer does, the first ones are tried.
MUTANTS = [
    ("a state is known by its step alone", "messages",
     "return hash == 0 ? 1 : hash;",
     "return static_cast<uint64_t>(step) + 1;", 4),
    ("no majority after a restart", "lighthouse",
     "answered * 2 > std::ssize(newest->members)", "answered > 0", 5706),
    ("held groups count for a majority", "lighthouse",
     "return report && !report->is_held;", "return report.has_value();", 12648),
    ("a minority goes on at once", "lighthouse",
     "if (kept * 2 <= possible && !are_others_held) {", "if (false) {", 3080),
    ("no lease without groups that have the state", "lighthouse",
     "} else if (!group.has_ended && !is_silent_for_lease(id, now)) {",
     "} else if (false) {", 127),
    ("a lighthouse that starts does not wait for the lease", "lighthouse",
     "if (!current_ && now - started_ <= held_after()) {", "if (false) {",
     1343),
    ("a report of before the promise counts", "lighthouse",
     "if (report.ballot == ballot_ && !group.has_ended &&",
     "if (!group.has_ended &&", 14011),
    ("a prepared step is never applied", "lighthouse",
     "return are_prepared ? next : base;", "return base;", 13),
    ("an epoch without a group that has its state", "lighthouse",
     "if (!has_state) {", "if (false) {", 16),
    ("a group that joins is not let in", "lighthouse",
     "for (const GroupId group : joiners(now)) {",
     "for (const GroupId group : std::vector<GroupId>()) {", 0),
    ("a group without an answer goes on", "member",
     "return !is_held_ && now - answered_ <= lease_;", "return true;", 127),
    ("the lease begins when the answer arrives", "member",
     "now - reply.answers <= lease_", "(answered_ = now) == now", 8201),
    ("a group enters an older epoch", "member",
     "if (reply.epoch.number > epoch_.number) {",
     "if (reply.epoch.number != epoch_.number) {", 1769),
]


def main():
    compiler, source, build, *objects = sys.argv[1:]
    source = pathlib.Path(source)
    build = pathlib.Path(build)
    build.mkdir(parents=True, exist_ok=True)
    # A mutant runs one schedule: it is not worth the optimiser.
    flags = compiler.split() + ["-std=c++20", "-O0", "-I", str(source)]

    def compile_file(path, output):
        subprocess.run(
            flags + ["-c", str(path), "-o", str(output)], check=True)

    for name in SOURCES:
        compile_file(
            source / f"lighthouse/{name}.cpp", build / f"{name}.o")
    missed = []
    for number, (rule, file, before, after, seed) in enumerate(MUTANTS):
        text = (source / f"lighthouse/{file}.cpp").read_text()
        if text.count(before) != 1:
            sys.exit(f"mutants.py: {file}.cpp has not exactly one {before!r}")
        mutant = build / f"mutant_{number}.cpp"
        mutant.write_text(text.replace(before, after))
        compile_file(mutant, build / f"mutant_{number}.o")
        others = [build / f"{s}.o" for s in SOURCES if s != file]
        program = build / f"mutant_{number}"
        subprocess.run(
            flags + objects + [str(o) for o in others]
            + [str(build / f"mutant_{number}.o"), "-o", str(program)],
            check=True)
        for first, last in [(seed, seed + 1), (0, 60000)]:
            run = subprocess.run(
                [str(program), str(first), str(last)],
                capture_output=True, text=True)
            if run.returncode != 0:
                break
        if run.returncode == 1:
            print(f"caught: {rule}: {run.stdout.strip()}", flush=True)
        else:
            print(f"MISSED: {rule} (exit {run.returncode})", flush=True)
            missed.append(rule)
    if missed:
        sys.exit(f"mutants.py: not caught: {', '.join(missed)}")


if __name__ == "__main__":
    main()

"""Runs `weft bench checkpoint` and PyTorch's DCP in turn and prints a table.

    .venv-peer/bin/python bench/compare_checkpoint.py [--pairs 3] [--mb 768]
        [--folder DIR] [--peer bench/peer/checkpoint.py]

Ratios are of each pair; the median of them counts. DIR is where both write, on
the same disk.
"""

import argparse
import os
import shutil
import statistics
import tempfile

from measure import in_turn, median, spread, table, torchrun, weftrun

# Name, Weft's key, DCP's key, target.
ROWS = [
    ("save, fsync", "save_s", "save_s", 3),
    ("save, no fsync", "save_nosync_s", "save_nosync_s", 3),
    ("load, same layout", "load_same_s", "load_same_s", 2),
    ("load, all or nothing", "load_same_all_or_nothing_s", "load_same_s", 2),
    ("load, other layout", "load_reshard_s", "load_reshard_s", 2),
]


def measure(options):
    work = tempfile.mkdtemp(prefix=".weft_bench_", dir=options.folder)
    target = os.path.join(work, "state")
    try:
        return in_turn(
            {"weft": weftrun(
                4, "bench", "checkpoint", target, options.mb, "--json"),
             "peer": torchrun(4, options.peer, target, options.mb)},
            options.pairs,
            before=lambda: shutil.rmtree(target, ignore_errors=True))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def pairs_of(results, ours, theirs):
    return [peer[theirs] / weft[ours]
            for weft, peer in zip(results["weft"], results["peer"])]


def markdown(results):
    rows = [[name, f"{median(results['weft'], ours):.2f}",
             f"{median(results['peer'], theirs):.2f}",
             spread(pairs_of(results, ours, theirs))]
            for name, ours, theirs, _ in ROWS]
    writes = spread([run["raw_write_s"] for run in results["weft"]])
    return (table(["", "Weft s", "DCP s", "DCP / Weft"], rows)
            + f"\n\nA plain write of as much: {writes} s; a copy in memory: "
            f"{median(results['weft'], 'memcpy_s'):.2f} s.")


def targets(results):
    lines = []
    for name, ours, theirs, bound in ROWS:
        values = pairs_of(results, ours, theirs)
        lines.append((f"checkpoint {name} against DCP", f"at least {bound} x",
                      spread(values), statistics.median(values) >= bound))
    return lines


def parser():
    result = argparse.ArgumentParser()
    result.add_argument("--peer", default="bench/peer/checkpoint.py")
    result.add_argument("--pairs", type=int, default=3)
    result.add_argument("--mb", type=int, default=768)
    result.add_argument("--folder", default=".")
    return result


def main():
    print(markdown(measure(parser().parse_args())))


if __name__ == "__main__":
    main()

"""Runs `weft bench checkpoint` and PyTorch's DCP in turn and prints a table.

    .venv-peer/bin/python bench/compare_checkpoint.py [--pairs 3] [--mb 768,3072]
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
ASYNC_ROWS = [
    ("async save blocks, first", "async_block_first_s"),
    ("async save blocks, later", "async_block_s"),
    ("async save, until committed", "async_total_s"),
]
# A rank's memory beyond the state, MiB.
MEMORY_ROWS = [
    ("save, fsync", "save_peak_mb", "save_peak_mb"),
    ("save, no fsync", "save_nosync_peak_mb", "save_nosync_peak_mb"),
    ("async save", "async_peak_mb", "async_peak_mb"),
    ("load, same layout", "load_peak_mb", "load_peak_mb"),
    ("load, all or nothing", "load_all_or_nothing_peak_mb", "load_peak_mb"),
    ("load, other layout", "load_reshard_peak_mb", "load_reshard_peak_mb"),
]
# Of a copy of the whole state in memory.
ASYNC_TARGET = 1.5


def measure(options):
    return {str(mb): measure_size(options, mb)
            for mb in map(int, options.mb.split(","))}


def measure_size(options, mb):
    work = tempfile.mkdtemp(prefix=".weft_bench_", dir=options.folder)
    target = os.path.join(work, "state")
    try:
        return in_turn(
            {"weft": weftrun(4, "bench", "checkpoint", target, mb, "--json"),
             "peer": torchrun(4, options.peer, target, mb)},
            options.pairs,
            before=lambda: shutil.rmtree(target, ignore_errors=True))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def pairs_of(results, ours, theirs):
    return [peer[theirs] / weft[ours]
            for weft, peer in zip(results["weft"], results["peer"])]


def blocked_over_memcpy(results):
    return [run["async_block_s"] / run["memcpy_s"] for run in results["weft"]]


def times(results):
    rows = ROWS + [(name, key, key, None) for name, key in ASYNC_ROWS]
    return table(["", "Weft s", "DCP s", "DCP / Weft"], [
        [name, f"{median(results['weft'], ours):.2f}",
         f"{median(results['peer'], theirs):.2f}",
         spread(pairs_of(results, ours, theirs))]
        for name, ours, theirs, _ in rows])


def memory_table(results):
    return table(["memory of a rank beyond the state", "Weft MiB", "DCP MiB"], [
        [name, f"{median(results['weft'], ours):.0f}",
         f"{median(results['peer'], theirs):.0f}"]
        for name, ours, theirs in MEMORY_ROWS])


def remarks(results):
    weft = results["weft"]
    writes = spread([run["raw_write_s"] for run in weft])
    return (
        f"A plain write of as much: {writes} s; a copy in memory: "
        f"{median(weft, 'memcpy_s'):.2f} s, of which an async save blocks for "
        f"{spread(blocked_over_memcpy(results))}. All ranks together write "
        f"{median(weft, 'save_mb'):.0f} MiB and read "
        f"{median(weft, 'load_mb'):.0f} MiB, for the other layout "
        f"{median(weft, 'load_reshard_mb'):.0f} MiB. A product of matrices takes "
        f"{1e3 * median(weft, 'step_s'):.1f} ms, and "
        f"{1e3 * median(weft, 'async_step_s'):.1f} ms while an async save is "
        "written.")


def markdown(sizes):
    return "\n\n".join(
        f"A state of {results['weft'][0]['mb']} MiB:\n\n{times(results)}\n\n"
        f"{memory_table(results)}\n\n{remarks(results)}"
        for results in sizes.values())


def targets(sizes):
    return [line for mb, results in sizes.items()
            for line in targets_of(mb, results)]


def targets_of(mb, results):
    lines = []
    for name, ours, theirs, bound in ROWS:
        values = pairs_of(results, ours, theirs)
        lines.append((f"checkpoint of {mb} MB, {name}, against DCP",
                      f"at least {bound} x", spread(values),
                      statistics.median(values) >= bound))
    values = blocked_over_memcpy(results)
    lines.append((f"checkpoint of {mb} MB, async save blocks, over a memcpy",
                  f"at most {ASYNC_TARGET} x", spread(values),
                  statistics.median(values) <= ASYNC_TARGET))
    return lines


def parser():
    result = argparse.ArgumentParser()
    result.add_argument("--peer", default="bench/peer/checkpoint.py")
    result.add_argument("--pairs", type=int, default=3)
    result.add_argument("--mb", default="768,3072", help="sizes: 768,3072")
    result.add_argument("--folder", default=".")
    return result


def main():
    print(markdown(measure(parser().parse_args())))


if __name__ == "__main__":
    main()

"""Runs `weft bench redistribute` and PyTorch's in turn and prints a table.

    .venv-peer/bin/python bench/compare_redistribute.py [--pairs 3] [--ranks 2]
        [--peer bench/peer/redistribute.py]

Each time is the median of the pairs; ratios are of each pair.
"""

import argparse

from measure import in_turn, median, ratios, spread, table, torchrun, weftrun


def measure(options):
    return in_turn(
        {"weft": weftrun(options.ranks, "bench", "redistribute", "--json"),
         "peer": torchrun(options.ranks, options.peer)}, options.pairs)


def markdown(results):
    weft, peer = results["weft"], results["peer"]
    keys = [key for key in weft[0] if key.endswith("_us") and key in peer[0]]
    return table(
        ["move", "Weft us", "PyTorch us", "PyTorch / Weft"],
        [[key.replace("_", " ").replace(" us", "").replace("mb", " MB"),
          f"{median(weft, key):.0f}", f"{median(peer, key):.0f}",
          spread(ratios(peer, weft, key), 1)] for key in keys])


def targets(_):
    return []


def parser():
    result = argparse.ArgumentParser()
    result.add_argument("--peer", default="bench/peer/redistribute.py")
    result.add_argument("--pairs", type=int, default=3)
    result.add_argument("--ranks", type=int, default=2)
    return result


def main():
    print(markdown(measure(parser().parse_args())))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What PyTorch's flight recorder analyzer makes of folders of flight records.

bench/peer/flight_records.py FOLDER...

Runs torch.distributed.flight_recorder.fr_trace on each folder, as it is but for
the order in which it reads the files: it takes the first rank for right and
blames those that differ, so rank 0 comes first here and not whatever the file
system lists first. Prints one line of JSON a folder: {"folder", "matched" (the
number of collectives that all ranks agree on), "said" (the analyzer's log)}.
"""

import contextlib
import io
import json
import logging
import os
import pickle
import sys
import tempfile

from torch.distributed.flight_recorder import fr_trace
from torch.distributed.flight_recorder.components import fr_logger

real_walk = os.walk


def walk_in_order(folder, *rest, **options):
    for root, folders, files in real_walk(folder, *rest, **options):
        yield root, sorted(folders), sorted(files)


def analyze(folder):
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    log = fr_logger.FlightRecorderLogger().logger
    log.addHandler(handler)
    with tempfile.NamedTemporaryFile() as output:
        with contextlib.redirect_stdout(io.StringIO()):
            fr_trace.main([folder, "-o", output.name])
        _, database = pickle.load(output)
    log.removeHandler(handler)
    passed = [one for one in database.collectives
              if one.pass_check and not one.missing_ranks]
    return {"folder": folder, "matched": len(passed),
            "said": said.getvalue()}


def main():
    os.walk = walk_in_order
    for folder in sys.argv[1:]:
        print(json.dumps(analyze(folder)))


if __name__ == "__main__":
    main()

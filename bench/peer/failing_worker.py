"""A worker that fails in one way, for bench/compare_launcher.py.

    failing_worker.py WAY EVENT [PORT]

Rank 1 writes the time of its failure to the file EVENT; the other ranks wait.
Only the way `raise` needs PyTorch.
"""

import ctypes
import os
import signal
import sys
import time

way, event = sys.argv[1:3]
rank = int(os.environ["RANK"])


def mark():
    with open(event + ".new", "w") as file:
        file.write(repr(time.time()))
    os.rename(event + ".new", event)


def wait_in_a_collective():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    if rank == 1:
        mark()
        raise RuntimeError("sample 17 of shard 3 is damaged")
    dist.all_reduce(torch.ones(4))


if way == "raise":
    wait_in_a_collective()
elif way == "wait":
    with open(f"{event}.ready{rank}", "w"):
        pass
elif rank == 1:
    time.sleep(0.3)  # the others have started
    mark()
    if way == "exit":
        sys.exit(3)
    if way == "segv":
        ctypes.string_at(0)
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)

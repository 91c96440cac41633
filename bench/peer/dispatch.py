"""What an op on DTensors costs in PyTorch, under the keys of `weft bench dispatch`.

    torchrun --nproc-per-node=2 bench/peer/dispatch.py

Medians in microseconds; nothing that is timed communicates.
"""

import json
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

ROUNDS = 11


def microseconds(call, calls):
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6


class Results(dict):
    def compare(self, name, local, distributed, calls=2000):
        times = {"local": [], "dtensor": []}
        for call in (local, distributed):
            microseconds(call, calls // 10 + 1)
        for _ in range(ROUNDS):
            times["local"].append(microseconds(local, calls))
            times["dtensor"].append(microseconds(distributed, calls))
        for side, values in times.items():
            self[f"{name}_{side}_us"] = round(statistics.median(values), 3)


def adamw(make, count):
    lists = [[make((8, 8)).abs_() for _ in range(100)] for _ in range(4)]
    steps = [count() for _ in range(100)]

    def step():
        torch._fused_adamw_(*lists, [], steps, lr=1e-3, beta1=0.9, beta2=0.999,
                            weight_decay=1e-2, eps=1e-8, amsgrad=False,
                            maximize=False)

    return step


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))

    def local(sizes):
        return torch.randn(sizes)

    def sharded(sizes):
        return DTensor.from_local(torch.randn(sizes), mesh, [Shard(0)])

    def whole(sizes):
        return DTensor.from_local(torch.randn(sizes), mesh, [Replicate()])

    results = Results(bench="dispatch")
    with torch.no_grad():
        la, lb, lw, lg = local((8, 8)), local((8, 8)), local((8, 8)), local(8)
        da, db, dw, dg = sharded((8, 8)), sharded((8, 8)), whole((8, 8)), whole(8)
        norm = torch.nn.functional.layer_norm
        results.compare("add", lambda: la + lb, lambda: da + db)
        results.compare("mm", lambda: la @ lw, lambda: da @ dw)
        results.compare("transpose", lambda: la.transpose(0, 1),
                        lambda: da.transpose(0, 1))
        results.compare("norm", lambda: norm(la, [8], lg, lg),
                        lambda: norm(da, [8], dg, dg))
        times = [microseconds(lambda: DTensor.from_local(la, mesh, [Shard(0)]), 2000)
                 for _ in range(ROUNDS)]
        results["from_local_us"] = round(statistics.median(times), 3)

    for tensor in (la, lb, lw, da, db, dw):
        tensor.requires_grad_()
    results.compare("add_grad", lambda: la + lb, lambda: da + db)
    results.compare("mm_grad", lambda: la @ lw, lambda: da @ dw)

    def linear(x, w, gradient):
        y = torch.nn.functional.linear(x, w)
        torch.autograd.grad([y], [x, w], [gradient])

    lones, dones = local((8, 8)), sharded((8, 8))
    results.compare("linear_forward_backward", lambda: linear(la, lw, lones),
                    lambda: linear(da, dw, dones), calls=500)
    with torch.no_grad():
        results.compare("fused_adamw_100",
                        adamw(local, lambda: torch.ones(())),
                        adamw(sharded, lambda: DTensor.from_local(
                            torch.ones(()), mesh, [Replicate()])), calls=50)
        alphas = iter(range(1, 10**9))
        results.compare("miss", lambda: torch.add(la, la, alpha=next(alphas) + 0.5),
                        lambda: torch.add(da, da, alpha=next(alphas) + 0.5), calls=500)
    if dist.get_rank() == 0:
        print(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Memory and seconds a process of a loss that several processes share (hgld.distributed.DistributedLoss).

Run with: python benchmarks/shared_losses.py [--batch 8192] [--processes 1 2 4] [--dim 512] [--memory 0] [--loss SupHAP]

Embeddings of 3 levels of labels, loss and gradient, on the CPU with gloo, one thread a process. Memory is the growth of
a process's peak over what it holds before the loss, the largest of all processes; CPU seconds are of one of them. The
losses must agree to 1e-6.
"""

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.multiprocessing.spawn import start_processes

from hgld import distributed, losses


def status(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))


def measure(index: int, count: int, port: str, out: str, options: argparse.Namespace) -> None:
    """Be one of the processes, and write what the loss took."""
    os.environ |= {"RANK": str(index), "LOCAL_RANK": str(index), "WORLD_SIZE": str(count)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    run = distributed.launch("cpu") if count > 1 else distributed.Processes(0, 1, torch.device("cpu"))
    inner = getattr(losses, options.loss)()
    if options.memory:
        inner = losses.CrossBatchMemory(inner, options.memory, options.dim, num_levels=3)
    small = torch.randn(64, options.dim, requires_grad=True)
    getattr(losses, options.loss)()(small, torch.arange(64) // 4).backward()  # loads and compiles
    generator = torch.Generator().manual_seed(0)
    fine = torch.arange(options.batch) // 4
    labels = torch.stack([fine, fine // 8, fine // 64], dim=1)
    own = slice(index * options.batch // count, (index + 1) * options.batch // count)
    embeddings = torch.randn(options.batch, options.dim, generator=generator)[own].clone().requires_grad_()
    loss = distributed.DistributedLoss(inner, run)
    before, cpu, start = status("VmRSS"), time.process_time(), time.perf_counter()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    value = loss(embeddings, labels[own])
    value.backward()
    found = {"bytes": status("VmHWM") - before, "cpu": time.process_time() - cpu, "loss": float(value.detach())}
    Path(out, str(index)).write_text(json.dumps(found | {"seconds": time.perf_counter() - start}))
    distributed.wait_for_all(run)
    distributed.shutdown(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--memory", type=int, default=0, help="rows of a cross-batch memory")
    parser.add_argument("--loss", default="SupHAP")
    options = parser.parse_args()
    print("| loss | batch | memory's rows | processes | memory a process, MB | CPU seconds a process | loss |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    first = None
    for count in options.processes:
        with tempfile.TemporaryDirectory() as out, socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
            free.close()
            start_processes(measure, (count, port, out, options), nprocs=count, start_method="spawn")
            found = [json.loads(path.read_text()) for path in Path(out).iterdir()]
        most = max(one["bytes"] for one in found) >> 20
        cpu = max(one["cpu"] for one in found)
        first = found[0]["loss"] if first is None else first
        row = [options.loss, options.batch, options.memory, count, most, f"{cpu:.1f}", f"{found[0]['loss']:.6f}"]
        print(f"| {' | '.join(map(str, row))} |", flush=True)
        if any(abs(one["loss"] - first) > 1e-6 for one in found):
            sys.exit("the losses differ")


if __name__ == "__main__":
    main()

"""Memory and seconds of steps of a loss with many proxies, which several processes split.

Run with: python benchmarks/proxies.py [--classes 46593] [--dim 512] [--batch 256] [--count 1 2 4] [--whole]

Every process trains one linear layer and the proxies of NormSoftmax with AdamW on its share of a batch of random rows.
``held`` is the growth of a process's memory between two steps, ``peak`` the largest growth within a step, each of the
process with the most; freed memory returns to the system (MALLOC_MMAP_THRESHOLD_). Seconds are the median of the steps
after the first; CPU seconds are the sum over all processes. ``--whole`` splits nothing. The last column is the loss of
the last step.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from typing import Any

import numpy as np
import torch
from measured import head, row, status_bytes, together
from torch import nn

STEPS = 6


def measure(classes: int, dim: int, batch: int) -> dict[str, Any]:
    from hgld import distributed
    from hgld.hierarchy import Hierarchy
    from hgld.training.config import LossConfig, OptimizerConfig
    from hgld.training.criterion import build_criterion
    from hgld.training.optimizers import build_optimizers, step_optimizers
    from hgld.training.step import Backward, StepInput

    torch.set_num_threads(1)
    labels = torch.arange(classes)[:, None]
    tree = Hierarchy.from_labels(labels.numpy(), ("fine",))
    done, samples, seconds, cpu, value = threading.Event(), [0], [], [], 0.0
    with distributed.process_group("cpu", str) as processes:
        torch.manual_seed(0)
        model = nn.Linear(dim, dim)
        wrapped = distributed.wrap_model(model, processes)
        before = status_bytes("RssAnon")

        def watch() -> None:
            while not done.wait(0.01):
                samples.append(status_bytes("RssAnon") - before)

        sizes: dict[str, Any] = {"hierarchy": tree, "train_labels": labels, "dim": dim, "steps_per_epoch": STEPS}
        criterion = build_criterion(LossConfig(loss="NormSoftmax"), **sizes, processes=processes)
        parts = {"head": list(model.named_parameters()), "proxies": list(criterion.named_parameters())}
        optimizers = build_optimizers(OptimizerConfig(optimizer="adamw"), parts, processes)
        backward = Backward(wrapped, criterion, processes, prepare=lambda rows: rows)
        own = slice(processes.index * batch // processes.count, (processes.index + 1) * batch // processes.count)
        watcher = threading.Thread(target=watch)
        for step in range(STEPS):
            if step == 1:
                watcher.start()
            begin, worked = time.perf_counter(), time.process_time()
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=True)
            rng = np.random.default_rng(step)
            rows = torch.from_numpy(rng.standard_normal((batch, dim), dtype=np.float32))[own]
            known = torch.from_numpy(rng.integers(classes, size=(batch, 1)))[own]
            value = float(backward(StepInput(rows, known, torch.arange(batch)[own], step)).loss)
            step_optimizers(optimizers, processes)
            seconds.append(time.perf_counter() - begin)
            cpu.append(time.process_time() - worked)
        done.set()
        watcher.join()
        held = status_bytes("RssAnon") - before
    times = {"seconds": statistics.median(seconds[1:]), "cpu": statistics.median(cpu[1:])}
    return {"held": held, "peak": max(samples), **times, "loss": value}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--classes", type=int, default=46_593)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--count", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        if asked.whole:
            from hgld import distributed

            distributed._SPLIT_NUMBERS = sys.maxsize
        print(json.dumps(measure(asked.classes, asked.dim, asked.batch)))
        return
    words = ["--classes", str(asked.classes), "--dim", str(asked.dim), "--batch", str(asked.batch)]
    words += ["--whole"] * asked.whole
    print(head("processes", "held, MB", "peak, MB", "s per step", "CPU s per step, all", "loss"), flush=True)
    for count in asked.count:
        found = together(count, __file__, "--measure", *words, MALLOC_MMAP_THRESHOLD_="1000000")
        held, peak = (f"{max(one[name] for one in found) / 1e6:.0f}" for name in ("held", "peak"))
        seconds, cpu = f"{max(one['seconds'] for one in found):.2f}", f"{sum(one['cpu'] for one in found):.2f}"
        values = "/".join(f"{value:.6f}" for value in sorted({one["loss"] for one in found}))
        print(row([count, held, peak, seconds, cpu, values]), flush=True)


if __name__ == "__main__":
    main()

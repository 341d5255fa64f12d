"""Seconds that training waits for a checkpoint, and what a copy in memory would take, for a write in the background.

Run with: python benchmarks/checkpoints.py --work DIR [--millions 100] [--rounds 3]

A checkpoint has the parameters of a model in float32 and AdamW's two moments of each. Prints CSV: wall seconds (which
depend on the disk) and CPU seconds, one row per round.
"""

import argparse
import shutil
import time
from pathlib import Path

import torch

from hgld.training.checkpoint import Checkpoint, write_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--millions", type=int, default=100, help="millions of parameters")
    parser.add_argument("--rounds", type=int, default=3)
    told = parser.parse_args()
    torch.set_num_threads(1)
    model = {f"layer{i}": torch.randn(1_000_000) for i in range(told.millions)}
    moments = {f"{name}.{moment}": torch.randn(1_000_000) for name in model for moment in ("exp_avg", "exp_avg_sq")}
    print('what,"wall, s","CPU, s"')
    for number in range(told.rounds):
        wall, cpu = time.monotonic(), time.process_time()
        write_checkpoint(told.work, Checkpoint(number + 1, {"model": model, "optimizer": moments}, {}))
        print(f"write,{time.monotonic() - wall:.1f},{time.process_time() - cpu:.1f}", flush=True)
        shutil.rmtree(told.work / "checkpoints")
    wall, cpu = time.monotonic(), time.process_time()
    copies = [tensor.clone() for part in (model, moments) for tensor in part.values()]
    print(f"copy of {len(copies)} tensors,{time.monotonic() - wall:.1f},{time.process_time() - cpu:.1f}")


if __name__ == "__main__":
    main()

"""Seconds and memory of opening a dataset of millions of items, and of reading from it.

    python benchmarks/large_dataset.py --work DIR [--items 5000000] [--reads 200000]

The index is made in DIR where it is not there yet; its shards are files of holes, 22,000 bytes an item, which take no
room on the disk: what is measured is hgld's part, not a disk's. Opening and reading happen in a process of its own.
Seconds are the processor's; memory is the growth of the peak over that of the imports.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import made_shards
import numpy as np

from hgld import open_dataset

BATCH = 256


def make(folder: Path, items: int) -> None:
    """Write the index and the shards."""
    made_shards.write_large_index(folder, items)
    for shard in json.loads((folder / "dataset.json").read_text())["shards"]:
        with open(folder / shard["name"], "wb") as file:
            file.truncate(shard["bytes"])


def peak() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def measure(folder: Path, items: int, reads: int) -> dict[str, float]:
    """Open the dataset, then read items in order and at random."""
    before, found = peak(), {}
    began = time.process_time()
    dataset = open_dataset(folder, "train")
    found["open, seconds"], found["open, MiB"] = time.process_time() - began, (peak() - before) / 2**20
    assert len(dataset) == items
    draw = np.random.default_rng(0)
    for name, order in (("in order", np.arange(min(reads, items))), ("at random", draw.integers(0, items, reads))):
        began, read = time.process_time(), 0
        for batch in np.array_split(order, max(1, len(order) // BATCH)):
            read += sum(map(len, dataset.read_many(batch)))
        assert read == 22_000 * len(order)
        found[f"read {name}, seconds"] = time.process_time() - began
    found["all, MiB"] = (peak() - before) / 2**20
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--items", type=int, default=5_000_000)
    parser.add_argument("--reads", type=int, default=200_000)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.work / f"large-{given.items}"
    if given.measure:
        print(json.dumps(measure(folder, given.items, given.reads)))
        return
    if not (folder / "dataset.json").exists():
        make(folder, given.items)
    words = [sys.executable, __file__, "--measure", "--work", str(given.work)]
    words += ["--items", str(given.items), "--reads", str(given.reads)]
    found = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
    print("| what | figure |\n|---|---:|")
    for name, value in found.items():
        print(f"| {name} | {value:,.1f} |")


if __name__ == "__main__":
    main()

"""Seconds and memory of exact evaluation with a gallery of millions, memory-mapped from a float16 file.

Run with: python benchmarks/millions.py --folder DIR [--items 4100000] [--dim 512] [--queries 1000] [--threads 1]
    [--only gemm heads lists torch faiss]

The file, of 2 x items x dim bytes, is written to the folder if it is missing; remove it afterwards. Every
row runs in a child process that reads the file again:

- ``gemm``: only the products of all queries with the gallery, read from the file tile by tile
- ``heads``: R@1, R@10 and mAP@100 at three levels
- ``lists``: AP and R@1 at three levels, H-AP, NDCG, ASI, from the whole ranking of every query
- ``torch``: matmul and topk(100), with the gallery in memory as float32
- ``faiss``: IndexFlatIP, with the gallery in memory as float32

torch and faiss are slow, so they get one query in eight, and their seconds are multiplied by eight. Loading the gallery
into memory or into the index is not timed. CPU seconds are summed over threads. Memory is the peak of the process
without the pages of the file, which the system can free at any time.
"""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measured import head, in_its_own_process, make_parser, row, watched_memory

SIDES = ("gemm", "heads", "lists", "torch", "faiss")
HEADS, LISTS = ("R@1", "R@10", "mAP@100"), ("AP", "R@1", "H-AP", "NDCG", "ASI")
BASE, TILE, SHARE = 1 << 16, 2048, 8


def make(path: Path, items: int, dim: int) -> None:
    """Write ``items`` vectors: repeated Gaussian vectors with random signs."""
    rng = np.random.default_rng(0)
    base = rng.standard_normal((BASE, dim), dtype=np.float32).astype(np.float16)
    table = np.lib.format.open_memmap(path, "w+", np.float16, (items, dim))
    for start in range(0, items, BASE):
        part = table[start : start + BASE]
        part[:] = base[: len(part)] * rng.choice(np.array([-1, 1], np.float16), dim)
    table.flush()


def labels_of(items: int) -> np.ndarray:
    """Return labels that resemble landmarks': some 20 images per class, 3,000 groups, and two top classes."""
    fine = np.random.default_rng(1).integers(0, items // 20, items)
    group = fine % 3000
    return np.stack([fine, group, (group % 3 == 0).astype(int)], axis=1)


def read(path: Path, queries: int) -> tuple[np.ndarray, np.ndarray]:
    gallery = np.load(path, mmap_mode="r")
    noise = np.random.default_rng(2).standard_normal((queries, gallery.shape[1]), dtype=np.float32)
    return gallery[:queries].astype(np.float32) + noise, gallery


def gemm(query: np.ndarray, gallery: np.ndarray) -> None:
    rows, part = torch.from_numpy(query), torch.empty(TILE, query.shape[1])
    out = torch.empty(len(query), TILE)
    for start in range(0, len(gallery), TILE):
        here = torch.from_numpy(gallery[start : start + TILE].copy())
        tile = part[: len(here)].copy_(here)
        torch.mm(rows, tile.T, out=out[:, : len(here)])


def by_hgld(query: np.ndarray, gallery: np.ndarray, metrics: tuple[str, ...]) -> None:
    from hgld.evaluation.evaluate import evaluate

    labels = labels_of(len(gallery))
    report = evaluate(query, labels[: len(query)], gallery, labels, metrics=metrics)
    print({name: round(value, 4) for name, value in report.values.items()}, file=sys.stderr)


def by_torch(query: np.ndarray, whole: torch.Tensor) -> None:
    for rows in torch.from_numpy(query).split(16):
        (rows @ whole.T).topk(100)


def by_faiss(query: np.ndarray, index: Any) -> None:
    index.search(query, 100)


def in_memory(gallery: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(gallery.astype(np.float32))


def indexed(gallery: np.ndarray) -> Any:
    import faiss  # pyright: ignore[reportMissingImports]

    index = faiss.IndexFlatIP(gallery.shape[1])
    for start in range(0, len(gallery), BASE):
        index.add(gallery[start : start + BASE].astype(np.float32))  # pyright: ignore[reportCallIssue]
    return index


def measure(side: str, path: Path, queries: int, threads: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    share = SHARE if side in ("torch", "faiss") else 1
    query, gallery = read(path, queries)
    run = {
        "gemm": gemm,
        "heads": lambda q, g: by_hgld(q, g, HEADS),
        "lists": lambda q, g: by_hgld(q, g, LISTS),
        "torch": by_torch,
        "faiss": by_faiss,
    }[side]
    prepare = {"torch": in_memory, "faiss": indexed}.get(side, np.asanyarray)
    run(query[:4], prepare(gallery[:5000]))  # warm up
    held = prepare(gallery)
    with watched_memory() as peaks:
        start, cpu = time.perf_counter(), time.process_time()
        run(query[: len(query) // share], held)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {"seconds": seconds * share, "cpu": cpu * share, "bytes": max(peaks.values())}


def main() -> None:
    parser = make_parser(__doc__, folder=Path, items=4_100_000, dim=512, queries=1000, threads=1)
    parser.add_argument("--only", nargs="+", choices=SIDES, default=SIDES)
    options = parser.parse_args()
    path = options.folder / f"gallery-{options.items}x{options.dim}.npy"
    if not path.exists():
        make(path, options.items, options.dim)
    print(head("side", "seconds", "CPU seconds", "times gemm's CPU", "memory, MB"))
    first = 0.0
    for side in options.only:
        found = in_its_own_process(measure, side, path, options.queries, options.threads)
        first = first or found["cpu"]
        cells = [side, f"{found['seconds']:.1f}", f"{found['cpu']:.1f}", f"{found['cpu'] / first:.2f}"]
        print(row([*cells, found["bytes"] >> 20]), flush=True)


if __name__ == "__main__":
    main()

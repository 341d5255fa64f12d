"""Exhaustive search against kept indexes of faiss: time and recall@10 on clustered unit vectors.

Run with: python benchmarks/search.py [--items 100000 1000000] [--dim 128] [--queries 200] [--spread 1.25]
          [--decay 0 --prefix 32 --shortlist 200] [--only exact prefix ivf hnsw]

faiss-cpu is an extra: pip install 'hgld[faiss]'. One thread. Times are processor seconds. "opened" is the
preparation of a command: an index is checked and read; for an exhaustive search, embeddings are read and normalised.
"prefix" compares all by the first numbers, a shortlist by all; with --decay P the deviation of number i is (1 + i)^-P,
as training of prefixes or principal axes order them. "reading alone" is the time that one thread takes to add up what
an exhaustive search or a prefix has to read for a query: no search of that kind can be faster on this machine.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # faiss and torch each bring an OpenMP that reads it when first imported

import numpy as np
import torch

from hgld.evaluation.neighbors import nearest_neighbors
from hgld.evaluation.scores import exact_products, prepare_embeddings
from hgld.training.inference.search_index import IndexKind, KeptIndex, SearchIndex

K = 10
SIDES = ("exact", "prefix", "ivf", "hnsw")
Found = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Row:
    """Processor seconds to make, to open, a query, alone and among 100, and to read; bytes; (Q, K) indices."""

    made: float
    opened: float
    one: float
    many: float
    read: float
    size: int
    found: np.ndarray


def make(items: int, dim: int, queries: int, spread: float, decay: float) -> tuple[np.ndarray, np.ndarray]:
    """Return gallery and queries of items / 20 classes in 500 groups; ``spread`` is that of a class."""
    rng = np.random.default_rng(0)

    def noise(count: int) -> np.ndarray:
        return rng.standard_normal((count, dim), dtype=np.float32)

    classes = items // 20
    centres = noise(500)[rng.integers(500, size=classes)] + noise(classes)
    both = centres[rng.integers(classes, size=items + queries)] + spread * noise(items + queries)
    both *= np.float32((1.0 + np.arange(dim)) ** -decay)
    both /= np.linalg.norm(both, axis=1, keepdims=True)
    return both[:items], both[items:]


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def a_query(ask: Callable[[np.ndarray], Found], queries: np.ndarray, at_once: int) -> tuple[float, np.ndarray]:
    """Measure processor seconds a query, ``at_once`` of them asked together; return them with the results."""
    ask(queries[:at_once])  # warm up: memory is allocated
    start = time.process_time()
    found = [ask(queries[begin : begin + at_once])[0] for begin in range(0, len(queries), at_once)]
    return (time.process_time() - start) / len(queries), np.concatenate(found)


def exhaustive(gallery: torch.Tensor) -> Callable[[np.ndarray], Found]:
    """Search as :func:`hgld.evaluation.neighbors.nearest_neighbors` does, without preparing the gallery again."""

    def ask(queries: np.ndarray) -> Found:
        with exact_products(gallery.device):
            scores, indices = (torch.from_numpy(queries) @ gallery.T).topk(K, dim=1)
        return indices.numpy(), scores.numpy()

    return ask


def by_prefix(gallery: torch.Tensor, short: torch.Tensor, shortlist: int) -> Callable[[np.ndarray], Found]:
    """Search by the first numbers, and rank a shortlist by all of them."""

    def ask(queries: np.ndarray) -> Found:
        rows = torch.from_numpy(queries)
        with exact_products(gallery.device):
            listed = (rows[:, : short.shape[1]] @ short.T).topk(shortlist, dim=1).indices
            scores, order = torch.einsum("qd,qnd->qn", rows, gallery[listed]).topk(K, dim=1)
        return listed.gather(1, order).numpy(), scores.numpy()

    return ask


def reading(table: torch.Tensor) -> float:
    return min(timed(table.sum) for _ in range(5))


def measure(side: str, gallery: np.ndarray, queries: np.ndarray, folder: Path, prefix: int, shortlist: int) -> Row:
    read = float("nan")
    if side in ("exact", "prefix"):
        np.save(folder / "e.npy", gallery)
        kept = np.load(folder / "e.npy", mmap_mode="r")
        prepared = []
        opened = timed(lambda: prepared.append(prepare_embeddings(kept, "gallery")))
        ask, made, size = exhaustive(prepared[0]), 0.0, (folder / "e.npy").stat().st_size
        read = reading(prepared[0])
        if side == "prefix":
            opened += timed(lambda: prepared.append(prepare_embeddings(kept[:, :prefix], "gallery")))
            ask, read = by_prefix(prepared[0], prepared[1], shortlist), reading(prepared[1])
    else:
        kind: IndexKind = "ivf" if side == "ivf" else "hnsw"
        index_folder = KeptIndex(folder / side, kind, {})
        made = timed(lambda: index_folder.make(gallery, np.arange(len(gallery))))
        indexes = []
        opened = timed(lambda: indexes.append(index_folder.load()))
        size = sum(file.stat().st_size for file in (folder / side).iterdir())
        index: SearchIndex = indexes[0]
        ask = lambda rows: index.nearest(rows, K)  # noqa: E731
    one, found = a_query(ask, queries, 1)
    many, _ = a_query(ask, queries, 100)
    return Row(made, opened, one, many, read, size, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--spread", type=float, default=1.25, help="100: no clusters to speak of")
    parser.add_argument("--decay", type=float, default=0.0, help="of the deviations along the numbers of a vector")
    parser.add_argument("--prefix", type=int, default=32)
    parser.add_argument("--shortlist", type=int, default=200)
    parser.add_argument("--only", nargs="+", choices=SIDES, default=SIDES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    heads = ["items", "search", "made, s", "MB", "opened, s", "a query, ms", "a query of 100, ms", "reading alone, ms"]
    heads += ["times as fast", "recall@10"]
    print(f"| {' | '.join(heads)} |\n|---:|---|{'---:|' * (len(heads) - 2)}", flush=True)
    for items in options.items:
        gallery, queries = make(items, options.dim, options.queries, options.spread, options.decay)
        expected, _ = nearest_neighbors(queries, gallery, K)
        slowest = None
        for side in options.only:
            with tempfile.TemporaryDirectory() as folder:
                row = measure(side, gallery, queries, Path(folder), options.prefix, options.shortlist)
            slowest = slowest or row.one
            hits = [len(set(a) & set(b)) / K for a, b in zip(row.found, expected, strict=True)]
            cells = [f"{items:,}", side, f"{row.made:.1f}", f"{row.size / 1e6:,.0f}", f"{row.opened:.2f}"]
            cells += [
                f"{1e3 * row.one:.2f}",
                f"{1e3 * row.many:.2f}",
                "-" if row.read != row.read else f"{1e3 * row.read:.2f}",
                f"{slowest / row.one:.0f}",
                f"{np.mean(hits):.3f}",
            ]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

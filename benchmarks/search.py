"""Compare exhaustive search with saved faiss indexes: time and recall@10 on clustered unit vectors.

Run with: python benchmarks/search.py [--items 100000 1000000] [--dim 128] [--queries 200] [--spread 1.25]
          [--only exact ivf hnsw]

--spread is the spread of items within a class; with 100 there are almost no clusters. faiss-cpu is an extra: pip
install 'hgld[faiss]'. Every search uses one thread. Times are CPU seconds. "opened" is the
time before the first query: an index is checked and read, or embeddings are read and normalised for an exhaustive
search.
"""

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # set before imports: the OpenMP libraries of faiss and torch read it at import

import numpy as np
import torch
from measured import head, make_parser, row

from hgld.evaluation.neighbors import nearest_neighbors
from hgld.evaluation.scores import exact_products, prepare_embeddings
from hgld.training.inference.search_index import IndexKind, KeptIndex
from hgld.user_cache import KeptFolder

K = 10
SIDES = ("exact", "ivf", "hnsw")
Found = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Search:
    """Results: seconds to make and open an index, seconds per query, bytes, and indices (Q, K)."""

    made: float
    opened: float
    one: float
    many: float
    size: int
    found: np.ndarray


def make(items: int, dim: int, queries: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Return gallery and queries with items / 20 classes in 500 groups; ``spread`` is the spread within a class."""
    rng = np.random.default_rng(0)

    def noise(count: int) -> np.ndarray:
        return rng.standard_normal((count, dim), dtype=np.float32)

    classes = items // 20
    centres = noise(500)[rng.integers(500, size=classes)] + noise(classes)
    both = centres[rng.integers(classes, size=items + queries)] + spread * noise(items + queries)
    both /= np.linalg.norm(both, axis=1, keepdims=True)
    return both[:items], both[items:]


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def a_query(ask: Callable[[np.ndarray], Found], queries: np.ndarray, at_once: int) -> tuple[float, np.ndarray]:
    """Measure CPU seconds per query with ``at_once`` queries per call; return them with the results."""
    ask(queries[:at_once])  # warm-up call: it allocates memory
    start = time.process_time()
    found = [ask(queries[begin : begin + at_once])[0] for begin in range(0, len(queries), at_once)]
    return (time.process_time() - start) / len(queries), np.concatenate(found)


def exhaustive(gallery: torch.Tensor) -> Callable[[np.ndarray], Found]:
    """Search like :func:`hgld.evaluation.neighbors.nearest_neighbors`, with a prepared gallery."""

    def ask(queries: np.ndarray) -> Found:
        with exact_products(gallery.device):
            scores, indices = (torch.from_numpy(queries) @ gallery.T).topk(K, dim=1)
        return indices.numpy(), scores.numpy()

    return ask


def measure(side: str, gallery: np.ndarray, queries: np.ndarray, folder: Path) -> Search:
    opened: list[Any] = []
    if side == "exact":
        np.save(folder / "e.npy", gallery)
        kept = np.load(folder / "e.npy", mmap_mode="r")
        seconds = timed(lambda: opened.append(prepare_embeddings(kept, "gallery")))
        ask, made, size = exhaustive(opened[0]), 0.0, (folder / "e.npy").stat().st_size
    else:
        kind: IndexKind = "ivf" if side == "ivf" else "hnsw"
        os.environ["XDG_CACHE_HOME"] = str(folder)
        index_folder = KeptIndex(KeptFolder("indexes", {"side": side}), kind)
        made = timed(lambda: index_folder.make(gallery, np.arange(len(gallery))))
        seconds = timed(lambda: opened.append(index_folder.load()))
        size = sum(file.stat().st_size for file in index_folder.kept.folder.iterdir())
        ask = lambda rows: opened[0].nearest(rows, K)  # noqa: E731
    one, found = a_query(ask, queries, 1)
    many, _ = a_query(ask, queries, 100)
    return Search(made, seconds, one, many, size, found)


def main() -> None:
    parser = make_parser(__doc__, items=[100_000, 1_000_000], dim=128, queries=200, spread=1.25)
    parser.add_argument("--only", nargs="+", choices=SIDES, default=SIDES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(head("items", "search", "made, s", "MB", "opened, s", "a query, ms", "of 100, ms", "faster", "recall@10"))
    for items in options.items:
        gallery, queries = make(items, options.dim, options.queries, options.spread)
        expected, _ = nearest_neighbors(queries, gallery, K)
        slowest = None
        for side in options.only:
            with tempfile.TemporaryDirectory() as folder:
                found = measure(side, gallery, queries, Path(folder))
            slowest = slowest or found.one
            hits = np.mean([len(set(a) & set(b)) / K for a, b in zip(found.found, expected, strict=True)])
            cells = [f"{found.made:.1f}", f"{found.size / 1e6:,.0f}", f"{found.opened:.2f}", f"{1e3 * found.one:.2f}"]
            cells += [f"{1e3 * found.many:.2f}", f"{slowest / found.one:.0f}", f"{hits:.3f}"]
            print(row([f"{items:,}", side, *cells]), flush=True)


if __name__ == "__main__":
    main()

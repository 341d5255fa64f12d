"""Memory and seconds of processes that embed and evaluate together, and whether their values are those of one process.

Run with: python benchmarks/processes.py [--items 300000] [--dim 512] [--queries 1024] [--process]

Every process writes its share of a gallery of random rows, batch by batch, as if a model had computed them. It
ranks its share of the queries against all rows: AP, R@1, mAP@R, H-AP, NDCG and ASI at three levels. ``--process``
first fits a whitening to all rows, applies it to rows and queries, and expands the queries. ``--over-time FILE`` also
appends the memory of the process with the highest peak per half second. Memory is the largest peak of a process,
without the pages of files, which the system can free at any time. ``digest`` is of the values of all queries.
"""

import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measured import head, make_parser, row, together, watched_memory

METRICS = ("AP", "R@1", "mAP@R", "H-AP", "NDCG", "ASI")
BATCH = 256


def rows_of(items: np.ndarray, dim: int) -> torch.Tensor:
    """Return random rows, some 20 of a class near each other; a row depends only on its number."""
    made = np.empty((len(items), dim), np.float32)
    for place, item in enumerate(items.tolist()):
        made[place] = np.random.default_rng(item // 20).standard_normal(dim, dtype=np.float32)
        made[place] += 2 * np.random.default_rng(item + 10**7).standard_normal(dim, dtype=np.float32)
    return torch.from_numpy(made)


def labels_of(items: np.ndarray) -> np.ndarray:
    fine = items // 20
    return np.stack([fine, fine % 300, fine % 2], axis=1)


def measure(items: int, dim: int, queries: int, is_processed: bool) -> dict[str, Any]:
    from hgld import distributed
    from hgld.evaluation.evaluate import evaluate
    from hgld.evaluation.options import EvaluationOptions
    from hgld.evaluation.postprocess import Whitening
    from hgld.evaluation.row_table import RowTable, Sharing, shared_folder

    torch.set_num_threads(1)
    with watched_memory() as samples, distributed.process_group("cpu", str) as processes:
        batches = [np.arange(start, min(start + BATCH, items)) for start in range(0, items, BATCH)]
        own = batches[processes.index :: processes.count]
        asked = np.sort(np.random.default_rng(0).permutation(items)[:queries])
        begin, cpu = time.perf_counter(), time.process_time()
        with shared_folder(processes) as folder:
            table = RowTable((items, dim), processes, folder)
            for batch in own:
                table.write(batch, rows_of(batch, dim))
            table.close()
            gallery = table.read()
            embedded = time.perf_counter() - begin, time.process_time() - cpu
            share, query = Sharing(processes, folder), rows_of(asked, dim) + 0.5
            if is_processed:
                whitening = Whitening.fit(gallery, fitted_on="gallery", share=share)
                gallery, query = whitening.apply(gallery, share), whitening.apply(query)
            expansion = (2.0, 10) if is_processed else None
            options = EvaluationOptions(metrics=METRICS, query_expansion=expansion, share=share)
            labels = labels_of(np.arange(items))
            report = evaluate(query, labels[asked], gallery, labels, levels=("a", "b", "c"), options=options)
            distributed.wait_for_all(processes)
        total = time.perf_counter() - begin, time.process_time() - cpu
    digest = hashlib.sha256(report.per_query.to_numpy().tobytes()).hexdigest()[:12]
    return {"embed": embedded, "total": total, "over_time": samples, "digest": digest}


def main() -> None:
    parser = make_parser(__doc__, items=300_000, dim=512, queries=1024, count=[1, 2, 4])
    parser.add_argument("--process", action="store_true")
    parser.add_argument("--over-time", type=Path, metavar="FILE", help="CSV to append the memory per half second to")
    asked = parser.parse_args()
    table = asked.items * asked.dim * 4
    columns = ("processes", "memory, MB", "allowed, MB", "seconds", "of these embedding", "CPU seconds, all", "digest")
    print(head(*columns), flush=True)
    for count in asked.count:
        found = together(count, measure, asked.items, asked.dim, asked.queries, asked.process)
        largest = max((one["over_time"] for one in found), key=lambda samples: max(samples.values()))
        seconds = [max(one[name][0] for one in found) for name in ("total", "embed")]
        cells = [count, int(max(largest.values()) / 1e6), int(((1 / count + 0.1) * table + 500e6) / 1e6)]
        cpu = sum(one["total"][1] for one in found)
        digests = "/".join(sorted({one["digest"] for one in found}))
        if asked.over_time:
            with asked.over_time.open("a", encoding="utf-8") as file:
                for half, size in largest.items():
                    file.write(f"{count},one file,{half / 2},{size / 1e6:.0f}\n")
        print(row([*cells, *(f"{one:.1f}" for one in seconds), f"{cpu:.1f}", digests]), flush=True)


if __name__ == "__main__":
    main()

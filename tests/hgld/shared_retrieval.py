"""Batches of a Retrieval metric on several processes, which test_own_loops.py runs in several processes."""

import json
from pathlib import Path
from typing import Any

import torch

from hgld import distributed
from hgld.errors import HgldError
from hgld.evaluation.report import RetrievalReport
from hgld.metrics import Retrieval

EMBEDDINGS = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
CLASSES = torch.stack([torch.arange(12) // 3, torch.arange(12) // 6], dim=1)
NAMES = [f"class {c}" for c in CLASSES[:, 0].tolist()]
LEVELS = ("fine", "coarse")


def told(report: RetrievalReport) -> list[str]:
    """Return the values of a report and of its queries; as text, because NaN does not equal NaN."""
    return [str(report.values), report.per_query.write_csv()]


def batch(rows: Any, *, items: bool = False, gallery: bool = False, names: bool = False) -> tuple[tuple, dict]:
    rows = torch.as_tensor(rows)
    labels = [NAMES[row] for row in rows.tolist()] if names else CLASSES[rows]
    return (EMBEDDINGS[rows], labels, *([rows] if items else [])), {"gallery": gallery}


def answer(out: str) -> None:
    """Run as one of two processes, and write the reports of all cases to a file."""
    run = distributed.launch("cpu")
    first = run.is_main
    cases = {
        "items on both processes": [batch([0, 2, 4, 6, 8, 10, 11] if first else [1, 3, 5, 7, 9, 11, 0], items=True)],
        "in turn": [batch(range(4))] if first else [batch(range(4, 9)), batch(range(9, 12))],
        "names": [batch(range(4) if first else range(4, 12), names=True)],
        "all items on one process": [batch(range(12))] if first else [],
        "gallery on one process": [batch(range(6))] if first else [batch(range(6, 12), gallery=True)],
        "other dimension": [((EMBEDDINGS[:4, : 3 + first], CLASSES[:4]), {})],
        "no batch": [],
    }
    found: dict[str, list[str]] = {}
    for name, batches in cases.items():
        metric = Retrieval(None if name == "names" else LEVELS)
        try:
            for arguments, named in batches:
                metric.update(*arguments, **named)
            found[name] = told(metric.report())
            if name == "in turn":  # a batch on one process makes all processes evaluate again
                if not first:
                    metric.update(EMBEDDINGS[:2], CLASSES[:2])
                found["a later batch"] = told(metric.report())
        except HgldError as error:
            found[name] = [str(error)]
    Path(f"{out}.{run.index}").write_text(json.dumps(found), encoding="utf-8")
    distributed.wait_for_all(run)
    distributed.shutdown(run)

"""Faces as Smooth-AP evaluates them: every face or template queries the others, mean average precision by identity.

Brown, Xie, Kalogeiton, Zisserman: "Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval", ECCV 2020.
Identities with fewer than five images are dropped. The frames of a template (IJB-C) are averaged to one embedding.
"""

from dataclasses import replace

import numpy as np
import polars as pl
import torch

from hgld.errors import InputError, quoted
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.protocols.benchmark import Benchmark, EmbeddedSplit
from hgld.evaluation.protocols.labelled import rank_by_labels
from hgld.evaluation.report import RetrievalReport

LEAST_IMAGES = 5
TEMPLATE = "template/"  # begins the name of every list that holds the frames of a template


def evaluate_faces(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the split ``test`` by the finest labels, without identities of fewer than five images.

    Lists called ``template/NAME`` hold the frames of a template: their unit embeddings are averaged to one item. Images
    are counted before that.

    Returns:
        the report; its settings count identities and images that were dropped, and the templates.

    Raises:
        InputError: no identity has five images, or a template has frames of several identities or twice a frame.
    """
    split = benchmark["test"]
    identities, member, sizes = np.unique(split.labels[:, 0], return_inverse=True, return_counts=True)
    kept = (sizes >= LEAST_IMAGES) & (identities >= 0)
    if not kept.any():
        raise InputError(
            f"dataset {benchmark.name}: none of its {len(identities)} identities has {LEAST_IMAGES} images; the "
            "protocol faces drops those with fewer. Name another protocol (--protocol leave-one-out)."
        )
    rows = np.flatnonzero(kept[member])
    items, templates = _averaged(benchmark, split, rows)
    report = rank_by_labels(benchmark, items, None, options)
    stated = {
        "identities_dropped": int((~kept & (identities >= 0)).sum()),
        "images_dropped": len(split) - len(rows),
        "templates": templates,
    }
    return replace(report, settings=report.settings | stated)


def _averaged(benchmark: Benchmark, split: EmbeddedSplit, rows: np.ndarray) -> tuple[EmbeddedSplit, int]:
    """Return the items of some rows with every template's frames as one item, and the number of templates."""
    empty = pl.DataFrame(schema={"list": pl.String, "key": pl.String})
    lists = empty if benchmark.lists is None else benchmark.lists
    framed = lists.filter(pl.col("list").str.starts_with(TEMPLATE))
    own = pl.DataFrame({"key": split.keys.gather(rows), "row": rows})
    named = own.join(framed, on="key", how="left", maintain_order="left")
    if len(named) > len(own):
        twice = named.filter(pl.col("key").is_duplicated())["key"][0]
        raise InputError(
            f"dataset {benchmark.name}: {quoted(twice)} is a frame of several templates; expected one at most."
        )
    item = named.select(pl.coalesce("list", pl.format("image {}", "key")))["list"]
    names, member = np.unique(item.to_numpy(), return_inverse=True)
    labels = np.full((len(names), split.labels.shape[1]), -1)
    labels[member] = split.labels[rows]
    torn = np.flatnonzero(labels[member, 0] != split.labels[rows, 0])
    if len(torn):
        raise InputError(
            f"dataset {benchmark.name}: the list {quoted(item[int(torn[0])])} has frames of several identities; "
            "expected one."
        )
    vectors = torch.as_tensor(split.vectors[rows]).double()
    unit = (vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True)).cpu()
    means = torch.zeros(len(names), vectors.shape[1], dtype=torch.float64)
    means.index_add_(0, torch.from_numpy(member), unit)
    counts = torch.from_numpy(np.bincount(member, minlength=len(names)))
    keys = pl.Series("key", names.tolist(), dtype=pl.String)
    averaged = EmbeddedSplit((means / counts[:, None]).float(), keys, labels)
    return averaged, int(keys.str.starts_with(TEMPLATE).sum())

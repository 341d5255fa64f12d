"""PKU VehicleID: one image of every vehicle is the gallery, drawn anew several times, and the rest query it.

Liu, Tian, Wang, Pang, Huang: "Deep Relative Distance Learning: Tell the Difference Between Similar Vehicles", CVPR
2016. The test lists are small (800 vehicles), medium (1,600) and large (2,400). The published code of Smooth-AP and
the works that compare with it take leave-one-out over a list instead: :func:`hgld.evaluate` without a gallery.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from hgld.errors import ConfigError, InputError, TableError
from hgld.evaluation.evaluate import evaluate_labelled
from hgld.evaluation.options import EvaluationOptions, Progress
from hgld.evaluation.protocols.benchmark import Benchmark
from hgld.evaluation.protocols.levels import join_reports
from hgld.evaluation.protocols.trapezoid import read_list_lines
from hgld.evaluation.report import RetrievalReport

_LEVEL = "vehicle"
TEST_LISTS = {"small": 800, "medium": 1600, "large": 2400}


def read_vehicle_list(path: str | Path) -> pl.DataFrame:
    """Read a list of VehicleID (``test_list_800.txt``): an image and its vehicle a line.

    Returns:
        image (text, without ``.jpg``), vehicle (Int64), in the order of the file.

    Raises:
        TableError: a line that is not an image and a vehicle, or a test list without as many vehicles as its name says.
    """
    file = Path(path)
    rows = [words for words in read_list_lines(file) if words]
    for number, row in enumerate(rows, start=1):
        if len(row) != 2 or not row[1].isascii() or not row[1].isdigit() or len(row[1]) > 18:
            raise TableError(
                f"{file}: row {number} is {' '.join(row)[:80]!r}; expected an image and a vehicle's number."
            )
    schema = {"image": pl.String, "vehicle": pl.Int64}
    table = pl.DataFrame({"image": [r[0] for r in rows], "vehicle": [int(r[1]) for r in rows]}, schema=schema)
    wanted = {f"test_list_{count}.txt": count for count in TEST_LISTS.values()}.get(file.name)
    found = table["vehicle"].n_unique()
    if wanted is not None and found != wanted:
        raise TableError(f"{file}: {found} vehicles; expected {wanted}, as its name says. Is the file whole?")
    return table


def draw_gallery(labels: Tensor | np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draw one item of every class at random.

    Args:
        labels: (N,) integers.
        generator: source of the draw.

    Returns:
        (C,) int64 indices, ascending.
    """
    order = generator.permutation(len(labels))
    _, first = np.unique(np.asarray(labels)[order], return_index=True)
    return np.sort(order[first])


def evaluate_vehicle_id(
    embeddings: Tensor | np.ndarray,
    labels: Tensor | np.ndarray,
    *,
    metrics: Sequence[str] = ("R@1", "R@5"),
    repeats: int = 10,
    seed: int = 0,
    normalize: bool = True,
    chunk_size: int | None = None,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
) -> RetrievalReport:
    """Evaluate on one test list of VehicleID.

    Args:
        embeddings: (N, D) of the list's images.
        labels: (N,) integer vehicles.
        metrics: names of metrics; with one positive a query, R@k is the match rate at rank k.
        repeats: how often the gallery is drawn.
        seed: of the draws.
        normalize: scores are cosine similarities; False takes plain dot products.
        chunk_size: queries at a time; None chooses from the free memory.
        device: where to rank.
        progress: called with a task, the number of draws done and their total.

    Returns:
        a report of the means over all queries of all draws, one row a query and draw; its settings list the mean of
        every draw. The draws have as many queries, so the mean of their means is the same.

    Raises:
        InputError: labels that are not (N,), or no vehicle with two images.
        ConfigError: fewer than one repeat.
    """
    options = EvaluationOptions(
        metrics=metrics, normalize=normalize, chunk_size=chunk_size, device=device, progress=progress
    )
    return _evaluate_draws(embeddings, labels, options, repeats, seed)


def _evaluate_draws(
    embeddings: Tensor | np.ndarray,
    labels: Tensor | np.ndarray,
    options: EvaluationOptions,
    repeats: int,
    seed: int,
) -> RetrievalReport:
    vehicles = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if repeats < 1:
        raise ConfigError(f"repeats is {repeats}; expected at least 1.")
    if vehicles.ndim != 1 or len(vehicles) != len(embeddings):
        raise InputError(
            f"labels have shape {vehicles.shape} for {len(embeddings)} embeddings; expected one vehicle each."
        )
    if len(np.unique(vehicles)) == len(vehicles):
        raise InputError("no vehicle has two images: all would be in the gallery, and none would query.")
    generator = np.random.default_rng(seed)
    alone = replace(options, progress=None)
    reports = []
    for number in range(repeats):
        drawn = draw_gallery(vehicles, generator)
        rest = np.setdiff1d(np.arange(len(vehicles)), drawn)
        sides = [(embeddings[rows], vehicles[rows]) for rows in (rest, drawn)]
        reports.append(evaluate_labelled(*sides, levels=(_LEVEL,), options=alone))
        if options.progress is not None:
            options.progress("draw", number + 1, repeats)
    pooled = pl.concat([report.per_query for report in reports]).drop("query")
    columns = {name: pooled[name].to_numpy() for name in pooled.columns}
    draws = {name: [report.values[name] for report in reports] for name in columns}
    stated = {"protocol": "VehicleID", "repeats": repeats, "seed": seed, "draws": draws}
    return RetrievalReport.from_columns(columns, reports[0].settings | stated)


# -- the three lists of a dataset -------------------------------------------------------------------------------------


def evaluate_vehicle_lists(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the lists ``small``, ``medium`` and ``large`` of the split ``test``: ten drawn galleries each.

    Returns:
        a report of ``R@1/small`` and so on; its settings list the mean of every draw.

    Raises:
        InputError: a list is missing, or no vehicle of it has two images.
    """
    return _evaluate_lists(benchmark, options, drawn=True)


def evaluate_vehicle_lists_leave_one_out(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the three lists of the split ``test``, in each of which every image queries the others."""
    return _evaluate_lists(benchmark, options, drawn=False)


def _evaluate_lists(benchmark: Benchmark, options: EvaluationOptions, *, drawn: bool) -> RetrievalReport:
    split, reports, unknown = benchmark["test"], {}, 0
    for name in TEST_LISTS:
        rows = benchmark.listed(name, "test")
        known = rows[split.labels[rows, 0] >= 0]
        unknown += len(rows) - len(known)
        vectors, vehicles = split.vectors[known], split.labels[known, 0]
        if drawn:
            reports[name] = _evaluate_draws(vectors, vehicles, options, repeats=10, seed=0)
        else:
            reports[name] = evaluate_labelled((vectors, vehicles), levels=(_LEVEL,), options=options)
    report = join_reports(reports)
    return replace(report, settings=report.settings | ({"without_vehicle": unknown} if unknown else {}))

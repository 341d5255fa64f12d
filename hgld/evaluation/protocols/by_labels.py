"""Protocols with relevance from labels: leave-one-out, queries against a gallery, and averages over levels or lists.

- DyML: Sun et al., "Dynamic Metric Learning: Towards a Scalable Metric Space to Accommodate Multiple Semantic Scales",
  CVPR 2021. DyML-Vehicle and DyML-Animal have queries and a gallery for each level, with labels at this level only;
  DyML-Product has one split with labels at all three levels. The authors' evaluator drops the first hit of every
  query, because their galleries hold the queries. hgld finds the query in the gallery by identity and excludes it.
- Faces as Smooth-AP evaluates them (Brown et al., ECCV 2020): the frames of a template (IJB-C) are averaged to one
  embedding, and identities with fewer than five such instances are dropped.
- PKU VehicleID (Liu et al., "Deep Relative Distance Learning", CVPR 2016): one image of every vehicle is the gallery,
  drawn again ten times, and the other images query it. Papers on rank losses use leave-one-out over a list instead.
- UKBench (Nistér, Stewénius, CVPR 2006): 2,550 objects photographed four times; every image queries all images,
  including itself. The score is the number of the object's images among the first four.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import torch

from hgld.errors import ConfigError, InputError, quoted
from hgld.evaluation.evaluate import evaluate_labelled, refuse_undefined
from hgld.evaluation.metric import resolve
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.postprocess import expand_queries, quantize_embeddings
from hgld.evaluation.protocols.benchmark import Benchmark, EmbeddedSplit
from hgld.evaluation.report import RetrievalReport
from hgld.evaluation.scores import choose_device

# -- leave-one-out, and queries against a gallery ---------------------------------------------------------------------


def evaluate_leave_one_out(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the first split: every item queries the other items, and the distractors if there are any."""
    return rank_by_labels(benchmark, next(iter(benchmark.splits.values())), None, options)


def evaluate_query_gallery(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the split ``query`` against ``gallery``, and the distractors if there are any."""
    return rank_by_labels(benchmark, benchmark["query"], benchmark["gallery"], options)


def rank_by_labels(
    benchmark: Benchmark, query: EmbeddedSplit, gallery: EmbeddedSplit | None, options: EvaluationOptions
) -> RetrievalReport:
    """Evaluate a split at the levels that have labels in queries and gallery, with the benchmark's distractors.

    If queries or gallery have no labels at a level, only matches at finer levels would count there, so the values of
    this level would be meaningless.

    Args:
        benchmark: benchmark with levels and distractors; its name begins messages.
        query: embeddings and labels of Q queries.
        gallery: G items; None: every query searches the other queries.
        options: metrics and ranking options.

    Returns:
        the report. In its settings, ``levels_without_labels`` lists the excluded levels, and ``truncate_dim`` and
        ``quantize`` hold the metrics of the truncated and of the quantized embeddings.

    Raises:
        InputError: no level has labels in queries and gallery, or no value is defined.
        ConfigError: a metric's level has no labels, or ``truncate_dim`` exceeds the dimension.
    """
    where, levels = benchmark.name, benchmark.levels
    known = [(side.labels >= 0).any(axis=0) for side in (query, query if gallery is None else gallery)]
    kept = np.flatnonzero(known[0] & known[1]).tolist()
    names = [levels[column] for column in kept]
    without = [level for level in levels if level not in names]
    if not names:
        raise InputError(
            f"{where}: queries and gallery have no labelled level in common (levels: {', '.join(levels)}), so no item "
            "is relevant. Omit the split options to follow the dataset's protocol, or add labels."
        )
    asked = {str(metric) for metric in resolve(options.metrics, levels) if metric.level in without}
    if lost := [str(metric) for metric in options.metrics if str(metric) in asked]:
        raise ConfigError(
            f"{where}: the metrics {', '.join(lost)} need labels that the queries or the gallery lack "
            f"({', '.join(without)}). Omit these metrics."
        )
    dim = query.vectors.shape[1]
    if options.truncate_dim and options.truncate_dim[-1] > dim:
        raise ConfigError(
            f"truncate_dim is {options.truncate_dim}, but the embeddings have {dim} dimensions; expected at most {dim}."
        )
    stated: dict[str, Any] = {"levels_without_labels": without} if without else {}
    self_index, sides = None, [(query.vectors, query.labels[:, kept])]
    if gallery is not None or benchmark.distractors is not None:
        vectors, labels = benchmark.with_distractors(query if gallery is None else gallery, options.share)
        sides.append((vectors, labels[:, kept]))
    if benchmark.distractors is not None:
        stated["distractors"] = len(benchmark.distractors)
        if gallery is None:
            self_index, stated["protocol"] = np.arange(len(query)), "leave-one-out"
    options = replace(options, device=choose_device(query.vectors, options.device))

    def measure(change: Callable[[Any], Any], how: EvaluationOptions) -> RetrievalReport:
        changed: list[Any] = [(change(vectors), labels) for vectors, labels in sides]
        return evaluate_labelled(*changed, levels=names, self_index=self_index, options=how)

    try:
        report = measure(lambda vectors: vectors, options)
    except InputError as error:
        raise type(error)(f"{where}: {error}") from error
    refuse_undefined(report, where)
    metrics = [metric for metric in resolve(options.metrics, names) if not metric.definition.of_set]
    alone = replace(options, metrics=metrics)
    for dim in options.truncate_dim if metrics else ():
        try:
            values = measure(lambda vectors, dim=dim: vectors[:, :dim], alone).defined_values()
        except InputError as error:
            raise InputError(f"truncate_dim {dim}: {error}") from error
        stated.setdefault("truncate_dim", {})[str(dim)] = values
    for kind in options.quantize if metrics else ():
        # do not normalise rows of signs: their products are whole numbers, and rounding would break ties
        exact = kind == "binary"
        how = replace(alone, normalize=options.normalize and not exact)
        decoded = partial(quantize_embeddings, kind=kind, normalize=options.normalize)
        stated.setdefault("quantize", {})[kind] = measure(decoded, how).defined_values()
    return replace(report, settings=report.settings | stated)


def evaluate_agreed(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate H-GLDv2; a query has the labels on which all its relevant images agree; its other labels are unknown."""
    query, gallery = benchmark["query"], benchmark["gallery"]
    judged, left_out = benchmark.judged("query", "gallery", ("relevant",))
    labels = np.full(query.labels.shape, -1)
    for row, (relevant,) in enumerate(judged):
        known = gallery.labels[relevant]
        if len(known):
            labels[row] = np.where((known == known[0]).all(axis=0), known[0], -1)
    report = rank_by_labels(benchmark, replace(query, labels=labels), gallery, options)
    lost = {"judgements_left_out": left_out, "queries_without_landmark": int((labels[:, 0] < 0).sum())}
    return replace(report, settings=report.settings | {name: count for name, count in lost.items() if count})


def evaluate_ukbench(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the split ``test`` according to its finest labels.

    Returns:
        a report of ``N-S``, 0 to 4. If an image of an object could not be embedded, the object cannot reach 4.
    """
    items = benchmark["test"]
    query = expand_queries(items.vectors, items.vectors, options)
    options = replace(options, metrics=("P@4",), share=None, query_expansion=None)
    groups = items.labels[:, :1]
    report = evaluate_labelled((query, groups), (items.vectors, groups), levels=("object",), options=options)
    stated = {"metrics": ["N-S"], "ranked": "the query among the others"}
    score = report.per_query["P@4/object"].to_numpy() * 4
    return RetrievalReport.from_columns({"N-S": score}, report.settings | stated)


# -- faces ------------------------------------------------------------------------------------------------------------

_LEAST_INSTANCES = 5
_TEMPLATE = "template/"  # prefix of the name of every list that holds the frames of a template


def evaluate_faces(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the split ``test`` according to the finest labels, without identities of fewer than five instances.

    Lists named ``template/NAME`` hold the frames of a template. The unit embeddings of the frames are averaged to one
    instance; any other image is an instance. As in the paper, an identity's instances are counted, not its frames.

    Returns:
        the report; its settings count the dropped identities and instances, and the templates.

    Raises:
        InputError: no identity has five instances, a template has frames of several identities, or a frame occurs
            twice.
    """
    split = benchmark["test"]
    every, templates = _average_templates(benchmark, split, np.flatnonzero(split.labels[:, 0] >= 0))
    identities, member, sizes = np.unique(every.labels[:, 0], return_inverse=True, return_counts=True)
    kept = sizes >= _LEAST_INSTANCES
    if not kept.any():
        raise InputError(
            f"dataset {benchmark.name}: none of its {len(identities)} identities has {_LEAST_INSTANCES} instances "
            "(templates or single images); the protocol faces drops identities with fewer. Choose another protocol "
            "(--protocol leave-one-out)."
        )
    rows = np.flatnonzero(kept[member])
    items = EmbeddedSplit(every.vectors[torch.from_numpy(rows)], every.keys.gather(rows), every.labels[rows])
    report = rank_by_labels(benchmark, items, None, options)
    stated = {
        "identities_dropped": int((~kept).sum()),
        "instances_dropped": len(every) - len(rows),
        "templates": templates,
    }
    return replace(report, settings=report.settings | stated)


def _average_templates(benchmark: Benchmark, split: EmbeddedSplit, rows: np.ndarray) -> tuple[EmbeddedSplit, int]:
    """Return the rows as items, with the frames of each template averaged to one item, and count the templates."""
    framed = benchmark.listed_keys.filter(pl.col("list").str.starts_with(_TEMPLATE))
    keys = pl.DataFrame({"key": split.keys.gather(rows)})
    named = keys.join(framed, on="key", how="left", maintain_order="left")
    if len(named) > len(keys):
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
            "expected one identity."
        )
    vectors = torch.as_tensor(split.vectors[rows]).double()
    unit = (vectors / torch.linalg.vector_norm(vectors, dim=1, keepdim=True)).cpu()
    sums = torch.zeros(len(names), unit.shape[1], dtype=torch.float64).index_add_(0, torch.from_numpy(member), unit)
    means = sums / torch.from_numpy(np.bincount(member))[:, None]
    averaged = pl.Series("key", names.tolist(), dtype=pl.String)
    return EmbeddedSplit(means.float(), averaged, labels), int(averaged.str.starts_with(_TEMPLATE).sum())


# -- VehicleID --------------------------------------------------------------------------------------------------------

_TEST_LISTS = ("small", "medium", "large")
_VEHICLE = "vehicle"
_DRAWS = 10


def evaluate_vehicle_lists(
    benchmark: Benchmark, options: EvaluationOptions, *, is_drawn: bool = True
) -> RetrievalReport:
    """Evaluate the lists ``small``, ``medium`` and ``large`` of the split ``test``, with ten random galleries each.

    Args:
        benchmark: benchmark with the lists.
        options: metrics and ranking options.
        is_drawn: whether galleries are drawn at random; False: leave-one-out in each list.

    Returns:
        a report of ``R@1/small`` and so on; its settings list the mean of every random gallery.

    Raises:
        InputError: a list is missing, or no vehicle of a list has two images.
    """
    split, reports, unknown = benchmark["test"], {}, 0
    for name in _TEST_LISTS:
        rows = benchmark.listed(name, "test")
        known = rows[split.labels[rows, 0] >= 0]
        unknown += len(rows) - len(known)
        side = split.vectors[known], split.labels[known, :1]
        reports[name] = (
            _evaluate_draws(*side, options)
            if is_drawn
            else evaluate_labelled(side, levels=(_VEHICLE,), options=options)
        )
    report = join_reports(reports)
    return replace(report, settings=report.settings | ({"without_vehicle": unknown} if unknown else {}))


def evaluate_vehicle_lists_leave_one_out(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the three lists of the split ``test``; in each list every image queries the other images."""
    return evaluate_vehicle_lists(benchmark, options, is_drawn=False)


def _evaluate_draws(embeddings: Any, vehicles: np.ndarray, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate (N, D) embeddings of (N, 1) vehicles; the report has one row per query and random gallery."""
    if len(np.unique(vehicles)) == len(vehicles):
        raise InputError("no vehicle has two images: all images would be in the gallery, and there would be no query.")
    generator = np.random.default_rng(0)
    reports = []
    for number in range(_DRAWS):
        order = generator.permutation(len(vehicles))
        drawn = np.sort(order[np.unique(vehicles[order, 0], return_index=True)[1]])
        rest = np.setdiff1d(np.arange(len(vehicles)), drawn)
        sides = [(embeddings[rows], vehicles[rows]) for rows in (rest, drawn)]
        reports.append(evaluate_labelled(*sides, levels=(_VEHICLE,), options=replace(options, progress=None)))
        if options.progress is not None:
            options.progress("draw", number + 1, _DRAWS)
    pooled = pl.concat([report.per_query for report in reports]).drop("query")
    columns = {name: pooled[name].to_numpy() for name in pooled.columns}
    draws = {name: [report.values[name] for report in reports] for name in columns}
    stated = {"repeats": _DRAWS, "seed": 0, "draws": draws}
    return RetrievalReport.from_columns(columns, reports[0].settings | stated)


# -- Dynamic Metric Learning ------------------------------------------------------------------------------------------

_DYML_LEVELS = ("fine", "middle", "coarse")
_CASES = {
    "all": "every query is in the gallery and excluded there, as the authors' evaluator drops the first hit",
    "none": "no query is in the gallery, so nothing is excluded; the authors' evaluator would drop a true hit here",
    "some": "some queries are in the gallery and excluded there",
}


def evaluate_dyml(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate ``query_LEVEL`` against ``gallery_LEVEL`` at each level, and average over the levels.

    A query is matched to the gallery item with the same content, if possible to the item that also has the same path.

    Returns:
        a report of every level's metrics, their averages (``AP/average``) and the mean ASI over the levels. Its
        settings state per level how many queries were found in the gallery, and whether these are all, some or none of
        the queries.

    Raises:
        InputError: a split has no labels at its level.
    """
    reports, overlaps = {}, {}
    for level in _DYML_LEVELS:
        query, gallery = benchmark[f"query_{level}"], benchmark[f"gallery_{level}"]
        column = benchmark.levels.index(level)
        self_index, overlaps[level] = find_queries(query, gallery, f"query_{level}", f"gallery_{level}")
        sides = [(side.vectors, side.labels[:, [column]]) for side in (query, gallery)]
        if any(not (labels >= 0).any() for _, labels in sides):
            raise InputError(
                f"dataset {benchmark.name}: query_{level} or gallery_{level} has no label at the level {level}; "
                f"expected the labels of bmk_{level}. Build the dataset again."
            )
        reports[level] = evaluate_labelled(*sides, levels=(level,), self_index=self_index, options=options)
    counts = [facts["left out"] for facts in overlaps.values()]
    queries = sum(len(benchmark[f"query_{level}"]) for level in _DYML_LEVELS)
    case = "none" if not any(counts) else "all" if sum(counts) == queries else "some"
    report = average_over_levels(*reports.values())
    stated = {"queries_in_gallery": overlaps, "overlap": f"{case}: {_CASES[case]}"}
    return replace(report, settings=report.settings | stated)


def evaluate_dyml_product(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the split ``test`` leave-one-out at all levels, and average over the levels."""
    return average_over_levels(rank_by_labels(benchmark, benchmark["test"], None, options))


def find_queries(
    query: EmbeddedSplit, gallery: EmbeddedSplit, query_split: str, gallery_split: str
) -> tuple[np.ndarray, dict[str, int]]:
    """Find the queries in the gallery: by path below the split's folder and content, else by content only.

    Args:
        query: embeddings and labels of Q queries.
        gallery: embeddings and labels of G gallery items.
        query_split: beginning of the queries' keys.
        gallery_split: beginning of the gallery's keys.

    Returns:
        (Q,) gallery index of the query itself, -1 if the query is not in the gallery; and counts: excluded queries
        (``left out``), queries found ``by path`` and ``by content alone``, and equal paths with ``other content``,
        which are different images.
    """
    sides = []
    for side, split in ((query, query_split), (gallery, gallery_split)):
        contents = side.contents() if side.contents is not None else pl.Series([""] * len(side), dtype=pl.String)
        paths = side.keys.str.strip_prefix(f"{split}/")
        sides.append(pl.DataFrame({"path": paths, "content": contents, "at": np.arange(len(side))}))
    asked, there = sides
    paths = asked.join(there, on="path", how="inner")
    same = paths.filter(pl.col("content") == pl.col("content_right"))
    others = asked.filter(~pl.col("at").is_in(same["at"].implode()) & (pl.col("content") != ""))
    copies = others.join(there.unique("content", keep="first", maintain_order=True), on="content", how="inner")
    index = np.full(len(query), -1)
    for table in (same, copies):
        index[table["at"].to_numpy()] = table["at_right"].to_numpy()
    facts = {"left out": len(same) + len(copies), "by path": len(same), "by content alone": len(copies)}
    return index, facts | {"other content": len(paths) - len(same)}


# -- combined reports -------------------------------------------------------------------------------------------------

AVERAGE = "average"


def average_over_levels(*reports: RetrievalReport) -> RetrievalReport:
    """Average every binary metric over the levels, and keep the values of each level too.

    Args:
        *reports: one report of several levels, or one per level.

    Returns:
        a report of all metrics and, for ``AP/fine``, ``AP/middle``, ``AP/coarse``, their mean ``AP/average``. If there
        is one report, a query's average is over the levels where its value is defined. If there are several reports,
        their queries differ: the rows are stacked and have no average, and a graded metric (ASI) is the mean over the
        reports.

    Raises:
        ConfigError: there are no reports, a metric is missing at a level, or there are fewer than two levels.
    """
    levels = list(dict.fromkeys(level for report in reports for level in report.settings.get("levels", ())))
    found: dict[str, list[float]] = {}
    undefined: dict[str, int] = {}
    for report in reports:
        for name, value in report.values.items():
            found.setdefault(name, []).append(value)
            undefined[name] = undefined.get(name, 0) + report.undefined[name]
    values = {name: _mean(each) for name, each in found.items()}
    of_levels = [name for name in values if "/" in name]
    kinds = dict.fromkeys(name.partition("/")[0] for name in of_levels)
    parts = {kind: [f"{kind}/{level}" for level in levels] for kind in kinds}
    expected = {name for names in parts.values() for name in names}
    if not kinds or {*of_levels} != expected or len(levels) < 2 or AVERAGE in levels:
        raise ConfigError(
            f"levels are {', '.join(levels)}, metrics {', '.join(values)}; expected the same binary metrics of two or "
            f"more levels, none of them named {AVERAGE!r}."
        )
    rows = _stack([report.per_query for report in reports])
    for kind, names in parts.items():
        average = f"{kind}/{AVERAGE}"
        values[average] = _mean([values[name] for name in names])
        undefined[average] = sum(undefined[name] for name in names)
        if len(reports) == 1 and {*names} <= {*rows.columns}:
            mean = pl.mean_horizontal(pl.col(*names).fill_nan(None)).fill_null(math.nan)
            rows = rows.with_columns(mean.alias(average))
            undefined[average] = int(rows[average].is_nan().sum())
    return _report(values, rows, undefined, reports, {"levels": levels, "average": "mean over levels"})


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def join_reports(reports: Mapping[str, RetrievalReport]) -> RetrievalReport:
    """Join the reports of several query sets; each report has metrics of one level.

    Args:
        reports: one report per query set, under the set's name.

    Returns:
        a report whose value names end in the set's name (``R@1/small``). It has the rows of all sets, with NaN in the
        columns of other sets.
    """
    values: dict[str, float] = {}
    undefined: dict[str, int] = {}
    tables = []
    for name, report in reports.items():
        renamed = {value: f"{value.partition('/')[0]}/{name}" for value in report.values}
        values |= {renamed[value]: number for value, number in report.values.items()}
        undefined |= {renamed[value]: count for value, count in report.undefined.items()}
        tables.append(report.per_query.rename(renamed, strict=False))
    return _report(values, _stack(tables), undefined, list(reports.values()), {"levels": list(reports)})


def _report(
    values: dict[str, float],
    rows: pl.DataFrame,
    undefined: dict[str, int],
    reports: Sequence[RetrievalReport],
    settings: Mapping[str, Any],
) -> RetrievalReport:
    """Combine reports: a setting that differs becomes a list; a value without a column is a clustering metric."""
    columns = [name for name in values if name in rows.columns]
    of_set = [name for name in values if name not in columns]
    each = {key: [report.settings.get(key) for report in reports] for key in reports[0].settings}
    stated = {key: found[0] if all(one == found[0] for one in found) else found for key, found in each.items()}
    stated |= {"metrics": list(values), **settings, **({"of_set": of_set} if of_set else {})}
    return RetrievalReport(values, rows.select("query", *columns), undefined, stated)


def _stack(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Stack the rows of all reports and renumber the queries; a metric that a report lacks is NaN."""
    rows = pl.concat(tables, how="diagonal").drop("query").fill_null(math.nan)
    return rows.with_columns(query=pl.int_range(pl.len(), dtype=pl.Int64))

"""All that a page shows of one split: the table of results, curves, severity, maps, galleries, classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hgld.evaluator import Progress
from hgld.report_page.class_tables import ClassTable, class_table
from hgld.report_page.curves import draw_precision_recall, mean_curves
from hgld.report_page.embedding_map import NameOf, draw_maps
from hgld.report_page.figures import Figure, Figures
from hgld.report_page.gallery import (
    Strip,
    changed_queries,
    strips,
    typical_queries,
    worst_queries,
)
from hgld.report_page.published import PublishedRow
from hgld.report_page.rankings import (
    MOST_QUERIES,
    FirstRanks,
    first_ranks,
    is_normalized,
    rank,
    relevance_of,
    sample_queries,
)
from hgld.report_page.runs import Evaluation
from hgld.report_page.score_table import ScoreTable, score_table
from hgld.report_page.severity import Severity, draw_severity, severity

if TYPE_CHECKING:
    from hgld.dataset import ShardDataset


@dataclass(frozen=True)
class Album:
    """Galleries under one heading."""

    heading: str
    says: str
    strips: tuple[Strip, ...]


@dataclass(frozen=True, eq=False)
class SplitSection:
    """The part of a page that belongs to one split; what cannot be shown is named in ``missing``.

    Its galleries have pictures where it is ``pictured``: where the dataset is at hand.
    """

    split: str
    levels: tuple[str, ...]
    epochs: tuple[str, ...]
    scores: ScoreTable
    curves: tuple[Figure, ...]
    severities: Mapping[str, Severity]
    severity_figures: tuple[Figure, ...]
    maps: tuple[Figure, ...]
    albums: tuple[Album, ...]
    pictured: bool
    classes: ClassTable | None
    missing: tuple[str, ...]


def split_section(
    split: str,
    evaluations: Mapping[str, Evaluation],
    published: Sequence[PublishedRow],
    baseline: str | None,
    dataset: "ShardDataset | None",
    figures: Figures,
    progress: Progress | None = None,
) -> SplitSection:
    """Make the section of a split from the evaluations of the runs that have one.

    Args:
        split: its name.
        evaluations: by run; at least one.
        published: rows of the dataset.
        baseline: the run that the others are compared with.
        dataset: for pictures and class names; None without.
        figures: draws.
        progress: called with a task, the number of queries done and their total.
    """
    leading, some = next(iter(evaluations.items()))
    levels = tuple(some.levels)
    lacking = {
        n: e.why_not if e.ranked is None else f"its levels are not those of {leading}"
        for n, e in evaluations.items()
        if e.ranked is None or tuple(e.levels) != levels
    }
    ranked = {n: e for n, e in evaluations.items() if n not in lacking}
    missing = [f"{n}: no curves, maps and galleries, for {reason}." for n, reason in lacking.items()]
    first = {n: _first_ranks(e, f"rank {split}, {n}", progress) for n, e in ranked.items()}
    names = {name: _name_of(evaluation, dataset) for name, evaluation in ranked.items()}
    found = {name: severity(first[name], len(levels)) for name in ranked}
    maps = []
    for name, evaluation in ranked.items():
        assert evaluation.ranked is not None
        drawn, why_not = draw_maps(figures, evaluation.ranked.other_side, levels, names[name], name, split)
        maps, missing = [*maps, *drawn], [*missing, *why_not]
    paired = {n: e for n, e in ranked.items() if not e.report.per_query.is_empty()}
    metric = _query_metric(paired, levels)
    same = _same_queries(paired, baseline)
    return SplitSection(
        split,
        levels,
        tuple(f"{n}: epoch {e.epoch}" for n, e in evaluations.items() if e.epoch is not None),
        score_table(evaluations, published, baseline),
        tuple(_curves(figures, ranked, levels, split)),
        found,
        tuple(draw_severity(figures, found, levels, split)),
        tuple(maps),
        tuple(_albums(paired, same, first, metric, names) if metric else ()),
        dataset is not None,
        class_table(same, _class_metrics(same), first[list(same)[-1]], names[next(iter(same))])
        if metric and same
        else None,
        tuple(missing),
    )


def _first_ranks(evaluation: Evaluation, task: str, progress: Progress | None) -> FirstRanks:
    assert evaluation.ranked is not None
    return first_ranks(evaluation.ranked, normalize=is_normalized(evaluation), task=task, progress=progress)


def _curves(figures: Figures, ranked: Mapping[str, Evaluation], levels: Sequence[str], split: str) -> list[Figure]:
    if not ranked:
        return []
    curves, sizes = {}, set()
    for name, evaluation in ranked.items():
        assert evaluation.ranked is not None
        queries = sample_queries(len(evaluation.ranked.query.labels))
        sizes.add(len(evaluation.ranked.query.labels))
        rankings = rank(evaluation.ranked, queries, normalize=is_normalized(evaluation))
        curves[name] = mean_curves(rankings, relevance_of(evaluation), len(levels))
    if max(sizes) > MOST_QUERIES:
        number = " and of ".join(f"{size:,}" for size in sorted(sizes))
        note = f"Means over {MOST_QUERIES:,} of {number} queries, sampled with seed 0."
    else:
        note = "Means over all queries."
    return draw_precision_recall(figures, curves, levels, note, split)


def _name_of(evaluation: Evaluation, dataset: "ShardDataset | None") -> NameOf:
    """Names of classes: of the label table, else of the dataset's hierarchy, else the ids."""
    assert evaluation.ranked is not None
    tables, levels = evaluation.ranked.names, evaluation.levels
    known = {} if dataset is None else dict(zip(dataset.levels, dataset.hierarchy.names, strict=True))

    def name(level: int, label: int) -> str:
        if label < 0:
            return "unknown"
        if tables[level]:
            return tables[level].get(label, str(label))
        names = known.get(levels[level], ())
        return names[label] if label < len(names) else str(label)

    return name


def _query_metric(paired: Mapping[str, Evaluation], levels: Sequence[str]) -> str:
    """By which queries are called the worst: H-AP, else the AP of the finest level, else the first metric."""
    if not paired:
        return ""
    common = [
        m for m in next(iter(paired.values())).report.values if all(m in e.report.values for e in paired.values())
    ]
    wanted = ["H-AP", *(f"AP/{level}" for level in levels[:1]), *common]
    return next((metric for metric in wanted if metric in common), "")


def _class_metrics(same: Mapping[str, Evaluation]) -> list[str]:
    common = [m for m in next(iter(same.values())).report.values if all(m in e.report.values for e in same.values())]
    finest = next(iter(same.values())).levels[0]
    wanted = [f"AP/{finest}", f"R@1/{finest}", "H-AP"]
    return [m for m in wanted if m in common] or common[:1]


def _same_queries(paired: Mapping[str, Evaluation], baseline: str | None) -> dict[str, Evaluation]:
    """The baseline and the runs with the very same queries and gallery, which are told apart query by query."""
    if not paired:
        return {}
    first = baseline if baseline is not None and baseline in paired else next(iter(paired))
    task = paired[first].report.settings.get("labels_sha256")
    others = {n: e for n, e in paired.items() if e.report.settings.get("labels_sha256") == task}
    return {first: paired[first], **others}


def _albums(
    paired: Mapping[str, Evaluation],
    same: Mapping[str, Evaluation],
    first_items: Mapping[str, FirstRanks],
    metric: str,
    names: Mapping[str, NameOf],
) -> list[Album]:
    albums = []
    first, *others = same or [""]
    for other in others[:1]:  # two runs; a third would make the page a wall of pictures
        pair = {first: same[first], other: same[other]}
        rose, fell = changed_queries(same[first], same[other], metric)
        for heading, chosen in ((f"Most improved from {first} to {other}", rose), (f"Most worsened to {other}", fell)):
            shown = strips(chosen, pair, first_items, metric, names[first])
            albums.append(Album(heading, f"By the change of their {metric}, one query a class.", tuple(shown)))
    for name, evaluation in paired.items():
        for heading, says, chosen in (
            (f"Typical queries, {name}", "From good to bad, one of every fifth", typical_queries(evaluation, metric)),
            (f"Worst queries, {name}", "The lowest of each class", worst_queries(evaluation, metric)),
        ):
            shown = strips(chosen, {name: evaluation}, first_items, metric, names[name])
            albums.append(Album(heading, f"{says} by {metric}.", tuple(shown)))
    return [album for album in albums if album.strips]

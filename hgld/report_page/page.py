"""The report page: one HTML file with everything in it, and its plots as files of their own."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from hgld.errors import ConfigError, StorageError
from hgld.evaluation.options import Progress
from hgld.evaluation.protocols import is_per_cent, meaning_of, value_parts
from hgld.evaluation.report import RetrievalReport
from hgld.evaluation.trained_on import TRAINED_ON, was_trained_on
from hgld.files import write_atomic
from hgld.html_page import own_text, page_templates, script_hash
from hgld.published import OwnResults, PaperTable, PublishedValue, find_table, lay_out
from hgld.report_page.curves import (
    MeanCurves,
    Severity,
    draw_answer_risks,
    draw_precision_recall,
    draw_severity,
    draw_training,
    severity,
)
from hgld.report_page.embedding_map import NameOf, draw_maps
from hgld.report_page.figures import GRADES, SERIES, Figure, Figures
from hgld.report_page.gallery import (
    MOST_PICTURE_BYTES,
    Strip,
    Thumbnails,
    changed_queries,
    strips,
    typical_queries,
    worst_queries,
)
from hgld.report_page.rankings import MOST_QUERIES, FirstRanks, first_ranks, gain_of
from hgld.report_page.runs import Evaluation, Run, read_runs
from hgld.report_page.score_figures import draw_scores
from hgld.report_page.scores import ScoreTable, published_rows, score_table
from hgld.version import __version__

if TYPE_CHECKING:
    from hgld.data.dataset import ShardDataset


# -- the glossary -----------------------------------------------------------------------------------------------------

_WORDS = (
    ("level", "One depth of the class hierarchy; the finest is named first."),
    ("grade", "How much an item shares with a query: 0 nothing, 1 the coarsest level, L the finest class."),
    ("undefined", "A query without a positive at a level has no value there and is left out of that mean."),
)

PLOTS: Mapping[str, str] = {
    "scores": "A dot per run at every metric; the bar says how much seeds or queries move it.",
    "differences": "Differences to the first run; a bar that crosses 0 is a difference that chance may make.",
    "precision and recall": (
        "Precision where the ranking reaches each recall, mean over the queries. The area under the curve is AP: the "
        "further to the upper right, the better."
    ),
    "H-precision": (
        "The same for all levels at once: an item counts by the grade that it shares with the query. The area under "
        "the curve is H-AP."
    ),
    "mistake severity": (
        "Levels to climb from the query's finest class to one that the first item shares. Its plot shows for every "
        "rank what share of the queries finds which grade there."
    ),
    "map": (
        "t-SNE: what lies near in the embedding lies near here. Distances between far clusters, and their sizes, mean "
        "nothing."
    ),
    "training curve": ("Loss, its parts and rates over the steps, metrics over the epochs."),
    "risk and coverage": (
        "The share of wrong answers among the queries that are answered, the surest first; the lower, the better does "
        "the confidence know its mistakes."
    ),
}
"""Meanings of the page's plots, by the term that each is drawn with."""


def glossary(metrics: Iterable[str], plots: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Return terms and meanings: metrics and plots that a page shows, in their order, then the words of the page."""
    kinds = dict.fromkeys(value_parts(metric)[0] for metric in metrics)
    return [*((kind, meaning_of(kind)) for kind in kinds), *((plot, PLOTS[plot]) for plot in plots), *_WORDS]


# -- the section of a split -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Album:
    """Galleries under one heading."""

    heading: str
    says: str
    strips: tuple[Strip, ...]


@dataclass(frozen=True, eq=False)
class SplitSection:
    """The part of a page that belongs to one split; ``missing`` names the parts that cannot be shown.

    Its galleries have images if it is ``pictured``: if the dataset is at hand.
    """

    split: str
    levels: tuple[str, ...]
    epochs: tuple[str, ...]
    scores: ScoreTable
    score_figures: tuple[Figure, ...]
    curves: tuple[Figure, ...]
    severities: Mapping[str, Severity]
    severity_figures: tuple[Figure, ...]
    maps: tuple[Figure, ...]
    albums: tuple[Album, ...]
    pictured: bool
    missing: tuple[str, ...]


def split_section(
    split: str,
    evaluations: Mapping[str, Evaluation],
    scores: ScoreTable,
    baseline: str | None,
    dataset: "ShardDataset | None",
    figures: Figures,
    progress: Progress | None = None,
    notes: Sequence[str] = (),
) -> SplitSection:
    """Make the section of a split from the evaluations of the runs that have one.

    Args:
        split: its name.
        evaluations: by run; at least one.
        scores: values of the runs.
        baseline: the run that the others are compared with.
        dataset: for images and class names; None without.
        figures: drawer.
        progress: called with a task, the number of queries done and their total.
        notes: remarks to show at its end.
    """
    leading, some = next(iter(evaluations.items()))
    levels = tuple(some.levels)
    ranked, missing, maps = dict[str, Evaluation](), [], []
    curves, first, names = dict[str, MeanCurves](), dict[str, FirstRanks](), dict[str, NameOf]()
    drawn_scores = draw_scores(figures, scores, split) if len(scores.runs) > 1 else []
    for name, evaluation in evaluations.items():
        if evaluation.seeds:
            missing.append(f"{name}: curves, maps and galleries are of seed {next(iter(evaluation.seeds))}.")
        if evaluation.ranked is None or tuple(evaluation.levels) != levels:
            reason = evaluation.why_not if evaluation.ranked is None else f"its levels are not those of {leading}"
            missing.append(f"{name}: no curves, maps and galleries, for {reason}.")
            continue
        ranked[name] = evaluation.first_seed
        curves[name] = MeanCurves(gain_of(evaluation), len(levels))
        first[name] = first_ranks(
            evaluation.ranked,
            normalize=bool(evaluation.report.settings.get("normalized", True)),
            visit=curves[name].add,
            task=f"rank {split}, {name}",
            progress=progress,
        )
        names[name] = _name_of(evaluation, dataset)
        drawn, why_not = draw_maps(figures, evaluation.ranked.other_side, levels, names[name], name, split)
        maps += drawn
        missing += why_not
    sizes = sorted({len(e.ranked.query.labels) for e in ranked.values() if e.ranked is not None})
    note = "Means over all queries."
    if sizes and sizes[-1] > MOST_QUERIES:
        number = " and of ".join(f"{size:,}" for size in sizes)
        note = f"Means over {MOST_QUERIES:,} of {number} queries, sampled with seed 0."
    found = {name: severity(first[name], len(levels)) for name in ranked}
    return SplitSection(
        split,
        levels,
        tuple(f"{n}: epoch {e.epoch}" for n, e in evaluations.items() if e.epoch is not None),
        scores,
        tuple(drawn_scores),
        tuple(draw_precision_recall(figures, curves, levels, note, split)) if curves else (),
        found,
        tuple(draw_severity(figures, found, levels, split)),
        tuple(maps),
        tuple(_albums(ranked, first, names, baseline)),
        dataset is not None,
        (*missing, *notes),
    )


def _name_of(evaluation: Evaluation, dataset: "ShardDataset | None") -> NameOf:
    """Return the names of classes: those of the label table, else of the dataset's hierarchy, else the ids."""
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


def _albums(
    ranked: Mapping[str, Evaluation], first: Mapping[str, FirstRanks], names: Mapping[str, NameOf], baseline: str | None
) -> list[Album]:
    """Return galleries of runs with values per query: changed queries of two runs, typical and worst ones of each.

    Queries are chosen by H-AP, else by the finest level's AP, else by the first share that all runs have.
    """
    paired = {name: e for name, e in ranked.items() if not e.report.per_query.is_empty()}
    if not paired:
        return []
    leading = baseline if baseline in paired else next(iter(paired))
    reports = [evaluation.report for evaluation in paired.values()]
    common = [m for m in reports[0].query_metrics if is_per_cent(m) and all(m in r.query_metrics for r in reports)]
    metric = next((m for m in ("H-AP", f"AP/{paired[leading].levels[0]}", *common) if m in common), None)
    if metric is None:
        return []
    albums = []
    task = paired[leading].report.settings.get("labels_sha256")
    same = (n for n, e in paired.items() if n != leading and e.report.settings.get("labels_sha256") == task)
    for other in list(same)[:1]:  # two runs; a third would make the page a wall of images
        pair = {leading: paired[leading], other: paired[other]}
        rose, fell = changed_queries(paired[leading], paired[other], metric)
        for heading, chosen in (
            (f"Most improved from {leading} to {other}", rose),
            (f"Most worsened to {other}", fell),
        ):
            shown = strips(chosen, pair, first, metric, names[leading])
            albums.append(Album(heading, f"By the change of their {metric}, one query per class.", tuple(shown)))
    for name, evaluation in paired.items():
        for heading, says, chosen in (
            (f"Typical queries, {name}", "From good to bad, one of every fifth", typical_queries(evaluation, metric)),
            (f"Worst queries, {name}", "The lowest of each class", worst_queries(evaluation, metric)),
        ):
            shown = strips(chosen, {name: evaluation}, first, metric, names[name])
            albums.append(Album(heading, f"{says} by {metric}.", tuple(shown)))
    return [album for album in albums if album.strips]


# -- papers' tables ---------------------------------------------------------------------------------------------------

PublishedOf = Callable[[str], Sequence[PublishedValue]]
"""The published values of a recipe, by its name; none for a name that is not known."""


def paper_tables(runs: Sequence[Run], papers: Sequence[str], published_of: PublishedOf) -> list[PaperTable]:
    """Lay out papers' tables with the runs in them.

    Args:
        runs: from :func:`hgld.report_page.runs.read_runs`.
        papers: tables as :func:`hgld.published.find_table` takes them, for example ``SupRank Table V``.
        published_of: finds the values of a run's recipe, to which its difference is stated.

    Raises:
        ConfigError: no such paper or table.
    """
    own = []
    for run in runs:
        for task, evaluation in run.evaluations.items():
            size = evaluation.report.settings.get("image_size")
            own.append(
                OwnResults(
                    run.name,
                    evaluation.dataset,
                    evaluation.report.values,
                    tuple(published_of(run.recipe)),
                    evaluation.levels,
                    size if isinstance(size, int) else 0,
                    where=task if len(run.evaluations) > 1 else "",
                )
            )
    return [lay_out(*find_table(spelling), own) for spelling in papers]


# -- results without a page --------------------------------------------------------------------------------------------


def score_tables(runs: Sequence[Run], baseline: str | None = None) -> dict[str, ScoreTable]:
    """Return the values of runs by split.

    Args:
        runs: from :func:`hgld.report_page.runs.read_runs`.
        baseline: name of the run that the others are compared with; the first if None.

    Raises:
        ConfigError: an unknown baseline.
    """
    check_baseline(runs, baseline)
    splits = sorted({split for run in runs for split in run.evaluations})
    found = {split: {run.name: run.evaluations[split] for run in runs if split in run.evaluations} for split in splits}
    return {split: score_table(evaluations, [], baseline) for split, evaluations in found.items()}


def refuse_trained_on(runs: Sequence[Run]) -> None:
    """Refuse evaluations of images that a run was trained on under another dataset's name.

    Raises:
        ConfigError: names the run and the evaluation.
    """
    for run in runs:
        for split, evaluation in run.evaluations.items():
            facts = evaluation.report.settings.get(TRAINED_ON)
            if facts and was_trained_on(facts) and not facts["own_dataset"]:
                raise ConfigError(
                    f"{run.name}, {split}: it was trained on {facts['images']:,} of {facts['of_images']:,} of these "
                    f"images (as {facts['as']}). Leave it out, or show it all the same with --seen."
                )


def check_baseline(runs: Sequence[Run], baseline: str | None) -> None:
    """Refuse a baseline that is none of the runs.

    Raises:
        ConfigError: names the runs.
    """
    names = [run.name for run in runs]
    if baseline is not None and baseline not in names:
        raise ConfigError(f"baseline {baseline!r} is not among the runs ({', '.join(names)}).")


# -- the page ---------------------------------------------------------------------------------------------------------

MOST_BYTES = 10_000_000
_FOOTER_BYTES = 20_000  # its words on the images are known only when these are made
_TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class PageFacts:
    """Facts of a page that was written.

    Attributes:
        out: the page.
        bytes: its size.
        runs: names of the runs.
        splits: splits with evaluations.
        pictures: thumbnails made.
        pictures_left_out: places without their image, for want of room.
        unreadable: images that could not be read, with the reason.
        figures: files in the folder of figures.
        notes: mismatches of ``data`` with the runs, as the page states them too.
        papers: tables of papers with the runs in them.
        scores: values of the runs by split.
    """

    out: str
    bytes: int
    runs: tuple[str, ...]
    splits: tuple[str, ...]
    pictures: int
    pictures_left_out: int
    unreadable: tuple[str, ...]
    figures: tuple[str, ...]
    notes: tuple[str, ...]
    papers: tuple[PaperTable, ...]
    scores: dict[str, ScoreTable]


def write_report_page(
    places: Sequence[str | Path],
    out: str | Path,
    *,
    data: str | Path | None = None,
    figures: str | Path | None = None,
    papers: Sequence[str] = (),
    published_of: PublishedOf = lambda recipe: (),
    baseline: str | None = None,
    title: str = "Retrieval report",
    seen: bool = False,
    progress: Progress | None = None,
) -> PageFacts:
    """Write the report page of some runs.

    Args:
        places: run folders, or kept evaluations (:func:`hgld.report_page.runs.read_runs`).
        out: the HTML file; written aside and renamed.
        data: the dataset directory or URL, for images and class names.
        figures: folder to keep the figures in as PDF; None keeps none.
        papers: tables of papers to put the runs into: :func:`paper_tables`.
        published_of: finds the published values of a run's recipe.
        baseline: name of the run that the others are compared with; the first if None.
        title: heading of the page.
        seen: accept evaluations of images that a run was trained on.
        progress: called with a task, the number of queries or splits done and their total.

    Raises:
        InputError: files that cannot be read or do not belong together.
        ConfigError: an unknown baseline, or a page that would be too large.
        StorageError: the disk refuses.
    """
    out = Path(out)
    if not out.parent.is_dir():
        raise StorageError(f"cannot write {out}: there is no folder {out.parent}. Make it, or choose another --out.")
    if out.is_dir():
        raise StorageError(f"cannot write {out}: it is a folder. Name a file in it: --out {out / 'report.html'}.")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise StorageError(f"cannot write {out}: the folder {out.parent} is not writable. Choose another --out.")
    runs = read_runs(places)
    names = tuple(run.name for run in runs)
    check_baseline(runs, baseline)
    if not seen:
        refuse_trained_on(runs)
    dataset = None
    if data is not None:
        from hgld.data.dataset import open_dataset

        dataset = open_dataset(data)
    tables = paper_tables(runs, papers, published_of)
    drawer = Figures(None if figures is None else Path(figures))
    splits = sorted({split for run in runs for split in run.evaluations})
    scores: dict[str, ScoreTable] = {}
    sections, notes = [], [f"answers are not shown: {run.uncalibrated}" for run in runs if run.uncalibrated]
    try:
        for i, split in enumerate(splits):
            here = {run.name: run.evaluations[split] for run in runs if split in run.evaluations}
            recipes = [value for run in runs if run.name in here for value in published_of(run.recipe)]
            own, stated, said = _own_dataset(split, here, dataset)
            scores[split] = score_table(here, published_rows(stated, recipes), baseline)
            sections.append(split_section(split, here, scores[split], baseline, own, drawer, progress, said))
            notes += said
            if progress is not None:
                progress("draw", i + 1, len(splits))
        metrics = list(dict.fromkeys(m for run in runs for e in run.evaluations.values() for m in e.report.values))
        headline = [m for kind in ("H-AP", "R@1/", "mAP@R/", "AP/") for m in metrics if m.startswith(kind)][:6]
        parts = {
            "title": title,
            "runs": runs,
            "sections": sections,
            "tables": tables,
            "training": draw_training(drawer, runs, headline),
            "answers": draw_answer_risks(drawer, runs),
            "settings": {
                run.name: {split: settings_text(evaluation.report) for split, evaluation in run.evaluations.items()}
                for run in runs
            },
            "series": SERIES,
            "grades": GRADES,
        }
        parts["terms"] = glossary(metrics, drawer.terms)
        bare = render("page.html", thumbnails=Thumbnails(None), **parts)
        thumbnails = Thumbnails(dataset, min(MOST_BYTES - len(_encode(bare)) - _FOOTER_BYTES, MOST_PICTURE_BYTES))
        made = _encode(render("page.html", thumbnails=thumbnails, **parts))
        if len(made) > MOST_BYTES:
            raise ConfigError(
                f"the page would have {len(made) / 1e6:.1f} MB; a report is kept below {MOST_BYTES / 1e6:.0f} MB. Name "
                "fewer runs."
            )
        write_atomic(out, made)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        where, why = error.filename or out, error.strerror or error
        raise StorageError(f"cannot write {where}: {why}. Choose another --out.") from error
    return PageFacts(
        str(out),
        len(made),
        names,
        tuple(splits),
        len(thumbnails),
        thumbnails.left_out,
        tuple(thumbnails.unreadable),
        tuple(drawer.files),
        tuple(notes),
        tuple(tables),
        scores,
    )


def _own_dataset(
    split: str, evaluations: Mapping[str, Evaluation], dataset: "ShardDataset | None"
) -> tuple["ShardDataset | None", str, list[str]]:
    """Return the dataset if it is that of the evaluations, the name of theirs, and notes on a mismatch."""
    stated = next((e.dataset for e in evaluations.values() if e.dataset), "")
    if dataset is None or stated == dataset.manifest.name:
        return dataset, stated, []
    named = dataset.manifest.name
    if not stated:
        said = f"{split}: the report does not say its dataset; it is taken for {named}, which --data names."
        return dataset, named, [said]
    said = (
        f"{split}: no images and no names of classes from --data, which is {named}; this is an evaluation of {stated}."
    )
    return None, stated, [said]


def render(template: str, **values: Any) -> str:
    """Fill in a template of this folder, with the pages' style, script and the version; all values are escaped."""
    script = own_text(_TEMPLATES / "tables.js")
    shared = {"style": own_text(_TEMPLATES / "page.css"), "version": __version__}
    page = page_templates(_TEMPLATES).get_template(template)
    return page.render(script=script, script_hash=script_hash(script), **shared, **values)


def breakable(name: str) -> Markup:
    """Escape a name for HTML, so that a browser may break it behind a sign rather than within a word."""
    return Markup("<wbr>").join(re.split(r"(?<=[:/._-])", name))


def settings_text(report: RetrievalReport) -> dict[str, str]:
    """Return the settings of a report as a page shows them."""
    return {
        key: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for key, value in report.settings.items()
    }


def _encode(html: str) -> bytes:
    return html.encode("utf-8", errors="replace")  # a lone surrogate in a name cannot be written

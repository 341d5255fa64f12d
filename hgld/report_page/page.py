"""The report page: one HTML file with everything in it, and its plots as files of their own."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from hgld import __version__
from hgld.errors import ConfigError, StorageError
from hgld.evaluation.evaluate import Progress
from hgld.evaluation.metric import is_per_cent
from hgld.evaluation.protocol_kinds import meaning_of, value_parts
from hgld.evaluation.report import RetrievalReport
from hgld.files import write_atomic
from hgld.html_page import own_text, page_templates, script_hash
from hgld.published import OwnResults, PaperTable, PublishedValue, find_table, lay_out
from hgld.report_page.analyses import Analyses, analyse, check_analyses
from hgld.report_page.answer_risk import AnswerRisks, answer_risks
from hgld.report_page.class_tables import ClassTable, class_table
from hgld.report_page.curves import MeanCurves, draw_precision_recall, draw_training
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
from hgld.report_page.published import PublishedResults, PublishedRow
from hgld.report_page.rankings import MOST_QUERIES, FirstRanks, first_ranks, gain_of, is_normalized
from hgld.report_page.runs import Evaluation, Run, read_runs
from hgld.report_page.score_table import ScoreTable, Severity, draw_severity, score_table, severity

if TYPE_CHECKING:
    from hgld.data.dataset import ShardDataset


# -- the glossary -----------------------------------------------------------------------------------------------------

_WORDS = (
    ("level", "One depth of the class hierarchy; the finest is named first."),
    ("grade", "How much an item shares with a query: 0 nothing, 1 the coarsest level, L the finest class."),
    ("undefined", "A query without a positive at a level has no value there and is left out of that mean."),
)

PLOTS: Mapping[str, str] = {
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
    "hierarchical distance": "Mean of the levels to climb over the first k items; lower is better.",
    "distances": (
        "How far two items are apart (cosine), within a class (intra) and between classes (inter); dashed: the means. "
        "The less the two overlap, the easier is retrieval."
    ),
    "decomposability gap": (
        "How much higher AP is in batches than over all items: what a loss that sees a batch cannot know of the rest."
    ),
    "smoothing": (
        "What Smooth-AP's sigmoid of width tau makes of AP. A narrower one is nearer to AP, and gives fewer pairs a "
        "slope to learn from."
    ),
    "map": (
        "t-SNE: what lies near in the embedding lies near here. Distances between far clusters, and their sizes, mean "
        "nothing."
    ),
    "training curve": (
        "Loss, its parts and rates over the steps, metrics over the epochs; shares of the gradient are those of the "
        "loss's terms."
    ),
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
#
# The table of results, curves, severity, maps, galleries, classes.


@dataclass(frozen=True)
class Album:
    """Galleries under one heading."""

    heading: str
    says: str
    strips: tuple[Strip, ...]


@dataclass(frozen=True, eq=False)
class SplitSection:
    """The part of a page that belongs to one split; ``missing`` names the parts that cannot be shown.

    Its galleries have pictures where it is ``pictured``: where the dataset is at hand.
    """

    split: str
    levels: tuple[str, ...]
    epochs: tuple[str, ...]
    scores: ScoreTable
    curves: tuple[Figure, ...]
    severities: Mapping[str, Severity]
    severity_figures: tuple[Figure, ...]
    analyses: Analyses
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
    analyses: Sequence[str] = (),
    progress: Progress | None = None,
) -> SplitSection:
    """Make the section of a split from the evaluations of the runs that have one.

    Args:
        split: its name.
        evaluations: by run; at least one.
        published: rows of the dataset.
        baseline: the run that the others are compared with.
        dataset: for pictures and class names; None without.
        figures: to draw with.
        analyses: names of :data:`hgld.report_page.analyses.ANALYSES`.
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
    curves = {n: MeanCurves(gain_of(e), len(levels)) for n, e in ranked.items()}
    first = {n: _first_ranks(e, curves[n], f"rank {split}, {n}", progress) for n, e in ranked.items()}
    names = {name: _name_of(evaluation, dataset) for name, evaluation in ranked.items()}
    found = {name: severity(first[name], len(levels)) for name in ranked}
    analysed = analyse(analyses, ranked, figures, split, progress)
    missing += analysed.missing
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
        tuple(_curves(figures, ranked, curves, levels, split)),
        found,
        tuple(draw_severity(figures, found, levels, split)),
        analysed,
        tuple(maps),
        tuple(_albums(paired, same, first, metric, names) if metric else ()),
        dataset is not None,
        class_table(same, _class_metrics(same), first[list(same)[-1]], names[next(iter(same))])
        if metric and same
        else None,
        tuple(missing),
    )


def _first_ranks(evaluation: Evaluation, curves: MeanCurves, task: str, progress: Progress | None) -> FirstRanks:
    assert evaluation.ranked is not None
    normalize = is_normalized(evaluation)
    return first_ranks(evaluation.ranked, normalize=normalize, visit=curves.add, task=task, progress=progress)


def _curves(
    figures: Figures,
    ranked: Mapping[str, Evaluation],
    curves: Mapping[str, MeanCurves],
    levels: Sequence[str],
    split: str,
) -> list[Figure]:
    if not ranked:
        return []
    sizes = {len(evaluation.ranked.query.labels) for evaluation in ranked.values() if evaluation.ranked is not None}
    if max(sizes) > MOST_QUERIES:
        number = " and of ".join(f"{size:,}" for size in sorted(sizes))
        note = f"Means over {MOST_QUERIES:,} of {number} queries, sampled with seed 0."
    else:
        note = "Means over all queries."
    return draw_precision_recall(figures, {n: c.means() for n, c in curves.items()}, levels, note, split)


def _name_of(evaluation: Evaluation, dataset: "ShardDataset | None") -> NameOf:
    """Return the names of classes: of the label table, else of the dataset's hierarchy, else the ids."""
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
    """Choose the metric by which queries are called the worst: H-AP, else the finest level's AP, else the first."""
    if not paired:
        return ""
    common = _common_metrics(paired)
    wanted = ["H-AP", *(f"AP/{level}" for level in levels[:1]), *common]
    return next((metric for metric in wanted if metric in common), "")


def _common_metrics(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """Return the shares of which all have values a query; what is counted in levels has no place beside them."""
    first, *others = (evaluation.report.query_metrics for evaluation in evaluations.values())
    return [metric for metric in first if is_per_cent(metric) and all(metric in other for other in others)]


def _class_metrics(same: Mapping[str, Evaluation]) -> list[str]:
    common = _common_metrics(same)
    finest = next(iter(same.values())).levels[0]
    wanted = [f"AP/{finest}", f"R@1/{finest}", "H-AP"]
    return [m for m in wanted if m in common] or common[:1]


def _same_queries(paired: Mapping[str, Evaluation], baseline: str | None) -> dict[str, Evaluation]:
    """Return the baseline and the runs of the same queries and gallery, which can be compared query by query."""
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


# -- papers' tables ---------------------------------------------------------------------------------------------------

PublishedOf = Callable[[str], Sequence[PublishedValue]]
"""The published values of a recipe, by its name; none for a name that is not known."""


def paper_tables(runs: Sequence[Run], papers: Sequence[str], published_of: PublishedOf) -> list[PaperTable]:
    """Lay out papers' tables with the runs in them.

    Args:
        runs: of :func:`hgld.report_page.runs.read_runs`.
        papers: tables as :func:`hgld.published.find_table` takes them, for example ``SupRank Table V``.
        published_of: finds the values of a run's recipe, to which its difference is stated.

    Raises:
        ConfigError: no such paper or table.
    """
    own = [
        OwnResults(
            run.name,
            evaluation.dataset,
            evaluation.report.values,
            tuple(published_of(run.recipe)),
            evaluation.levels,
            _image_size(evaluation),
            where=task if len(run.evaluations) > 1 else "",
        )
        for run in runs
        for task, evaluation in run.evaluations.items()
    ]
    return [lay_out(*find_table(spelling), own) for spelling in papers]


def _image_size(evaluation: Evaluation) -> int:
    size = evaluation.report.settings.get("image_size")
    return size if isinstance(size, int) else 0


# -- the page ---------------------------------------------------------------------------------------------------------

MOST_BYTES = 10_000_000
_FOOTER_BYTES = 20_000  # its words on the pictures are known only when these are made
_TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class PageFacts:
    """Facts of a page that was written.

    Attributes:
        out: the page.
        bytes: its size.
        runs: names of the runs.
        splits: of which there are evaluations.
        pictures: thumbnails made.
        pictures_left_out: places without their picture, for want of room.
        unreadable: pictures that could not be read, with the reason.
        plots: files in the folder of plots.
        analyses: values of the analyses, by split, analysis and run.
        notes: mismatches of ``data`` and of the published rows with the runs, as the page states them too.
        papers: tables of papers with the runs in them.
    """

    out: str
    bytes: int
    runs: tuple[str, ...]
    splits: tuple[str, ...]
    pictures: int
    pictures_left_out: int
    unreadable: tuple[str, ...]
    plots: tuple[str, ...]
    analyses: Mapping[str, Mapping[str, Mapping[str, Any]]]
    notes: tuple[str, ...]
    papers: tuple[PaperTable, ...]


def write_report_page(
    places: Sequence[str | Path],
    out: str | Path,
    *,
    data: str | Path | None = None,
    plots: str | Path | None = None,
    published: str | Path | None = None,
    papers: Sequence[str] = (),
    published_of: PublishedOf = lambda recipe: (),
    baseline: str | None = None,
    title: str = "Retrieval report",
    analyses: Sequence[str] = (),
    progress: Progress | None = None,
) -> PageFacts:
    """Write the report page of some runs.

    Args:
        places: run folders, or kept evaluations (:func:`hgld.report_page.runs.read_runs`).
        out: the HTML file; written aside and renamed.
        data: the dataset directory or URL, for pictures and class names.
        plots: a folder to keep the figures in as PNG and SVG.
        published: a CSV of further published rows.
        papers: tables of papers that the runs stand in: :func:`paper_tables`.
        published_of: finds the published values of a run's recipe.
        baseline: name of the run that the others are compared with; the first if None.
        title: of the page.
        analyses: names of :data:`hgld.report_page.analyses.ANALYSES`.
        progress: called with a task, the number of queries or splits done and their total.

    Raises:
        InputError: files that cannot be read or do not belong together.
        ConfigError: an unknown baseline or analysis, or a page that would be too large.
        StorageError: the disk refuses.
    """
    _check_place(Path(out))
    check_analyses(analyses)
    runs = read_runs(places)
    names = [run.name for run in runs]
    if baseline is not None and baseline not in names:
        raise ConfigError(f"baseline {baseline!r} is not among the runs ({', '.join(names)}).")
    dataset, results = _open(data), PublishedResults(published)
    tables = paper_tables(runs, papers, published_of)
    recipes = {run.name: published_of(run.recipe) for run in runs}
    figures = Figures(None if plots is None else Path(plots))
    splits = sorted({split for run in runs for split in run.evaluations})
    try:
        sections, notes = [], [f"answers are not shown: {run.uncalibrated}" for run in runs if run.uncalibrated]
        for i, split in enumerate(splits):
            here = {run.name: run.evaluations[split] for run in runs if split in run.evaluations}
            own = [value for name in here for value in recipes[name]]
            section, said = _section(split, here, results, own, baseline, dataset, figures, analyses, progress)
            sections.append(section)
            notes += said
            if progress is not None:
                progress("draw", i + 1, len(splits))
        metrics = list(dict.fromkeys(m for run in runs for e in run.evaluations.values() for m in e.report.values))
        training = draw_training(figures, runs, _headline(metrics))
        answers = answer_risks(figures, runs)
        parts = (title, runs, sections, tables, training, answers, glossary(metrics, figures.terms))
        room = MOST_BYTES - len(_encoded(_render(*parts, Thumbnails(None)))) - _FOOTER_BYTES
        thumbnails = Thumbnails(dataset, min(room, MOST_PICTURE_BYTES))
        size = _write(Path(out), _encoded(_render(*parts, thumbnails)))
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"cannot write {error.filename or out}: {error.strerror or error}.") from error
    return PageFacts(
        str(out),
        size,
        tuple(names),
        tuple(splits),
        len(thumbnails),
        thumbnails.left_out,
        tuple(thumbnails.unreadable),
        tuple(figures.files),
        {section.split: section.analyses.values for section in sections if section.analyses.values},
        tuple(notes),
        tuple(tables),
    )


def _check_place(out: Path) -> None:
    """Refuse a place where the page could not be written, before the work of drawing it."""
    folder = out.parent
    if not folder.is_dir():
        raise StorageError(f"cannot write {out}: there is no folder {folder}. Make it, or choose another --out.")
    if out.is_dir():
        raise StorageError(f"cannot write {out}: it is a folder. Name a file in it: --out {out / 'report.html'}.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StorageError(f"cannot write {out}: the folder {folder} is not writable. Choose another --out.")


def _section(
    split: str,
    evaluations: Mapping[str, Evaluation],
    results: PublishedResults,
    recipes: Sequence[PublishedValue],
    baseline: str | None,
    dataset: "ShardDataset | None",
    figures: Figures,
    analyses: Sequence[str],
    progress: Progress | None,
) -> tuple[SplitSection, list[str]]:
    """Make the section of a split, with pictures, names and published rows of its own dataset alone, and its notes."""
    stated = next((e.dataset for e in evaluations.values() if e.dataset), "")
    notes = []
    if dataset is not None and not stated:
        stated = dataset.manifest.name
        notes.append(f"{split}: the report does not say its dataset; it is taken for {stated}, which --data names.")
    elif dataset is not None and stated != dataset.manifest.name:
        notes.append(
            f"{split}: no pictures and no names of classes from --data, which is {dataset.manifest.name}; this is an "
            f"evaluation of {stated}."
        )
        dataset = None
    rows = results.of(stated, recipes)
    section = split_section(split, evaluations, rows, baseline, dataset, figures, analyses, progress)
    unused = results.unused(stated, {(method, source) for method, source, _ in section.scores.published})
    notes += [f"{split}: {unused}"] if unused else []
    return replace(section, missing=(*section.missing, *notes)), notes


def _open(data: str | Path | None) -> "ShardDataset | None":
    if data is None:
        return None
    from hgld.data.dataset import open_dataset

    return open_dataset(data)


def _headline(metrics: Sequence[str]) -> list[str]:
    """Choose the metrics whose course over the epochs is drawn."""
    kinds = ("H-AP", "R@1/", "mAP@R/", "AP/")
    return [metric for kind in kinds for metric in metrics if metric == kind or metric.startswith(kind)][:6]


def _render(
    title: str,
    runs: Sequence[Run],
    sections: Sequence[SplitSection],
    tables: Sequence[PaperTable],
    training: Sequence[Any],
    answers: AnswerRisks,
    terms: Sequence[tuple[str, str]],
    thumbnails: Thumbnails,
) -> str:
    return render(
        "page.html",
        title=title,
        runs=runs,
        sections=sections,
        tables=tables,
        training=training,
        answers=answers,
        terms=terms,
        thumbnails=thumbnails,
        settings={
            run.name: {split: settings_text(evaluation.report) for split, evaluation in run.evaluations.items()}
            for run in runs
        },
        scripts=("tables.js", "maps.js"),
        series=SERIES,
        grades=GRADES,
        breakable=breakable,
    )


def render(template: str, *, scripts: Sequence[str], **values: Any) -> str:
    """Fill in a template of this folder, with the pages' style, scripts and the version; all values are escaped."""
    script = Markup("").join(own_text(_TEMPLATES / name) for name in scripts)
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


def _encoded(html: str) -> bytes:
    return html.encode("utf-8", errors="replace")  # a lone surrogate in a name cannot be written


def _write(out: Path, data: bytes) -> int:
    if len(data) > MOST_BYTES:
        raise ConfigError(
            f"the page would have {len(data) / 1e6:.1f} MB; a report is kept below {MOST_BYTES / 1e6:.0f} MB. Name "
            "fewer runs."
        )
    try:
        write_atomic(out, data)
    except OSError as error:
        raise StorageError(f"cannot write {out}: {error.strerror or error}. Choose another --out.") from error
    return len(data)

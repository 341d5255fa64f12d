"""The report of several runs: scores, tables of papers, and one self-contained HTML page."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hgld.errors import ConfigError, StorageError
from hgld.evaluation.options import Progress
from hgld.evaluation.protocols import is_per_cent, meaning_of, value_parts
from hgld.evaluation.trained_on import TRAINED_ON, was_trained_on
from hgld.files import write_atomic
from hgld.html_page import MOST_PICTURE_BYTES, Thumbnails, render_page
from hgld.published import OwnResults, PaperTable, PublishedValue, find_table, lay_out
from hgld.report_page.changes import describe_changes
from hgld.report_page.curves import (
    MeanCurves,
    draw_answer_risks,
    draw_precision_recall,
    draw_severity,
    draw_training,
    severity,
)
from hgld.report_page.embedding_map import NameOf, describe_map, place_items
from hgld.report_page.figures import SERIES, Figures, grade_index
from hgld.report_page.mistakes import describe_mistakes
from hgld.report_page.rankings import MOST_QUERIES, FirstRanks, first_ranks, gain_of
from hgld.report_page.runs import Evaluation, Run, read_runs
from hgld.report_page.scores import ScoreTable, score_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hgld.data.dataset import ShardDataset


# -- the glossary -----------------------------------------------------------------------------------------------------

_WORDS = (
    ("level", "One depth of the class hierarchy; the finest level comes first."),
    ("grade", "Number of levels that an item shares with a query: 0 none, 1 the coarsest level, L the finest class."),
    ("undefined", "A query without a positive at a level has no value there, and the mean excludes it."),
)

PLOTS: Mapping[str, str] = {
    "precision and recall": (
        "Precision at each recall, averaged over the queries. The area under the curve is AP: the further to the upper "
        "right, the better."
    ),
    "H-precision": (
        "Precision at each recall for all levels at once: an item counts by the grade that it shares with the query. "
        "The area under the curve is H-AP."
    ),
    "mistake severity": (
        "Levels to climb from the query's finest class to a class that the first item shares. The plot shows for every "
        "rank the share of queries with each grade."
    ),
    "map": (
        "t-SNE: neighbours in the embedding are neighbours here. Distances between far clusters, and the sizes of "
        "clusters, mean nothing."
    ),
    "training curve": ("Loss, terms of the loss and learning rates per step; metrics per epoch."),
    "risk and coverage": (
        "The share of wrong answers (risk) if only the most confident queries are answered (coverage). The lower the "
        "curve, the better the confidence."
    ),
    "reliability": (
        "Each dot is a tenth of the queries, by confidence. On the dotted line, the confidence equals the share of "
        "right answers; below it, the model is overconfident."
    ),
}
"""Explanations of the page's plots, by glossary term."""


# -- the section of a split -------------------------------------------------------------------------------------------


def _split_section(
    split: str,
    evaluations: Mapping[str, Evaluation],
    scores: ScoreTable,
    dataset: "ShardDataset | None",
    figures: Figures,
    progress: Progress | None,
) -> dict[str, Any]:
    """Return the template's variables for one split.

    Args:
        split: name of the split.
        evaluations: evaluation per run, at least one.
        scores: values of the runs.
        dataset: dataset with images and class names; None: the page has no images.
        figures: object that draws and collects the figures.
        progress: function called with a task, the number of queries done and the total number.
    """
    leading, some = next(iter(evaluations.items()))
    levels, metric = tuple(some.levels), _headline(scores.metrics, some.levels)
    ranked, missing = dict[str, Evaluation](), []
    curves, first, names = dict[str, MeanCurves](), dict[str, FirstRanks](), dict[str, NameOf]()
    for name, evaluation in evaluations.items():
        if evaluation.seeds:
            missing.append(f"{name}: curves, maps and galleries show seed {next(iter(evaluation.seeds))}.")
        if evaluation.ranked is None or tuple(evaluation.levels) != levels:
            reason = evaluation.why_not if evaluation.ranked is None else f"its levels differ from {leading}"
            if "images_per_second" not in evaluation.report.settings:  # a leaderboard is about scores and costs alone
                missing.append(f"{name}: no curves, maps and galleries, because {reason}.")
            continue
        ranked[name] = evaluation.first_seed
    place = scores.metrics.index(metric)
    best = next((name for name, row in scores.runs if row[place].best), leading)
    shown = best if best in ranked else next(iter(ranked), "")
    own = ranked[shown].ranked if shown else None
    items = None if own is None else own.other_side
    with ThreadPoolExecutor(1) as pool:  # t-SNE takes one core while the products are computed
        placed = None if items is None else pool.submit(place_items, items)
        for name, evaluation in ranked.items():
            assert evaluation.ranked is not None
            curves[name] = MeanCurves(gain_of(evaluation), len(levels))
            first[name] = first_ranks(
                evaluation.ranked,
                normalize=bool(evaluation.report.settings.get("normalized", True)),
                visit=curves[name].add,
                task=f"rank {split}, {name}",
                progress=progress,
            )
            names[name] = _name_of(evaluation, dataset)
    sizes = sorted({len(e.ranked.query.labels) for e in ranked.values() if e.ranked is not None})
    note = "Means over all queries."
    if sizes and sizes[-1] > MOST_QUERIES:
        number = " and of ".join(f"{size:,}" for size in sizes)
        note = f"Means over {MOST_QUERIES:,} of {number} queries, sampled with seed 0."
    severities = {name: severity(first[name], len(levels)) for name in ranked}
    made_map = None
    if items is not None and placed is not None:
        made_map, why_not = describe_map(figures, items, placed.result(), levels, names[shown], shown, split)
        missing += [why_not] if why_not else []
    return {
        "split": split,
        "levels": levels,
        "grade_index": grade_index,
        "place": place,
        "best": best,
        "measured": evaluations[best].report.settings,
        "costs": [(n, e.report.settings) for n, e in evaluations.items() if "images_per_second" in e.report.settings],
        "epochs": [f"{name}: epoch {e.epoch}" for name, e in evaluations.items() if e.epoch is not None],
        "scores": scores,
        "curves": draw_precision_recall(figures, curves, levels, note, split) if curves else [],
        "severities": severities,
        "severity_figures": draw_severity(figures, severities, levels, split),
        "map": made_map,
        "shown": shown,
        "mistakes": describe_mistakes(ranked[shown], first[shown], names[shown], metric) if shown else None,
        "changes": describe_changes(ranked, first, names, scores.baseline, metric),
        "pictured": dataset is not None,
        "missing": missing,
    }


def _headline(metrics: Sequence[str], levels: Sequence[str]) -> str:
    """Return the metric that the first sentences are about, and that orders queries: H-AP if it was measured."""
    wanted = ("H-AP", f"AP/{levels[0]}", f"R@1/{levels[0]}") if levels else ()
    shares = [metric for metric in metrics if is_per_cent(metric)]
    return next((m for m in wanted if m in metrics), (shares or [*metrics])[0])


def _name_of(evaluation: Evaluation, dataset: "ShardDataset | None") -> NameOf:
    """Return a function that looks a class's name up: in the label table, else the hierarchy, else its id."""
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


# -- papers' tables ---------------------------------------------------------------------------------------------------

PublishedOf = Callable[[str], Sequence[PublishedValue]]
"""Function that returns the published values of a recipe, given its name; none for an unknown name."""


def paper_tables(runs: Sequence[Run], papers: Sequence[str], published_of: PublishedOf) -> list[PaperTable]:
    """Lay out papers' tables with the runs as additional rows.

    Args:
        runs: runs that :func:`hgld.report_page.runs.read_runs` returned.
        papers: tables in a spelling that :func:`hgld.published.find_table` accepts, for example ``SupRank Table V``.
        published_of: function that finds the published values of a run's recipe, to state the difference.

    Raises:
        ConfigError: a paper or table is unknown.
    """
    own = []
    for run in runs:
        for task, evaluation in run.evaluations.items():
            size = evaluation.report.settings.get("image_size")
            own.append(
                OwnResults(
                    f"{run.name}, {task}" if len(run.evaluations) > 1 else run.name,
                    evaluation.dataset,
                    evaluation.report.values
                    | {"p*/augmented": evaluation.report.settings.get("gem_p") or float("nan")},
                    tuple(published_of(run.recipe)),
                    evaluation.levels,
                    size if isinstance(size, int) else 0,
                )
            )
    return [lay_out(*find_table(spelling), own) for spelling in papers]


def _check_runs(runs: Sequence[Run], baseline: str | None, *, seen: bool) -> None:
    """Raise an error if the baseline is unknown, or if a run was trained on evaluation images of another dataset."""
    names = [run.name for run in runs]
    if baseline is not None and baseline not in names:
        raise ConfigError(f"baseline {baseline!r} is not among the runs ({', '.join(names)}).")
    for run in runs if not seen else ():
        for split, evaluation in run.evaluations.items():
            facts = evaluation.report.settings.get(TRAINED_ON)
            if facts and was_trained_on(facts) and not facts["own_dataset"]:
                raise ConfigError(
                    f"{run.name}, {split}: it was trained on {facts['images']:,} of {facts['of_images']:,} of these "
                    f"images (as {facts['as']}). Omit this run, or show it anyway with --seen."
                )


# -- the page ---------------------------------------------------------------------------------------------------------

MOST_BYTES = 10_000_000
_FOOTER_BYTES = 20_000  # bytes reserved for the footer, whose counts are known only at the end
_TEMPLATE = Path(__file__).with_name("report.html")


@dataclass(frozen=True)
class Report:
    """The results of several runs, and facts about the page that shows them.

    Attributes:
        runs: names of the runs.
        scores: values of the runs by split.
        papers: tables of papers, with the runs as additional rows.
        figures: names of the files in the folder of figures.
        out: path of the page; empty without a page.
        bytes: size of the page.
        pictures: number of thumbnails on the page.
        pictures_left_out: number of thumbnails that the page omits because of its size limit.
        unreadable: images that could not be read, with the reason.
        notes: sentences about runs of another dataset than ``data``; the page shows them too.
        tasks: evaluation of each run by split.
        data: the dataset, if it was given.
    """

    runs: tuple[str, ...]
    scores: dict[str, ScoreTable]
    papers: tuple[PaperTable, ...]
    figures: tuple[str, ...]
    out: str = ""
    bytes: int = 0
    pictures: int = 0
    pictures_left_out: int = 0
    unreadable: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tasks: Mapping[str, Mapping[str, Evaluation]] = field(default_factory=dict, repr=False)
    data: str = ""

    def plot(self, kind: str, *, run: str = "", split: str = "", ax: "Axes | None" = None) -> "Axes":
        """Draw a figure of one run for a paper: ``tree``, ``confusion``, ``strips`` or ``curves``.

        Args:
            kind: the figure (:func:`hgld.report_page.plots.plot_evaluation`).
            run: name of the run. Default: the first.
            split: name of the split. Default: the run's first.
            ax: axes to draw on. Default: the axes of a new figure (``.figure.savefig(path)`` writes it).

        Raises:
            ConfigError: the kind, run or split is unknown, or the evaluation lacks embeddings or images.
        """
        from hgld.data.dataset import open_dataset
        from hgld.report_page.plots import plot_evaluation

        splits = [split] if split else [*self.tasks]
        chosen = next((e for s in splits for name, e in self.tasks.get(s, {}).items() if name == run or not run), None)
        if chosen is None:
            listed = ", ".join(f"{name} on {s}" for s, runs in self.tasks.items() for name in runs)
            raise ConfigError(f"no evaluation of run {run!r} on split {split!r}; the report has {listed}.")
        dataset = open_dataset(self.data) if self.data else None
        evaluation, metric = chosen.first_seed, _headline([*chosen.report.values], chosen.levels)
        name_of: NameOf = (lambda level, label: "") if chosen.ranked is None else _name_of(chosen, dataset)
        return plot_evaluation(kind, evaluation, name_of, metric, dataset, ax)


def make_report(
    places: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    data: str | Path | None = None,
    figures: str | Path | None = None,
    papers: Sequence[str] = (),
    published_of: PublishedOf = lambda recipe: (),
    baseline: str | None = None,
    title: str = "Retrieval report",
    seen: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Compare the results of several runs, and write the report page.

    Args:
        places: run folders, or reports that ``hgld evaluate --out`` wrote (:func:`hgld.report_page.runs.read_runs`).
        out: path of the HTML file; None: write no page.
        data: the dataset directory or URL, for images and class names.
        figures: folder into which the page's figures are written as PDF and PNG; None: they are not written.
        papers: tables of papers to which the runs are added (:func:`paper_tables`). Default: for a page, the tables
            that the runs' recipes come from.
        published_of: function that finds the published values of a run's recipe.
        baseline: name of the run to compare all other runs with; None: the first run.
        title: heading of the page.
        seen: whether to accept evaluations on images that a run was trained on.
        progress: function that is called with a task name, the number of finished queries or splits and the total.

    Raises:
        InputError: a file cannot be read, or files belong to different evaluations.
        ConfigError: the baseline is unknown, or the page would be too large.
        StorageError: a file cannot be written.
    """
    page = None if out is None else Path(out)
    if page is not None and (page.is_dir() or not os.access(page.parent, os.W_OK | os.X_OK)):
        raise StorageError(f"cannot write {page}; --out must be a file in an existing folder that you can write to.")
    runs = read_runs(places)
    _check_runs(runs, baseline, seen=seen)
    if page is not None and not papers:  # by default, show the tables that the runs' recipes come from
        papers = list(dict.fromkeys(f"{v.paper} {v.table}" for run in runs for v in published_of(run.recipe)))
    tables = tuple(paper_tables(runs, papers, published_of))
    drawer = Figures(None if figures is None else Path(figures))
    splits = sorted({split for run in runs for split in run.evaluations})
    tasks = {split: {run.name: run.evaluations[split] for run in runs if split in run.evaluations} for split in splits}
    scores = {split: score_table(evaluations, baseline) for split, evaluations in tasks.items()}
    made: dict[str, Any] = {}
    try:
        if page is not None:
            made = _write_page(page, title, runs, tasks, scores, tables, drawer, data, progress)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        where, why = error.filename or page or figures, error.strerror or error
        raise StorageError(f"cannot write {where}: {why}. Choose another --out.") from error
    names = tuple(run.name for run in runs)
    return Report(names, scores, tables, tuple(drawer.files), **made, tasks=tasks, data=str(data or ""))


def _write_page(
    out: Path,
    title: str,
    runs: Sequence[Run],
    tasks: Mapping[str, Mapping[str, Evaluation]],
    scores: Mapping[str, ScoreTable],
    tables: Sequence[PaperTable],
    drawer: Figures,
    data: str | Path | None,
    progress: Progress | None,
) -> dict[str, Any]:
    """Write the page; return the fields of :class:`Report` that describe it."""
    dataset, sections, notes = None, [], []
    if data is not None:
        from hgld.data.dataset import open_dataset

        dataset = open_dataset(data)
    for i, (split, evaluations) in enumerate(tasks.items()):
        own, said = _own_dataset(split, scores[split].dataset, dataset)
        section = _split_section(split, evaluations, scores[split], own, drawer, progress)
        section["missing"] += said
        sections.append(section)
        notes += said
        if progress is not None:
            progress("draw", i + 1, len(tasks))
    metrics = list(dict.fromkeys(metric for table in scores.values() for metric in table.metrics))
    parts = {
        "title": title,
        "runs": runs,
        "sections": sections,
        "tables": tables,
        "training": draw_training(drawer, runs, metrics),
        "answers": draw_answer_risks(drawer, runs),
        "series": SERIES,
    }
    kinds = dict.fromkeys(value_parts(metric)[0] for metric in metrics)
    meanings = [(kind, meaning_of(kind)) for kind in kinds] + [(plot, PLOTS[plot]) for plot in drawer.terms]

    def render(thumbnails: Thumbnails) -> bytes:
        html = render_page(
            _TEMPLATE,
            ["sort.js", "icicle.js", "map.js"],
            thumbnails=thumbnails,
            no_thumbnails=Thumbnails(None),
            terms=[*meanings, *_WORDS],
            **parts,
        )
        return html.encode("utf-8", errors="replace")  # UTF-8 cannot encode a lone surrogate in a name

    room = MOST_BYTES - len(render(Thumbnails(None))) - _FOOTER_BYTES
    thumbnails = Thumbnails(dataset, min(room, MOST_PICTURE_BYTES))
    made = render(thumbnails)
    if len(made) > MOST_BYTES:
        raise ConfigError(
            f"the page would have {len(made) / 1e6:.1f} MB; the limit is {MOST_BYTES / 1e6:.0f} MB. Choose fewer runs."
        )
    write_atomic(out, made)
    return {
        "out": str(out),
        "bytes": len(made),
        "pictures": len(thumbnails),
        "pictures_left_out": thumbnails.left_out,
        "unreadable": tuple(thumbnails.unreadable),
        "notes": tuple(notes),
    }


def _own_dataset(split: str, stated: str, dataset: "ShardDataset | None") -> tuple["ShardDataset | None", list[str]]:
    """Return the dataset if the evaluations belong to it, and a note if they do not or may not."""
    if dataset is None or stated == dataset.manifest.name:
        return dataset, []
    named = dataset.manifest.name
    if not stated:
        return dataset, [f"{split}: the report does not state its dataset; hgld assumes {named} from --data."]
    said = f"{split}: no images and class names, because --data is {named} and this is an evaluation of {stated}."
    return None, [said]

"""The subcommands that show results: report, published."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hgld.cli.models import SeenOptions
from hgld.cli.options import ReadingOptions, verb
from hgld.cli.output import echo, print_json, progress_bars, say_next, text_table, write_result
from hgld.evaluation.metric import offered_names
from hgld.settings import setting

if TYPE_CHECKING:
    from hgld.published import PaperTable, PublishedValue
    from hgld.report_page.scores import ScoreTable


# -- report -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Options of ``hgld report``: the results to show, and the files to write."""

    runs: tuple[Path, ...] = setting(
        ...,
        "Folder of a run of hgld train, or report file of hgld evaluate --out X.json.",
        argument=True,
        metavar="RUN...",
        path="existing",
    )
    out: Path | None = setting(None, "HTML page to write, as one file.", path="new")
    latex: Path | None = setting(None, "LaTeX file to write: one complete table per split.", path="new")
    figures: Path | None = setting(
        None, "Folder for the figures of the page: PDF and PNG, 3.3 inches wide. Needs --out.", path="folder"
    )
    metrics: tuple[str, ...] = setting(
        (),
        "Columns of the printed tables and the LaTeX tables.  [default: all, if they are few]",
        metavar="A,B,C",
        offered=offered_names,
    )
    paper: tuple[str, ...] = setting(
        (),
        'Published table to print with the runs added, for instance "SupRank Table V".',
        metavar="TABLE",
        repeated=True,
        commas=False,
    )
    data: str | None = setting(
        None, "Dataset from which the page takes class names and gallery images.", metavar="DIR|URL"
    )
    baseline: str | None = setting(None, "Name of the run to compare all other runs with.  [default: the first]")
    title: str = setting("Retrieval report", "Title of the page.")


@verb()
def report(asked: ReportOptions, reading: ReadingOptions, seen: SeenOptions, *, as_json: bool) -> None:
    """Show results as a table, as one HTML page that needs no network, as LaTeX, or in the table of a paper.

    Runs that differ only in their seed are one row: mean ± standard deviation. A folder of runs means all its runs.
    The curves, maps and galleries of the page need embeddings in RUN/embeddings or next to X.json.
    """
    if asked.figures is not None and asked.out is None:
        raise click.UsageError("--figures saves the figures of the page, so it needs --out.")
    from hgld.report_page.latex import latex_tables
    from hgld.report_page.page import make_report

    with progress_bars() as progress:
        made = make_report(
            asked.runs,
            asked.out,
            data=asked.data,
            figures=asked.figures,
            papers=asked.paper,
            published_of=_published_of,
            baseline=asked.baseline,
            title=asked.title,
            seen=seen.seen,
            progress=progress,
        )
    if asked.latex is not None:
        write_result(asked.latex, latex_tables(made.scores, asked.metrics), "--latex")
    for note in made.notes:
        echo(note, err=True)
    if as_json:
        warnings = [text for table in made.scores.values() for text in table.warnings]
        rows = {split: table.rows for split, table in made.scores.items()}
        facts = asdict(replace(made, scores={}, tasks={}))
        for hidden in ("tasks", "data"):  # a URL may contain a password
            del facts[hidden]
        print_json(facts | {"warnings": warnings, "scores": rows})
        return
    if asked.paper:
        print_tables(made.papers)
    else:
        print_scores(made.scores, asked.metrics)
    if made.out:
        echo(f"{made.out}: {made.bytes / 1e6:.1f} MB, runs: {len(made.runs)}, images: {made.pictures}")
        for reason in made.unreadable[:3]:
            echo(f"not shown: {reason}", err=True)
    if made.figures:
        echo(f"{asked.figures}: {len(made.figures)} figures")
    if asked.latex is not None:
        echo(str(asked.latex))
    if asked.data is not None:
        trained = next((run for run in asked.runs if run.is_dir()), "RUN")
        say_next("search", "PHOTO.jpg", "--checkpoint", trained, "--data", asked.data)


def print_scores(scores: "Mapping[str, ScoreTable]", metrics: Sequence[str]) -> None:
    """Print a table per split, in per cent, with its notes."""
    from hgld.report_page.latex import choose_columns

    marks = {"better": " ▲", "worse": " ▼", "": ""}
    for split, table in scores.items():
        chosen = choose_columns(table, metrics)
        header = [split, *chosen.metrics]
        rows = [
            [name, *(f"{score.shown} {score.spread}".strip() + marks[score.change] for score in row)]
            for name, row in chosen.runs
        ]
        echo("\n".join([*chosen.warnings, text_table(header, rows), *chosen.notes, ""]))


def _published_of(recipe: str) -> "Sequence[PublishedValue]":
    """Return the published values of a recipe; none for an unknown recipe."""
    from hgld.training.recipes import RECIPES

    return RECIPES[recipe].values if recipe in RECIPES else ()


# -- published --------------------------------------------------------------------------------------------------------


def _datasets() -> Iterable[str]:
    from hgld.published import published_values

    return dict.fromkeys(value.dataset for value in published_values())


@dataclass(frozen=True, kw_only=True)
class PublishedOptions:
    """Options of ``hgld published``: the results to find; case, spaces and punctuation are ignored."""

    dataset: str = setting(
        "", "Show only values on this dataset: sop, inat-base, dyml, h-gldv2, ...", offered=_datasets
    )
    method: str = setting("", "Show only methods whose name contains this text: HAPPIER, Smooth-AP, NSM, ...")
    metric: str = setting("", "Show only this metric: R@1, H-AP, AP/category, ...")


@verb()
def published(asked: PublishedOptions, *, as_json: bool) -> None:
    """Search the results in the tables of papers.

    Case, spaces and punctuation are ignored. hgld reproduce "SupRank Table V" prints one table, and hgld report RUN
    --paper "SupRank Table V" adds your own runs to it.
    """
    from hgld.published import PAPERS, lay_out, search_values

    values = search_values(dataset=asked.dataset, method=asked.method, metric=asked.metric)
    if as_json:
        print_json({"rows": [value.as_dict() for value in values]})
        return
    papers = dict.fromkeys(value.paper for value in values)
    print_tables([lay_out(PAPERS[key].name, [v for v in values if v.paper == key]) for key in papers])


def print_tables(tables: "Sequence[PaperTable]") -> None:
    """Print tables of papers with the user's runs added."""
    for table in tables:
        echo(f"{table.title}: {table.source}")
        for block in table.blocks:
            headings = [
                ("method",),
                *((name,) for name in block.details),
                *(" ".join(c).split() for c in block.columns),
            ]
            depth = max(map(len, headings))  # number of header lines; a line has one word of each heading
            padded = [[""] * (depth - len(words)) + [*words] for words in headings]
            first, *rows = [[words[line] for words in padded] for line in range(depth)]
            for row in block.rows:
                rows.append([row.label, *row.details, *row.cells])
                if row.against:
                    rows.append([f"minus {row.against}", *row.details, *row.differences])
            echo(f"\n{block.title}\n{text_table(first, rows)}" + "\n".join(block.notes))
        echo("".join(f"\n{note}\n" for note in table.notes))

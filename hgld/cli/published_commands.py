"""The verb published: results that papers print, found by their names; and a paper's table as text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from hgld.cli.options import complete_choices, json_option
from hgld.cli.output import echo, print_json, print_rich

if TYPE_CHECKING:
    from hgld.published import PaperTable
    from hgld.published.paper_table import PaperBlock

_MARKS = ("", "¹", "²")
_NARROWEST = 110


def _datasets(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from hgld.published import published_values

    return complete_choices(dict.fromkeys(value.dataset for value in published_values()), incomplete)


def _papers(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from hgld.published import PAPERS

    return complete_choices(PAPERS, incomplete)


def published_command() -> click.Command:
    @click.command()
    @click.option(
        "--dataset", default="", shell_complete=_datasets, help="Of this dataset: sop, inat-base, dyml, h-gldv2, ..."
    )
    @click.option("--method", default="", help="Whose method's name contains this: HAPPIER, Smooth-AP, NSM, ...")
    @click.option(
        "--paper", default="", shell_complete=_papers, help='Of this paper or table: suprank, "Smooth-AP Table 3", ...'
    )
    @click.option("--metric", default="", help="Of this metric: R@1, H-AP, AP/category, ...")
    @click.option("--csv", "as_csv", is_flag=True, help="Print a table for machines, one value a row.")
    @json_option
    def published(dataset: str, method: str, paper: str, metric: str, as_csv: bool, as_json: bool) -> None:
        """Search the results that the papers' tables print.

        Case, spaces and punctuation do not count. Without options every table is named. hgld report RUN --paper
        "SupRank Table V" puts your own runs into a table.
        """
        from hgld.published import find_table, search_values

        within = find_table(paper)[1] if paper else None
        narrowed = bool(dataset or method or metric)
        values = search_values(within, dataset=dataset, method=method, metric=metric)
        if as_json:
            print_json({"rows": [value.as_dict() for value in values]})
        elif as_csv:
            echo(_csv([value.as_dict() for value in values]), nl=False)
        elif not narrowed and within is None:
            _print_contents()
        else:
            print_tables(_by_paper(values, whole=not narrowed))

    return published


def _csv(rows: list[dict[str, str]]) -> str:
    import csv
    import io

    page = io.StringIO()
    writer = csv.DictWriter(page, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return page.getvalue()


def _by_paper(values: list[Any], *, whole: bool) -> "list[PaperTable]":
    from hgld.published import PAPERS, lay_out

    papers = dict.fromkeys(value.paper for value in values)
    return [lay_out(PAPERS[key].name, [v for v in values if v.paper == key], mark=whole) for key in papers]


def _print_contents() -> None:
    """Name every table with its datasets."""
    from hgld.published import PAPERS, published_values

    for key, paper in PAPERS.items():
        here = [value for value in published_values() if value.paper == key]
        echo(f"{paper.name} ({key}): {paper.source}. {len(here)} values.")
        for table in dict.fromkeys(value.table for value in here):
            found = [value for value in here if value.table == table]
            echo(f"  {table}: {', '.join(dict.fromkeys(value.dataset for value in found))} ({len(found)})")


def print_tables(tables: "Sequence[PaperTable]") -> None:
    """Print papers' tables; ¹ and ² stand at the best and the second best value of a column."""
    import shutil

    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    for table in tables:
        print_rich(f"{table.title}: {table.source}", width=width)
        for block in table.blocks:
            print_rich(f"\n{block.title}", _laid_out(block), *block.notes, width=width)
        print_rich(*(f"\n{note}" for note in table.notes), "", width=width)
    if any(cell.place for table in tables for block in table.blocks for row in block.rows for cell in row.cells):
        echo("¹ best, ² second best of a column.")


def _words(heading: str) -> list[str]:
    """Break a heading such as ``number of updates`` into lines; names of metrics have no spaces."""
    import textwrap

    return textwrap.wrap(heading, 10, break_long_words=False, break_on_hyphens=False) or [""]


def _laid_out(block: "PaperBlock") -> Any:
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("method", *block.details):
        shown.add_column(heading, vertical="bottom")
    marked = [any(row.cells[j].place for row in block.rows) for j in range(len(block.columns))]
    for lines, wide in zip(block.columns, marked, strict=True):
        heading = [part + " " * wide for line in lines for part in _words(line)]
        shown.add_column(Text("\n".join(heading)), justify="right", no_wrap=True, vertical="bottom")
    for row in block.rows:
        cells = [cell.text + (_MARKS[cell.place] or " ") * wide for cell, wide in zip(row.cells, marked, strict=True)]
        shown.add_row(*map(Text, (row.label, *row.details, *cells)), style="bold" if row.own else "")
        if row.against:
            cells = [cell.difference + " " * wide for cell, wide in zip(row.cells, marked, strict=True)]
            shown.add_row(*map(Text, (f"  minus {row.against}", *row.details, *cells)))
    return shown

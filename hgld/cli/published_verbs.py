"""The verb published: results that papers print, found by their names; and a paper's table as text."""

from typing import TYPE_CHECKING, Any

import click

from hgld.cli.options import json_option
from hgld.cli.output import echo, print_json, print_rich

if TYPE_CHECKING:
    from hgld.published import PaperTable

_MARKS = ("", "¹", "²")
_NARROWEST = 100


def published_command() -> click.Command:
    @click.command()
    @click.option("--dataset", default="", help="Of this dataset: sop, inat-base, dyml, h-gldv2, ...")
    @click.option("--method", default="", help="Whose method's name contains this: HAPPIER, Smooth-AP, NSM, ...")
    @click.option("--paper", default="", help='Of this paper, or this table of it: suprank, "Smooth-AP Table 3".')
    @click.option("--metric", default="", help="Of this metric: R@1, H-AP, AP/category, ...")
    @click.option("--csv", "as_csv", is_flag=True, help="Print a table for machines, one value a row.")
    @json_option
    def published(dataset: str, method: str, paper: str, metric: str, as_csv: bool, as_json: bool) -> None:
        """Search the results that the papers' tables print.

        Case, spaces and punctuation do not count. Without options every table is named. hgld report RUN --paper
        "SupRank Table V" puts your own runs into a table; --csv FILE-like output can go to hgld report --published.
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


def print_tables(tables: "list[PaperTable]") -> None:
    """Print papers' tables; ¹ and ² stand at the best and the second best value of a column."""
    import shutil

    from rich.table import Table
    from rich.text import Text

    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    marked = differs = False
    for table in tables:
        echo(f"{table.title}: {table.source}")
        for block in table.blocks:
            echo(f"\n{block.title}")
            shown = Table(box=None, pad_edge=False, header_style="dim")
            for heading in ("method", *block.details):
                shown.add_column(heading, vertical="bottom")
            for lines in block.columns:
                shown.add_column("\n".join(lines), justify="right", no_wrap=True)
            for row in block.rows:
                cells = [_cell(cell) for cell in row.cells]
                marked |= any(cell.place for cell in row.cells)
                differs |= any(cell.difference for cell in row.cells)
                shown.add_row(*map(Text, (row.label, *row.details, *cells)), style="bold" if row.own else "")
            print_rich(shown, width=width)
            for note in block.notes:
                echo(f"  {note}")
        for note in table.notes:
            echo(f"\n{note}")
        echo("")
    if marked:
        echo("¹ best, ² second best of a column." + (" In brackets: minus the row of the run's recipe." * differs))


def _cell(cell: Any) -> str:
    return f"{cell.text}{_MARKS[cell.place]}" + (f" ({cell.difference})" if cell.difference else "")

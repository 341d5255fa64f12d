"""The verb that shows results to people: report."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hgld.cli.options import EXISTING_FILE, FOLDER, NewFile, json_option
from hgld.cli.shown import echo, print_json, progress_bars


def report_command() -> click.Command:
    @click.command()
    @click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path, exists=True))
    @click.option("--out", required=True, type=NewFile(), help="The page: one HTML file.")
    @click.option("--data", metavar="DIR|URL", help="The dataset: pictures of the galleries, names of the classes.")
    @click.option("--plots", type=FOLDER, help="Keep every figure in this folder too, as PNG and SVG.")
    @click.option(
        "--published",
        type=EXISTING_FILE,
        help="CSV of published results to show beside: dataset, method, metric, value (per cent), source.",
    )
    @click.option("--baseline", help="Name of the run that the others are compared with. [default: the first]")
    @click.option("--title", default="Retrieval report", show_default=True, help="Of the page.")
    @json_option
    def report(runs: tuple[Path, ...], out: Path, as_json: bool, **given: Any) -> None:
        """Show results as one HTML page that needs no network.

        RUN is a folder of `hgld train`, or a report that `hgld evaluate --out X.json` kept; its curves, maps and
        galleries need the embeddings: in RUN/embeddings, or beside X.json. The first RUN is what the others are
        compared with.
        """
        from hgld.report_page.page import write_report_page

        with progress_bars() as progress:
            facts = write_report_page(runs, out, progress=progress, **given)
        for note in facts.notes:
            echo(note, err=True)
        if as_json:
            print_json(asdict(facts))
            return
        echo(f"{facts.out}: {facts.bytes / 1e6:.1f} MB, runs: {len(facts.runs)}, pictures: {facts.pictures}")
        for reason in facts.unreadable[:3]:
            echo(f"not shown: {reason}", err=True)

    return report

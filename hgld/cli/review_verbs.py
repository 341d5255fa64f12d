"""The verb by which people finish a hierarchy: review."""

from pathlib import Path

import click

from hgld.cli.options import EXISTING_FILE, FOLDER, json_option
from hgld.cli.shown import echo


def review_command() -> click.Command:
    @click.command()
    @click.argument("build", metavar="BUILD_DIR", type=FOLDER)
    @click.option("--who", help="Your name in the decisions.  [default: your name on this machine]")
    @click.option(
        "--decisions",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The file your decisions are appended to; made if it is not there.  [default: BUILD_DIR/decisions.yaml]",
    )
    @click.option("--others", type=EXISTING_FILE, multiple=True, help="Decisions of another annotator, to compare.")
    @click.option("--adjudicate", is_flag=True, help="Settle the conflicts of --others in a file of its own.")
    @click.option("--images", type=click.Path(path_type=Path), help="Landmarks' images: a folder or a tar.")
    @click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0: any free port.")
    @click.option("--browser/--no-browser", default=True, help="Open the page where a person looks.")
    @json_option
    def review(
        build: Path,
        who: str | None,
        decisions: Path | None,
        others: tuple[Path, ...],
        adjudicate: bool,
        images: Path | None,
        port: int,
        browser: bool,
        as_json: bool,
    ) -> None:
        """Finish the groups of BUILD_DIR on a local web page.

        The page shows doubtful names first. Every change is appended to your file of decisions at once, with who and
        why; build again with --decisions FILE to apply it. The page is on this machine only; Ctrl-C ends it.
        """
        from pipelines.review_page.images import Thumbnails
        from pipelines.review_page.journal import Journal
        from pipelines.review_page.server import serve
        from pipelines.review_page.state import Review
        from pipelines.review_page.tables import BuildTables

        journal = Journal(
            decisions or build / "decisions.yaml",
            _user() if who is None else who,
            "adjudicator" if adjudicate else "annotator",
        )
        shown = Review(BuildTables(build), journal, others, Thumbnails(images))
        if shown.note:
            echo(shown.note, err=True)
        serve(shown, port, lambda address: _announce(address, journal.path, browser, as_json))

    return review


def _user() -> str:
    import getpass

    from hgld.errors import ConfigError

    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:  # OSError from Python 3.13 on
        raise ConfigError(
            "You have no name on this machine, as in some containers. Say who decides with --who NAME."
        ) from error


def _announce(address: str, file: Path, browser: bool, as_json: bool) -> None:
    import json
    import sys

    if as_json:
        echo(json.dumps({"address": address, "decisions": str(file)}))
        sys.stdout.flush()
        return
    echo(f"page       {address}\ndecisions  {file}\nCtrl-C ends the page; your decisions are on the disk.")
    sys.stdout.flush()
    if browser and sys.stdout.isatty():
        import webbrowser

        webbrowser.open(address)

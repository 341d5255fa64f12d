"""The verbs that make and judge hierarchies: build-hierarchy, compare, review."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hgld.cli.options import EXISTING_FILE, FOLDER, SectionedCommand, SplitTable, Structure, flags, json_option, take
from hgld.cli.output import echo, print_json, progress_bars
from hgld.errors import takes_extra
from hgld.terminal import is_terminal

if TYPE_CHECKING:
    from hgld.pipelines.hierarchy.config import BuildConfig


_TITLES = {"toplevel": "Natural or human-made"}  # of stages' sections in the help, where it is not their name


def build_hierarchy_command() -> click.Command:
    from hgld.pipelines.hierarchy.config import BuildConfig, stage_configs

    configs = stage_configs()
    sections = {_TITLES.get(name, name.capitalize()): config for name, config in configs.items()}

    @click.command(cls=SectionedCommand)
    @click.option("--sample", is_flag=True, help="Build from the landmarks that hgld ships, offline.")
    @click.option(
        "--landmarks",
        metavar="SPLIT=CSV",
        type=SplitTable(),
        multiple=True,
        help="GLDv2's list of a split (landmark_id, category), to be scraped. Repeat for index.",
    )
    @click.option(
        "--names",
        metavar="[train=]CSV",
        type=SplitTable("train"),
        multiple=True,
        help="A table already scraped: landmark_id, category, supercategory.",
    )
    @click.option("--out", type=FOLDER, required=True, help="Folder of the build.")
    @click.option("--dry-run", is_flag=True, help="Say what would be asked and how long it would take, then stop.")
    @json_option
    @flags(sections, types={"structure": Structure()})
    def build_hierarchy(
        sample: bool,
        landmarks: tuple[tuple[str, Path], ...],
        names: tuple[tuple[str, Path], ...],
        out: Path,
        dry_run: bool,
        as_json: bool,
        **given: Any,
    ) -> None:
        """Build the hierarchy: landmark categories in, GLDv2's hierarchical labels out.

        Exactly one of --sample, --landmarks and --names says where the names come from. Stopped anywhere, the same
        command goes on; run again, it does nothing.
        """
        if sum(map(bool, (sample, landmarks, names))) != 1:
            raise click.UsageError("give exactly one of --sample, --landmarks SPLIT=CSV or --names [SPLIT=]CSV.")
        tables = landmarks or names
        if len({split for split, _ in tables}) != len(tables):
            raise click.UsageError("two tables have the same split; write for instance train=A.csv and index=B.csv.")
        if sample and given["encoder"] is None:
            given["encoder"] = "lexical"
        config = BuildConfig(
            "sample" if sample else "landmarks" if landmarks else "names",
            tables,
            **{name: take(config, given) for name, config in configs.items()},
        )
        _run_build(out, config, dry_run=dry_run, as_json=as_json)

    return build_hierarchy


def _run_build(out: Path, config: "BuildConfig", *, dry_run: bool, as_json: bool) -> None:
    from hgld.pipelines.hierarchy.build import build_hierarchy, build_summary, build_table, plan_summary, plan_text

    with progress_bars() as progress:
        if config.source == "landmarks" and not (dry_run or as_json) and is_terminal(sys.stderr):
            planned = build_hierarchy(out, config, progress, dry_run=True)
            echo(plan_text(planned), err=True)
        build = build_hierarchy(out, config, progress, dry_run=dry_run)
    if as_json:
        print_json(plan_summary(build) if dry_run else build_summary(build))
    else:
        echo(plan_text(build) if dry_run else build_table(build))


def compare_command() -> click.Command:
    @click.command()
    @click.argument("a", type=EXISTING_FILE)
    @click.argument("b", type=EXISTING_FILE)
    @json_option
    def compare(a: Path, b: Path, as_json: bool) -> None:
        """Judge one label file against another, joined on the landmark id.

        Coverage, ARI, NMI and V-measure over landmarks and over distinct names, each group's best match, and the
        agreement on natural or human-made.
        """
        from hgld.pipelines.hierarchy.compare import compare as compare_files

        comparison = compare_files(a, b)
        if as_json:
            print_json(comparison.to_dict())
        else:
            echo(comparison.to_markdown())

    return compare


# -- review -----------------------------------------------------------------------------------------------------------


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
        from hgld.pipelines.hierarchy.review.journal import Journal
        from hgld.pipelines.hierarchy.review.state import Review, Thumbnails
        from hgld.pipelines.hierarchy.review.tables import BuildTables

        with takes_extra("review", "hgld review"):
            from hgld.pipelines.hierarchy.review.server import serve
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

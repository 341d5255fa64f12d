"""The verbs that make and judge hierarchies: build-hierarchy, compare, review."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from hgld.cli.options import (
    EXISTING_FILE,
    FOLDER,
    GroupNumbers,
    Names,
    SectionedCommand,
    SplitTable,
    Structure,
    flags,
    json_option,
    take,
)
from hgld.cli.output import echo, print_json, progress_bars, say_next
from hgld.terminal import is_terminal

if TYPE_CHECKING:
    from hgld.pipelines.hierarchy.config import BuildConfig


_TITLES = {"toplevel": "Top level", "taxonomy": "Tree"}  # of stages' sections in the help, where it is not their name


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
    @click.option(
        "--classes",
        metavar="FILE",
        type=EXISTING_FILE,
        help="Names of anything: one a line, or a table with name and, if there, id, count, description, image, "
        "language.",
    )
    @click.option("--out", type=FOLDER, required=True, help="Folder of the build.")
    @click.option(
        "--replace", is_flag=True, help="Replace the labels of a build by the other --route; a terminal is asked."
    )
    @click.option("--dry-run", is_flag=True, help="Say what would be asked and how long it would take, then stop.")
    @click.option(
        "--explain",
        metavar="NAME",
        multiple=True,
        help="Say what each kind of evidence says about NAME, after the build; of a finished build at once.",
    )
    @json_option
    @flags(sections, types={"structure": Structure(), "groups": GroupNumbers()}, without=("coarser",))
    def build_hierarchy(
        sample: bool,
        landmarks: tuple[tuple[str, Path], ...],
        names: tuple[tuple[str, Path], ...],
        classes: Path | None,
        out: Path,
        replace: bool,
        dry_run: bool,
        explain: tuple[str, ...],
        as_json: bool,
        **given: Any,
    ) -> None:
        """Build a hierarchy: names in, groups of names and levels above them out.

        Exactly one of --sample, --landmarks, --names and --classes says where the names come from: landmarks get
        GLDv2's hierarchical labels, classes of anything the levels that you name. Stopped anywhere, the same command
        goes on; run again, it does nothing.
        """
        sources = {"sample": sample, "landmarks": landmarks, "names": names, "classes": classes}
        source = [name for name, told in sources.items() if told]
        if len(source) != 1:
            raise click.UsageError(
                "give exactly one of --sample, --landmarks SPLIT=CSV, --names [SPLIT=]CSV or --classes FILE."
            )
        tables = landmarks or names or ((("classes", classes),) if classes else ())
        if len({split for split, _ in tables}) != len(tables):
            raise click.UsageError("two tables have the same split; write for instance train=A.csv and index=B.csv.")
        given["groups"], *coarser = given["groups"] or (None,)
        given["coarser"] = tuple(coarser)
        config = BuildConfig(
            source[0],  # pyright: ignore[reportArgumentType]  # one of the keys above
            tables,
            **{name: take(config, given) for name, config in configs.items()},
        )
        _run_build(out, config, replace=replace, dry_run=dry_run, explain=explain, as_json=as_json)

    return build_hierarchy


def _run_build(
    out: Path, config: "BuildConfig", *, replace: bool, dry_run: bool, explain: tuple[str, ...], as_json: bool
) -> None:
    from hgld.pipelines.hierarchy.build import (
        build_hierarchy,
        build_summary,
        build_table,
        other_route,
        plan_summary,
        plan_text,
    )
    from hgld.pipelines.hierarchy.explain import explain as explained
    from hgld.pipelines.hierarchy.explain import explain_text

    if not (replace or dry_run or as_json) and is_terminal(sys.stdin) and (route := other_route(out, config)):
        replace = click.confirm(f"{out} holds labels made by --route {route}. Replace them?", err=True)
    with progress_bars() as progress:
        if (
            (config.source == "landmarks" or config.names.wikidata)
            and not (dry_run or as_json)
            and is_terminal(sys.stderr)
        ):
            planned = build_hierarchy(out, config, progress, dry_run=True)
            echo(plan_text(planned), err=True)
        announce = partial(echo, err=True)
        build = build_hierarchy(out, config, progress, dry_run=dry_run, replace=replace, announce=announce)
    said = [] if dry_run else [explained(build.stages, name) for name in explain]
    if as_json:
        print_json(plan_summary(build) if dry_run else build_summary(build) | ({"explained": said} if said else {}))
    else:
        echo("\n\n".join([plan_text(build) if dry_run else build_table(build), *map(explain_text, said)]))
        if not dry_run:
            _say_next(out)


def _say_next(place: Path, *, err: bool = False) -> None:
    """Print what follows a build: the review, and after it the shards; nothing of another table than a build's."""
    from hgld.pipelines.hierarchy.provenance import build_facts

    out = place if place.is_dir() else place.parent
    facts = build_facts(out)
    if facts is None:
        return
    if not facts.is_reviewed:
        say_next("hgld", "review", out, err=err)
    else:
        release = ("manifest", "--source", "TABLE") if facts.source == "classes" else ("gldv2", "--source", "RELEASE")
        say_next("hgld", "build-shards", *release, "--labels", out, "--out", "SHARDS", "--dry-run", err=err)


def compare_command() -> click.Command:
    place = click.Path(path_type=Path, exists=True)

    @click.command()
    @click.argument("a", type=place)
    @click.argument("b", type=place)
    @click.option(
        "--on", default="", help="Column that says which item a row is; A=B where the tables call it differently."
    )
    @click.option(
        "--levels",
        type=Names(),
        default=(),
        help="Columns to compare, finest first; each may be A=B.  [default: those of one name, else by their order]",
    )
    @click.option("--all", "everything", is_flag=True, help="The best match of every group, all confusions.")
    @click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown.")
    @json_option
    def compare(
        a: Path, b: Path, on: str, levels: tuple[str, ...], everything: bool, as_markdown: bool, as_json: bool
    ) -> None:
        """Judge the hierarchy A by the reference B.

        Each is a CSV or parquet table of labels, a hierarchy.parquet, or the folder of a build. Says which columns it
        takes, then how far groups agree at every level and over all levels, and the largest confusions.
        """
        from hgld.pipelines.hierarchy.comparison.compare import compare as compare_files
        from hgld.pipelines.hierarchy.comparison.texts import markdown, summary

        if as_json and as_markdown:
            raise click.UsageError("give one of --json and --markdown.")
        comparison = compare_files(a, b, on=on, levels=levels)
        if as_json:
            print_json(comparison.to_dict())
        else:
            echo((markdown if as_markdown else summary)(comparison, everything=everything), nl=False)
            _say_next(a, err=True)

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
    @click.option(
        "--images",
        type=click.Path(path_type=Path),
        help="Landmarks' images: a folder or a tar; of --classes the folder of the list.",
    )
    @click.option(
        "--order",
        type=click.Choice(["items", "names"]),
        default="items",
        show_default=True,
        help="What an action should put right most of.",
    )
    @click.option(
        "--propose", metavar="URL", help="Ask a language model first, at an OpenAI-compatible server: .../v1."
    )
    @click.option("--propose-model", metavar="NAME", help="The model's name at that server.")
    @click.option(
        "--propose-requests", type=click.IntRange(1), default=100, show_default=True, help="Requests at most."
    )
    @click.option(
        "--propose-tokens", type=click.IntRange(1), default=200_000, show_default=True, help="Tokens at most, in all."
    )
    @click.option("--propose-only", is_flag=True, help="Write the model's proposals and end, without a page.")
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
        order: Literal["items", "names"],
        propose: str | None,
        propose_model: str | None,
        propose_requests: int,
        propose_tokens: int,
        propose_only: bool,
        port: int,
        browser: bool,
        as_json: bool,
    ) -> None:
        """Finish the groups of BUILD_DIR on a local web page.

        The page asks first what puts most right, and estimates all other names anew after each decision. Decisions are
        appended to your file at once; build again with --decisions FILE to apply them. The page is on this machine
        only; Ctrl-C ends it.

        With --propose a language model says what it would name, merge and move. Its proposals are shown as another
        annotator's, beside yours; nothing applies them by itself. A key is read from HGLD_PROPOSE_KEY.
        """
        if (propose is None) != (propose_model is None) or (propose_only and propose is None):
            raise click.UsageError("--propose URL and --propose-model NAME go together; --propose-only needs both.")
        if propose is not None and propose_model is not None:
            file = _propose(build, propose, propose_model, propose_requests, propose_tokens, propose_only and as_json)
            if propose_only:
                return
            others = (*(other for other in others if other.resolve() != file.resolve()), file)
        from hgld.pipelines.hierarchy.levels.given_levels import has_given_levels
        from hgld.pipelines.hierarchy.review.decisions.journal import Journal
        from hgld.pipelines.hierarchy.review.learning.teaching import Teacher
        from hgld.pipelines.hierarchy.review.server import serve
        from hgld.pipelines.hierarchy.review.state import Review, Thumbnails
        from hgld.pipelines.hierarchy.review.tables import BuildTables

        journal = Journal(
            decisions or build / "decisions.yaml",
            _user() if who is None else who,
            "adjudicator" if adjudicate else "annotator",
        )
        tables = BuildTables(build)
        teacher = None if has_given_levels(build) else Teacher.of(build, by=order)
        shown = Review(tables, journal, others, Thumbnails(images, tables.images()), teacher)
        if shown.note:
            echo(shown.note, err=True)
        serve(shown, port, lambda address: _announce(address, journal.path, browser, as_json))

    return review


def _propose(build: Path, url: str, model: str, requests: int, tokens: int, as_json: bool) -> Path:
    from dataclasses import asdict

    from hgld.pipelines.hierarchy.review.propose import proposals_text, propose

    def say(text: str) -> None:
        echo(text, err=True)

    with progress_bars() as progress:
        found = propose(build, url, model, requests=requests, tokens=tokens, say=say, progress=progress)
    if as_json:
        print_json(asdict(found) | {"file": str(found.file)})
    else:
        echo(proposals_text(found), err=True)
    return found.file


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
    echo(
        f"page       {address}\ndecisions  {file}\nCtrl-C ends the page; your decisions are on the disk.\n"
        f"next       build again by the same command with --decisions {file}"
    )
    sys.stdout.flush()
    if browser and sys.stdout.isatty():
        import webbrowser

        webbrowser.open(address)

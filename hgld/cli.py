"""The ``hgld`` command: verbs that import what they need only when they run.

Exit codes: 0 done, 1 a check failed, 2 bad input, 130 stopped by the user.
"""

import dataclasses
import json
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal

import click

from hgld import __version__
from hgld.errors import HgldError

if typing.TYPE_CHECKING:
    from pipelines.config import BuildConfig
    from pipelines.progress import Progress

_Config = typing.TypeVar("_Config")

EXIT_CHECK_FAILED, EXIT_BAD_INPUT, EXIT_STOPPED = 1, 2, 130


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    try:
        code = cli.main(arguments, prog_name="hgld", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("hgld: stopped; the same command goes on from here.", err=True)
        code = EXIT_STOPPED
    except HgldError as error:
        if debug:
            raise
        click.echo(f"hgld: {error}", err=True)
        code = EXIT_BAD_INPUT
    sys.exit(code if isinstance(code, int) else 0)


class _Verbs(click.Group):
    """A group that knows its verbs' one-line helps without importing the verbs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        make, summary = VERBS[cmd_name]
        command = make()
        command.name, command.short_help = cmd_name, summary
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, summary) for name, (_, summary) in VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in VERBS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], VERBS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"The verbs are: {', '.join(VERBS)}."
            raise click.UsageError(f"there is no verb {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="hgld")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Build, measure and train on hierarchically labelled image datasets."""


# -- options made from the configs of the stages ----------------------------------------------------------------


class _Structure(click.ParamType):
    """``p279=W``: the weight of Wikidata's subclass graph."""

    name = metavar = "p279=W"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).removeprefix("p279=")
        try:
            weight = float(text)
        except ValueError:
            weight = -1.0
        if not 0 <= weight <= 1:
            self.fail(f"{value!r}: expected p279=W with a weight W from 0 (text only) to 1.", param, ctx)
        return weight


class _SplitTable(click.ParamType):
    """``SPLIT=CSV``; the split may be left out where there is one."""

    name = "SPLIT=CSV"

    def __init__(self, default_split: str | None = None) -> None:
        self.default_split = default_split
        if default_split:
            self.name = f"[{default_split}=]CSV"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Path]:
        if isinstance(value, tuple):
            return value
        split, separator, path = str(value).partition("=")
        if not separator:
            split, path = self.default_split or "", str(value)
        if not split.isidentifier():
            self.fail(f"{value!r}: expected {self.name}, for instance train=train_label_to_category.csv.", param, ctx)
        if not Path(path).is_file():
            self.fail(f"{path!r} is not a file.", param, ctx)
        return split, Path(path)


_SPECIAL_TYPES: dict[str, click.ParamType] = {"structure": _Structure()}


def _click_type(name: str, annotation: Any) -> tuple[click.ParamType | type, bool]:
    """The click type of a config field, and whether the option can be given several times."""
    if name in _SPECIAL_TYPES:
        return _SPECIAL_TYPES[name], False
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        return _click_type(name, arguments[0])[0], True
    if origin is Literal:
        return click.Choice(arguments), False
    if origin is UnionType:
        return _click_type(name, next(a for a in arguments if a is not NoneType))
    return (click.Path(path_type=Path) if annotation is Path else annotation), False


class _SectionedOption(click.Option):
    """An option that stands under a heading of its command's help."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class _SectionedCommand(click.Command):
    """A command whose help lists its options under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(option, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _config_options(sections: dict[str, type]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A flag for every field of these dataclasses, by heading, with the help that the field states."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for section, config in reversed(sections.items()):
            hints = typing.get_type_hints(config)
            for field in reversed(dataclasses.fields(config)):
                kind, multiple = _click_type(field.name, hints[field.name])
                flag = f"--{field.name.replace('_', '-')}"
                names = [f"{flag}/--no-{flag[2:]}"] if kind is bool else [flag]
                shown = field.default not in ((), None, "")
                function = click.option(
                    *names,
                    field.name,
                    cls=_SectionedOption,
                    section=section,
                    metavar=getattr(kind, "metavar", None),
                    type=None if kind is bool else kind,
                    multiple=multiple,
                    default=field.default,
                    show_default=shown,
                    help=field.metadata["help"],
                )(function)
        return function

    return decorate


def _take(config: type[_Config], given: dict[str, Any]) -> _Config:
    names = [field.name for field in dataclasses.fields(typing.cast(Any, config))]
    return config(**{name: given[name] for name in names})


# -- what a person and a machine see --------------------------------------------------------------------------


@contextmanager
def _progress() -> "Iterator[Progress]":
    """Progress bars on stderr where a person looks, silence elsewhere."""
    if not sys.stderr.isatty():
        from pipelines.progress import silent

        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(task: str, done: int, total: int | None) -> None:
            if task not in tasks:
                tasks[task] = bars.add_task(task, total=total)
            bars.update(tasks[task], completed=done, total=total)

        yield show


def _print_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for machines.")
_folder = click.Path(path_type=Path, file_okay=False)
_file = click.Path(path_type=Path, dir_okay=False, exists=True)


# -- verbs ----------------------------------------------------------------------------------------------------


def _build_hierarchy() -> click.Command:
    from pipelines.config import (
        AssignConfig,
        BuildConfig,
        CleanConfig,
        ClusterConfig,
        EmbedConfig,
        ReviewConfig,
        ScrapeConfig,
        TopLevelConfig,
    )

    sections = {
        "Scrape": ScrapeConfig,
        "Clean": CleanConfig,
        "Embed": EmbedConfig,
        "Cluster": ClusterConfig,
        "Natural or human-made": TopLevelConfig,
        "Review": ReviewConfig,
        "Assign": AssignConfig,
    }

    @click.command(cls=_SectionedCommand)
    @click.option("--sample", is_flag=True, help="Build from the landmarks that hgld ships, offline.")
    @click.option(
        "--landmarks",
        metavar="SPLIT=CSV",
        type=_SplitTable(),
        multiple=True,
        help="GLDv2's list of a split (landmark_id, category), to be scraped. Repeat for index.",
    )
    @click.option(
        "--names",
        metavar="[train=]CSV",
        type=_SplitTable("train"),
        multiple=True,
        help="A table already scraped: landmark_id, category, supercategory.",
    )
    @click.option("--out", type=_folder, required=True, help="Folder of the build.")
    @click.option("--dry-run", is_flag=True, help="Say what would be asked and how long it would take, then stop.")
    @_json_option
    @_config_options(sections)
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
        context = click.get_current_context()
        if sample and context.get_parameter_source("encoder") is click.core.ParameterSource.DEFAULT:
            given["encoder"] = "lexical"
        config = BuildConfig(
            "sample" if sample else "landmarks" if landmarks else "names",
            tables,
            scrape=_take(ScrapeConfig, given),
            clean=_take(CleanConfig, given),
            embed=_take(EmbedConfig, given),
            cluster=_take(ClusterConfig, given),
            toplevel=_take(TopLevelConfig, given),
            review=_take(ReviewConfig, given),
            assign=_take(AssignConfig, given),
        )
        _run_build(out, config, dry_run=dry_run, as_json=as_json)

    return build_hierarchy


def _run_build(out: Path, config: "BuildConfig", *, dry_run: bool, as_json: bool) -> None:
    from pipelines.build import build_hierarchy
    from pipelines.build_text import build_summary, build_table, plan_summary, plan_text

    with _progress() as progress:
        if config.source == "landmarks" and not dry_run and not as_json:
            planned = build_hierarchy(out, config, progress, dry_run=True)
            click.echo(plan_text(planned), err=True)
        build = build_hierarchy(out, config, progress, dry_run=dry_run)
    if as_json:
        _print_json(plan_summary(build) if dry_run else build_summary(build))
    else:
        click.echo(plan_text(build) if dry_run else build_table(build))


def _demo() -> click.Command:
    @click.command()
    @click.option("--out", type=_folder, default=Path("hgld-demo"), show_default=True, help="Folder of the demo.")
    @_json_option
    def demo(out: Path, as_json: bool) -> None:
        """Run the main job on the landmarks that hgld ships: no network, no weights, under a minute."""
        from pipelines.config import BuildConfig, EmbedConfig

        config = BuildConfig("sample", embed=EmbedConfig(encoder="lexical"))
        _run_build(out, config, dry_run=False, as_json=as_json)

    return demo


def _compare() -> click.Command:
    @click.command()
    @click.argument("a", type=_file)
    @click.argument("b", type=_file)
    @_json_option
    def compare(a: Path, b: Path, as_json: bool) -> None:
        """Judge one label file against another, joined on the landmark id.

        Coverage, ARI, NMI and V-measure over landmarks and over distinct names, each group's best match, and the
        agreement on natural or human-made.
        """
        from pipelines.compare import compare as compare_files

        comparison = compare_files(a, b)
        if as_json:
            _print_json(comparison.to_dict())
        else:
            click.echo(comparison.to_markdown())

    return compare


VERBS: dict[str, tuple[Callable[[], click.Command], str]] = {
    "demo": (_demo, "Run the main job on the landmarks that hgld ships."),
    "build-hierarchy": (_build_hierarchy, "Landmark categories in, hierarchical labels out."),
    "compare": (_compare, "Judge one label file against another."),
}

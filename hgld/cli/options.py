"""Options of the command line: their types, and flags made from the configs of the stages."""

import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from hgld.errors import ConfigError, quoted
from hgld.evaluation.metric_kinds import offered_names
from hgld.evaluation.protocol_kinds import protocol_names
from hgld.files import file_lock, lock_of
from hgld.settings import Option, options_of

_Config = typing.TypeVar("_Config")

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for machines.")


class Folder(click.Path):
    """A folder of this machine."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "://" in str(value):
            self.fail(f"{str(value)!r} is an address; expected a folder of this machine.", param, ctx)
        return super().convert(value, param, ctx)


FOLDER = Folder()
EXISTING_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


def reading_options(*, verifies: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options by which files at URLs are read; they hold until it ends.

    Args:
        verifies: it reads images of a dataset, which the index has checksums of.
    """

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        from hgld.data.storage import READING

        if value in (None, ()):
            return
        before = READING.set(replace(READING.get(), **{str(parameter.name): value}))
        context.call_on_close(partial(READING.reset, before))

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        hosts: dict[str, Any] = {"metavar": "HOST", "multiple": True, "expose_value": False, "callback": keep}
        private = "A host with a public name that may have a private address."
        function = click.option("--allow-private", help=private, **hosts)(function)
        other = "A host that an http(s) address may lead to beside its own; several times: several."
        function = click.option("--allow-redirects-to", help=other, **hosts)(function)
        if verifies:
            function = click.option(
                "--verify-reads/--no-verify-reads",
                default=None,
                expose_value=False,
                callback=keep,
                help="Hold every image to the index's SHA-256; default: those at URLs.",
            )(function)
        return function

    return decorate


class NewFile(click.Path):
    """A file to write; a place that cannot be written to is refused before there is a result to lose."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = typing.cast(Path, super().convert(value, param, ctx))
        folder = next(place for place in path.absolute().parents if place.exists())
        try:  # permissions do not tell of disks that are read-only; a stop here leaves what the writer takes up
            with file_lock(lock_of(folder / path.name), keep=False):
                return path
        except OSError as error:
            self.fail(f"'{path}' cannot be written ({error.strerror}). Name another place.", param, ctx)


class Names(click.ParamType):
    """Names separated by commas."""

    name = metavar = "A,B,C"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(part.strip() for part in str(value).split(","))
        if not all(names):
            self.fail(f"{value!r}: expected names separated by commas, without empty ones.", param, ctx)
        return names


class Numbers(click.ParamType):
    """Numbers separated by commas."""

    name = metavar = "X,Y,Z"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r}: expected numbers separated by commas.", param, ctx)


class WholeNumbers(click.ParamType):
    """Whole numbers above 0, ascending, separated by commas."""

    name = metavar = "M,N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            numbers = ()
        if not numbers or numbers[0] < 1 or sorted(set(numbers)) != list(numbers):
            self.fail(f"{value!r}: expected whole numbers above 0, ascending, separated by commas.", param, ctx)
        return numbers


class Expansion(click.ParamType):
    """``ALPHA,K`` of alpha query expansion."""

    name = metavar = "ALPHA,K"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, int]:
        if isinstance(value, tuple):
            return value
        try:
            alpha, k = str(value).split(",")
            return float(alpha), int(k)
        except ValueError:
            self.fail(f"{value!r}: expected two numbers, for instance 2,10.", param, ctx)


class Structure(click.ParamType):
    """``p279=W``: the weight of Wikidata's subclass graph; ``tree=W`` of a given tree is the same."""

    name = metavar = "p279=W"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).removeprefix("p279=").removeprefix("tree=")
        try:
            weight = float(text)
        except ValueError:
            weight = -1.0
        if not 0 <= weight <= 1:
            self.fail(f"{value!r}: expected p279=W with a weight W from 0 (text only) to 1.", param, ctx)
        return weight


class GroupNumbers(click.ParamType):
    """Numbers of groups, one a level above the items."""

    name = metavar = "K[,K2,...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            numbers = (-1,)
        if min(numbers) < 0:
            self.fail(
                f"{value!r}: expected whole numbers from 0 separated by commas, finest first, as in 60,8.", param, ctx
            )
        return numbers


class SplitTable(click.ParamType):
    """``SPLIT=CSV``; the split may be left out where there is one."""

    name = "SPLIT=CSV"

    def __init__(self, default_split: str | None = None) -> None:
        self.default_split = default_split
        if default_split:
            self.name = f"[{default_split}=]CSV"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Path]:
        if isinstance(value, tuple):
            return value
        from hgld.pipelines.hierarchy.config import SPLIT_NAME

        split, separator, path = str(value).partition("=")
        if not separator:
            split, path = self.default_split or "", str(value)
        if not SPLIT_NAME.fullmatch(split):
            self.fail(f"{value!r}: expected {self.name}, for instance train=train_label_to_category.csv.", param, ctx)
        if not Path(path).is_file():
            self.fail(f"{path!r} is not a file.", param, ctx)
        return split, Path(path)


class OnceOption(click.Option):
    """An option that is refused where it is given twice; click takes the last value."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, multiple=True, **kwargs)

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        values = super().process_value(ctx, value)
        if len(values) > 1:
            given = ", ".join(quoted(str(one)) for one in values)
            raise click.BadParameter(f"given {len(values)} times ({given}); expected one.", ctx, self)
        return values[0] if values else None


class SectionedOption(click.Option):
    """An option that stands under a heading of its command's help."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class SectionedCommand(click.Command):
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


class _Value(click.ParamType):
    """Value of a config field, parsed from the same text as in files and sweeps."""

    def __init__(self, option: Option, offered: Iterable[str]) -> None:
        self.option = option
        self.name = option.name
        self.offered = tuple(offered) or option.choices
        names = {int: "INTEGER", float: "FLOAT", str: "TEXT", Path: "PATH"}
        one = f"[{'|'.join(option.choices)}]" if option.choices else names[option.member]
        self.metavar = f"{one},..." if option.several and option.facts["commas"] else one

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.option.parse(str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if self.option.member is Path:
            return [CompletionItem(incomplete, type="file")]
        return complete_choices(self.offered, incomplete)


def flags(
    sections: Mapping[str, type],
    *,
    types: Mapping[str, click.ParamType] | None = None,
    offered: Mapping[str, Iterable[str]] | None = None,
    without: Collection[str] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command a flag for every field of these config dataclasses.

    Options that are not given come as None, or as an empty tuple; :func:`take` makes a config of them.

    Args:
        sections: the dataclasses by the headings of their flags in the help.
        types: types of fields that are written in a way of their own.
        offered: values that the shell completes, of fields that can have others too.
        without: fields that have no flag of their own, because another flag states them.
    """
    types, offered = types or {}, offered or {}

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for section, config in reversed(list(sections.items())):
            for name, option in reversed([one for one in options_of(config).items() if one[0] not in without]):
                flag = name.rstrip("_").replace("_", "-")
                switch = option.member is bool
                kind = None if switch else types.get(name) or _Value(option, offered.get(name, ()))
                function = click.option(
                    f"--{flag}/--no-{flag}" if switch else f"--{flag}",
                    name,
                    cls=SectionedOption,
                    section=section,
                    type=kind,
                    metavar=getattr(kind, "metavar", None),
                    multiple=option.facts["repeated"],
                    default=None,
                    help=option.facts["help"] + _default_text(option),
                )(function)
        return function

    return decorate


def _default_text(option: Option) -> str:
    value, unit = option.default, option.facts["unit"]
    if value in ("", (), None):
        return f"  [{unit}]" if unit else ""
    if isinstance(value, bool):
        value = "on" if value else "off"
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"  [default: {shown} {unit}".rstrip() + "]"


def take(config: type[_Config], given: Mapping[str, Any]) -> _Config:
    """Return a config of the values given to :func:`flags`; the other fields have their defaults."""
    values = {}
    for name, option in options_of(config).items():
        if given[name] in (None, ()):
            continue
        values[name] = sum(given[name], ()) if option.facts["repeated"] else given[name]
    return config(**values)


# -- completion -------------------------------------------------------------------------------------------------------
#
# The shell offers names of datasets, recipes, metrics and levels behind the Tab key.


def complete_datasets(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of the datasets that have a card."""
    from hgld.pipelines.shards.sources import SOURCES, has_card

    return _beginning(filter(has_card, SOURCES), incomplete)


def complete_sources(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of all releases that shards can be made of."""
    from hgld.pipelines.shards.sources import source_names

    return _beginning(source_names(), incomplete)


def complete_recipes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of recipes, with their summaries; files where no name begins like that."""
    from hgld.training.recipes import RECIPES

    found = [CompletionItem(name, help=made.line) for name, made in RECIPES.items() if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def complete_metrics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of metrics, the last of several behind commas."""
    return complete_choices(offered_names(), incomplete)


def complete_protocols(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of protocols."""
    return complete_choices(protocol_names(), incomplete)


def complete_choices(choices: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Complete one of some names, also as the last of several behind commas."""
    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in choices if name.startswith(last)]


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]

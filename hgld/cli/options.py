"""Options of the command line: their types, and flags made from the configs of the stages."""

import dataclasses
import tempfile
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal

import click
from click.shell_completion import CompletionItem

_Config = typing.TypeVar("_Config")

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for machines.")
FOLDER = click.Path(path_type=Path, file_okay=False)
EXISTING_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


class NewFile(click.Path):
    """A file to write; a place that nothing can be written to is refused before there is a result to lose."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = typing.cast(Path, super().convert(value, param, ctx))
        try:
            folder = next(place for place in path.absolute().parents if place.exists())
            with tempfile.TemporaryFile(dir=folder):  # permissions do not tell of disks that are read-only
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


_SPECIAL_TYPES: dict[str, click.ParamType] = {"structure": Structure()}


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


def config_options(sections: dict[str, type]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
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
                    cls=SectionedOption,
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


def take(config: type[_Config], given: dict[str, Any]) -> _Config:
    names = [field.name for field in dataclasses.fields(typing.cast(Any, config))]
    return config(**{name: given[name] for name in names})


# What the shell offers behind a Tab: names of datasets, recipes, metrics and levels of options' values.

METRICS = (  # spelled here because hgld.metrics imports torch; with the numbers that are common for k and g
    *("AP", "mAP@R", "R@1", "R@10", "R@100", "TR@10", "P@10", "mAP@100"),
    *("H-AP", "H-R@1", "H-R@10", "H-P@10", "NDCG", "NDCG@10", "ASI", "wAP", "AP#1", "AP#2"),
)


def complete_datasets(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the datasets that have a card."""
    from hgld.pipelines.shards.sources import OWN_DATA, SOURCES

    return _beginning((name for name in SOURCES if name not in OWN_DATA), incomplete)


def complete_sources(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of all that can be made shards of."""
    from hgld.pipelines.shards.sources import SOURCES

    return _beginning(SOURCES, incomplete)


def complete_recipes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of recipes with what they are; files where none begins like that."""
    from hgld.training.recipes import RECIPES

    found = [CompletionItem(name, help=made.line) for name, made in RECIPES.items() if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def complete_metrics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of metrics, the last of several behind commas."""
    return complete_choices(METRICS, incomplete)


def complete_choices(choices: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Those of some names with which what is typed goes on, also as the last of several behind commas."""
    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in choices if name.startswith(last)]


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]

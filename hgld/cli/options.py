"""Subcommands made from functions: the dataclasses of a function's parameters define flags, help, types and checks."""

import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from hgld.cli.output import echo
from hgld.errors import ConfigError
from hgld.files import file_lock, lock_of
from hgld.settings import Option, bound_problems, options_of, setting

_MOST_WIDE = 60  # maximum number of characters of the choices that the help shows after a flag
_MOST_LINES = 50  # maximum number of lines of --help; a longer help shows only the common options
SHOWS_ALL = "hgld.shows_all"


# -- options that several subcommands share ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """Options for the hosts that a subcommand may connect to."""

    allow_redirects_to: tuple[str, ...] = setting(
        (), "Additional host to which an http(s) URL may redirect.", metavar="HOST", repeated=True, commas=False
    )
    allow_private: tuple[str, ...] = setting(
        (), "Host whose public name may resolve to a private IP address.", metavar="HOST", repeated=True, commas=False
    )


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(HostOptions):
    """Options for reading datasets."""

    verify_reads: bool | None = setting(
        None, "Compare the SHA-256 of every image with the index.  [default: only for datasets at URLs]"
    )
    cache: Path | None = setting(
        None,
        "Folder on a local disk that keeps images from URLs for later epochs and commands.",
        metavar="DIR",
        path="folder",
    )
    cache_size: float = setting(100.0, "Maximum size of --cache; a full cache keeps its images.", unit="GB", above=0)


@contextmanager
def _reads_by(options: HostOptions) -> Iterator[None]:
    """Apply the options whenever files at URLs are read."""
    from hgld.data.storage import READING

    before = READING.set(replace(READING.get(), **vars(options)))
    try:
        yield
    finally:
        READING.reset(before)


# -- types of values --------------------------------------------------------------------------------------------------


class _Folder(click.Path):
    """Parameter type of click for a folder on this machine."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "://" in str(value):
            self.fail(f"{str(value)!r} is a URL; expected a folder on this machine.", param, ctx)
        return super().convert(value, param, ctx)


class _NewFile(click.Path):
    """Parameter type for a file to write; if the path is not writable, the command fails before any work."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = typing.cast(Path, super().convert(value, param, ctx))
        folder = next(place for place in path.absolute().parents if place.exists())
        try:  # only a write shows whether the disk is read-only; permissions do not
            with file_lock(lock_of(folder / path.name), keep=False):
                return path
        except OSError as error:
            self.fail(f"'{path}' cannot be written ({error.strerror}). Choose another path.", param, ctx)


_PATHS: Mapping[str, click.Path] = {
    "": click.Path(path_type=Path),
    "file": click.Path(path_type=Path, dir_okay=False, exists=True),
    "existing": click.Path(path_type=Path, exists=True),
    "folder": _Folder(path_type=Path, file_okay=False),
    "new": _NewFile(path_type=Path, dir_okay=False),
}


class _Value(click.ParamType):
    """Parameter type for a config field, parsed like the values in config files and sweeps."""

    def __init__(self, option: Option) -> None:
        self.option, self.name = option, option.name
        names = {int: "INTEGER", float: "FLOAT", str: "TEXT", Path: "PATH"}
        one = f"[{'|'.join(filter(None, option.choices))}]" if option.choices else names.get(option.member, "TEXT")
        several = option.several and option.facts["commas"] and not option.facts["repeated"]
        one = one if len(one) <= _MOST_WIDE else "NAME"
        self.metavar = option.facts["metavar"] or (f"{one},..." if several else one)
        is_path = option.member is Path and option.facts["parse"] is None
        self.path = _PATHS[option.facts["path"]] if is_path else None

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if self.path is not None:
            path = self.path.convert(value, param, ctx)
            return (path,) if self.option.several else path
        try:
            return self.option.parse(str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if self.path is not None:
            return self.path.shell_complete(ctx, param, incomplete)
        before, comma, last = incomplete.rpartition(",")
        offered = (self.option.facts["offered"] or (lambda: self.option.choices))()
        return [CompletionItem(f"{before}{comma}{name}") for name in offered if name.startswith(last)]


# -- subcommands ------------------------------------------------------------------------------------------------------


class _Flag(click.Option):
    """An option in a section of its command's help."""

    def __init__(self, *args: Any, section: str, common: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section, self.common = section, common


class _Argument(click.Argument):
    """A positional argument with a description in the help."""

    section, common = "Arguments", True

    # click calls this argument ``help``
    def __init__(self, *args: Any, help: str, **kwargs: Any) -> None:  # noqa: A002
        super().__init__(*args, **kwargs)
        self.help = help

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        return self.make_metavar(ctx), self.help or ""


class Verb(click.Command):
    """A subcommand whose help lists options per section; a long help lists only the common options.

    Attributes:
        configs: dataclasses that define the flags.
    """

    configs: tuple[type, ...] = ()

    def get_help(self, ctx: click.Context) -> str:
        ctx.meta[SHOWS_ALL] = True
        whole = super().get_help(ctx)
        if len(whole.splitlines()) <= _MOST_LINES:
            return whole
        ctx.meta[SHOWS_ALL] = False
        return super().get_help(ctx)

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write nothing: :meth:`format_options` describes arguments, because old releases of click do not."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        left_out = 0
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is None:
                continue
            section = getattr(option, "section", "Output")
            if ctx.meta.get(SHOWS_ALL, True):
                sections.setdefault(section, []).append(record)
            elif getattr(option, "common", True):
                own = section in ("Arguments", "Options", "Output")
                sections.setdefault(section if own else "Common options of other sections", []).append(record)
            else:
                left_out += 1
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
        if left_out:
            formatter.write(f"\n--help-all lists {left_out} more options.\n")


def help_all_option() -> click.Option:
    """Return the option that prints the complete help of a command."""

    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta[SHOWS_ALL] = True
            echo(click.Command.get_help(ctx.command, ctx))
            ctx.exit()

    told = "Show the complete help and exit."
    return click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=show, help=told)


def debug_option() -> click.Option:
    """Return the option ``--debug``, which :func:`hgld.cli.main` evaluates."""
    told = "Show the traceback of an error."
    return _Flag(["--debug"], is_flag=True, expose_value=False, help=told, section="Output", common=False)


def verb(
    *more: type, overrides: bool = False, sections: Mapping[type, str] | None = None, without: Collection[str] = ()
) -> Callable[[Callable[..., Any]], Verb]:
    """Turn a function into a subcommand.

    A parameter that is annotated with a dataclass gets an instance whose fields are the values of flags.
    ``as_json`` is True with ``--json``. If two dataclasses have the same flag, it sets the fields of both.

    Args:
        more: further dataclasses with flags. The function gets their instances as the mapping ``configs``, whose keys
            are the dataclasses.
        overrides: whether the function gets only the fields of ``more`` that the user set, as a mapping ``given``, in
            place of ``configs``; switches then also have a form that turns them off.
        sections: headings of the dataclasses in the help; default: the name of the dataclass, or Options.
        without: fields of ``more`` without a flag, because another flag sets them.
    """
    titles = sections or {}

    def decorate(function: Callable[..., Any]) -> Verb:
        taken: dict[str, type] = {
            name: parameter.annotation
            for name, parameter in inspect.signature(function).parameters.items()
            if isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation)
        }
        params: dict[str, click.Parameter] = {}
        for config in (*taken.values(), *more):
            own = config.__module__ == function.__module__
            words = re.findall("[A-Z][a-z]+", config.__name__)[:-1]
            title = titles.get(config, "Options" if own else " ".join(words).capitalize())
            for option in options_of(config).values():
                if config in more and option.name in without:
                    continue
                negates = overrides and config in more
                params.setdefault(_name(option), _parameter(option, title, negates=negates, common=own))

        def run(as_json: bool, **values: Any) -> Any:
            arguments = {name: _instance(config, values) for name, config in taken.items()}
            if overrides:
                arguments["given"] = {name: value for config in more for name, value in _given(config, values).items()}
            elif more:
                stated = {name: value for name, value in values.items() if name not in without}
                arguments["configs"] = {config: _instance(config, stated) for config in more}
            hosts = [value for value in arguments.values() if isinstance(value, HostOptions)]
            with _reads_by(hosts[0]) if hosts else nullcontext():
                return function(**arguments, as_json=as_json)

        json_option = _Flag(["--json", "as_json"], is_flag=True, help="Print one JSON object.", section="Output")
        ordered = sorted(params.values(), key=lambda one: not isinstance(one, _Argument))
        shared = [json_option, help_all_option(), debug_option()]
        # click caches the help option of the first context, so each subcommand gets these names explicitly
        names = {"help_option_names": ["-h", "--help"]}
        made = Verb(None, names, callback=run, params=[*ordered, *shared], help=function.__doc__)
        made.configs = (*taken.values(), *more)
        return made

    return decorate


def _name(option: Option) -> str:
    """Return the name of an option among the parameters of its command."""
    return option.flag.replace("-", "_")


def _parameter(option: Option, section: str, *, negates: bool, common: bool) -> click.Parameter:
    facts, required = option.facts, option.default is MISSING
    if facts["argument"]:
        many = -1 if option.several else 1
        metavar = facts["metavar"] or option.name.upper() + ("..." if option.several else "")
        kind = _Value(option)
        return _Argument([_name(option)], nargs=many, required=required, type=kind, metavar=metavar, help=facts["help"])
    switch = option.member is bool
    off = switch and (negates or option.default is not False)
    kind = None if switch else _Value(option)
    fallback = {} if required else {"default": None}  # click 8.3 takes a default of None for a given value
    return _Flag(
        [f"--{option.flag}/--no-{option.flag}" if off else f"--{option.flag}", _name(option)],
        section=section,
        common=common if facts["common"] is None else facts["common"],
        is_flag=switch,
        type=kind,
        metavar=None if kind is None else kind.metavar,
        multiple=facts["repeated"],
        required=required,
        **fallback,
        help=facts["help"] + _default_text(option, is_fixed=not negates),
    )


def _default_text(option: Option, *, is_fixed: bool) -> str:
    """Return the help text for choices, default and unit of an option; omit the default if ``is_fixed`` is False."""
    value, unit = option.default if is_fixed else None, option.facts["unit"]
    named = " " + ", ".join(option.choices) + "." if len("|".join(option.choices)) > _MOST_WIDE - 2 else ""
    if value in (MISSING, "", (), None) or (value is False and not unit):
        return f"{named}  [{unit}]" if unit else named
    if isinstance(value, bool):
        value = "on" if value else "off"
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"{named}  [default: {shown} {unit}".rstrip() + "]"


def _given(config: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config that the command line sets; join the values of a repeated flag."""
    given = {}
    for name, option in options_of(config).items():
        value = values.get(_name(option))
        is_repeated = option.facts["repeated"] or (option.facts["argument"] and option.several)
        if value is None or (is_repeated and not value):
            continue
        given[name] = sum(value, ()) if is_repeated and option.facts["parse"] is None else value
    return given


def _instance(config: type, values: Mapping[str, Any]) -> Any:
    """Return a config with the values of its flags, and defaults for all other fields."""
    made = config(**_given(config, values))
    for name, problem in bound_problems(made):
        raise click.UsageError(f"--{options_of(config)[name].flag} {problem}", click.get_current_context())
    return made

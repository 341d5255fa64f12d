"""The ``hgld`` command; each subcommand imports its modules only when it runs.

Exit codes:

- 0: done
- 1: a check failed
- 2: bad input
- 70: an internal error of hgld
- 129: stopped by SIGHUP
- 130: stopped by the user
- 141: the reader of the output stopped (broken pipe)
- 143: stopped by SIGTERM
"""

import io
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from importlib import import_module
from types import FrameType
from typing import Any, TextIO

import click

from hgld.cli.options import SHOWS_ALL, debug_option, help_all_option
from hgld.cli.output import echo
from hgld.errors import ConfigError, HgldError, StorageError
from hgld.files import NoLockWarning
from hgld.version import __version__

EXIT_CHECK_FAILED, EXIT_BAD_INPUT, EXIT_FAULT, EXIT_STOPPED, EXIT_NO_READER = 1, 2, 70, 130, 141
ISSUES = "https://github.com/hgld/hgld/issues"
COMPLETE_VARIABLE = "_HGLD_COMPLETE"  # a shell sets this variable to request completions

VERBS = {  # subcommand: (module, one-line help)
    "demo": ("demo", "Run everything on landmarks that hgld ships, offline."),
    "build-hierarchy": ("hierarchy", "Group names, and build the levels above the groups."),
    "review": ("hierarchy", "Finish the hierarchy on a local web page."),
    "compare": ("hierarchy", "Compare a hierarchy with a reference."),
    "show": ("hierarchy", "Draw a hierarchy or taxonomy as a tree in the terminal."),
    "build-shards": ("dataset", "Convert a dataset's release into WebDataset shards."),
    "index": ("dataset", "Rebuild a dataset's index from only its tars."),
    "verify": ("dataset", "Check the files of a dataset and list all errors."),
    "card": ("dataset", "Rewrite the data card of a dataset directory."),
    "datasets": ("dataset", "List the datasets that hgld can shard, and how to obtain them."),
    "download": ("dataset", "Fetch a release whose owners allow direct download."),
    "train": ("train", "Train a model by a recipe, on one process or many."),
    "embed": ("embed", "Embed the images of a dataset with a model."),
    "evaluate": ("evaluate", "Measure models or embeddings at every level."),
    "reproduce": ("reproduce", "Print or run the commands behind a table of a paper."),
    "published": ("report", "Search published results by dataset, method or table."),
    "report": ("report", "Show results of runs as one page: tables, curves, galleries."),
    "audit": ("search", "Find wrong labels, duplicate or misplaced classes, and copies."),
    "calibrate": ("search", "Calibrate a model's confidence, so that search can predict."),
    "search": ("search", "Find the images of a dataset that are nearest to yours."),
    "serve": ("search", "Search a dataset with photos, on a local web page."),
    "export": ("embed", "Write a trained model as one file that runs without hgld."),
    "push": ("dataset", "Push a dataset or a run to the Hugging Face Hub."),
    "doctor": ("demo", "Show versions, extras and GPUs of this installation."),
}
_RARE = {"card", "doctor", "index", "published"}  # subcommands that only --help-all lists
_RESUMABLE = {"demo", "build-hierarchy", "review", "build-shards", "download", "train", "push"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may contain bytes that stdout cannot encode
    if COMPLETE_VARIABLE in os.environ:
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(cli, {}, "hgld", COMPLETE_VARIABLE, os.environ[COMPLETE_VARIABLE]))
    try:
        _refuse_bytes(given)
        with _stops_by_signals(), _plain_warnings():
            code = _run(given)
    except (KeyboardInterrupt, click.Abort) as stop:
        verb = next((word for word in given if not word.startswith("-")), "")
        by = f" by {signal.Signals(stop.number).name}" if isinstance(stop, _SignalStop) else ""
        hint = "; the same command resumes" if verb in _RESUMABLE else ""
        _say(f"hgld: stopped{by}{hint}.")
        code = 128 + stop.number if isinstance(stop, _SignalStop) else EXIT_STOPPED
    except (click.ClickException, HgldError, OSError) as error:
        code = _refusal(error, debug="--debug" in given)
    # without this, Python would exit with 1, which hgld reserves for failed checks
    except Exception as error:  # noqa: BLE001
        if _lacks_memory(error):
            code = _refusal(error, debug="--debug" in given)
        else:
            _say("".join(traceback.format_exception(error)))
            _say(f"hgld: this is a bug in hgld. Please report it, with the lines above: {ISSUES}")
            code = EXIT_FAULT
    sys.exit(code)


class _SignalStop(KeyboardInterrupt):
    """A signal that stops a command as Ctrl-C does, so that the command removes its temporary files."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def _stops_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP stop a command as Ctrl-C does; a second signal ends the process at once.

    A handler that is already set is kept: ``nohup`` ignores SIGHUP, and a program that calls :func:`main` may set its
    own handler.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        default()
        raise _SignalStop(number)

    def default() -> None:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)

    is_main = threading.current_thread() is threading.main_thread()
    asked = (signal.SIGTERM, signal.SIGHUP) if is_main else ()
    caught = [number for number in asked if signal.getsignal(number) is signal.SIG_DFL]
    for number in caught:
        signal.signal(number, stop)
    try:
        yield
    finally:
        default()


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print each of hgld's warnings as one line, without the file and line of code that Python adds."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, NoLockWarning):
                _say(f"hgld: {message}")
            else:
                usual(message, category, *place, **more)

        warnings.showwarning = show
        yield


def _refuse_bytes(arguments: list[str]) -> None:
    """Raise an error if an argument is not UTF-8, because neither tables nor JSON can contain it."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            shown = os.fsencode(argument).decode(errors="backslashreplace")
            raise ConfigError(
                f"'{shown}' on the command line is not UTF-8. Rename the file, or pass a link to it."
            ) from error


def _run(arguments: list[str]) -> int:
    try:
        with cli.make_context("hgld", [*arguments]) as context:  # pass a copy, because click empties its list
            code = cli.invoke(context)
    except click.exceptions.Exit as leaving:  # --help, --version, a failed check
        code = leaving.exit_code
    return code if isinstance(code, int) else 0


def _refusal(error: Exception, *, debug: bool) -> int:
    """Print an error as one line on stderr and return the exit code."""
    if isinstance(error, OSError) and _was_printing(error):
        _silence(sys.stdout)
        if isinstance(error, BrokenPipeError):
            return EXIT_NO_READER
        error = StorageError(f"the output cannot be written ({error.strerror}).")
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        _say(error.format_message())
        return EXIT_BAD_INPUT
    if debug:
        _say("".join(traceback.format_exception(error)))
    _say(" ".join(_error_text(error).split()))
    return EXIT_BAD_INPUT


def _lacks_memory(error: Exception) -> bool:
    """Tell whether numpy, torch on a GPU, or torch on the CPU ran out of memory."""
    named = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)
    return isinstance(error, MemoryError) or named


def _error_text(error: Exception) -> str:
    """Return the message for the user, with the command in which the error occurred."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        path = error.ctx.command_path
        return f"{path}: {error.format_message()} See {path} --help."
    if isinstance(error, click.ClickException):
        return f"hgld: {error.format_message()}"
    if isinstance(error, OSError) and not isinstance(error, HgldError):
        place = f"{error.filename}: " if error.filename else ""
        return f"hgld: {place}{error.strerror or error}. Run it with --debug for the traceback."
    if _lacks_memory(error):
        return f"hgld: there is not enough memory ({error}). Use smaller batches, micro-batches or images."
    return f"hgld: {error}"


def _was_printing(error: OSError) -> bool:
    """Tell whether an error comes from printing, not from a file or a connection."""
    return any(frame.f_code is click.echo.__code__ for frame, _ in traceback.walk_tb(error.__traceback__))


def _say(text: str) -> None:
    """Print to stderr; if that is closed, only the exit code reports the error."""
    try:
        echo(text, err=True)
    except OSError:
        _silence(sys.stderr)


def _silence(stream: TextIO) -> None:
    """Discard a stream's unwritten text; otherwise Python writes it again at exit and changes the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _Verbs(click.Group):
    """Command group that lists its subcommands with their one-line help texts, without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            if cmd_name.startswith("-") or ctx.resilient_parsing:
                return None
            from difflib import get_close_matches

            near = get_close_matches(cmd_name, VERBS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"The subcommands are: {', '.join(VERBS)}."
            raise click.UsageError(f"there is no subcommand {cmd_name!r}. {hint}", ctx)
        module, summary = VERBS[cmd_name]
        command = copy(getattr(import_module(f"hgld.cli.{module}_commands"), cmd_name.replace("-", "_")))
        command.name, command.short_help = cmd_name, summary
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        hidden = set() if ctx.meta.get(SHOWS_ALL) else _RARE
        with formatter.section("Subcommands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in VERBS.items() if name not in hidden])


@click.group(
    cls=_Verbs,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="hgld")
def cli() -> None:
    """Build, measure and train on hierarchically labelled image datasets."""


cli.params += [help_all_option(), debug_option()]

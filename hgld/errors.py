"""Error classes of hgld.

::

    HgldError                  base class; the command line prints the message and exits with 2
    ├── InputError             a file or value of the user is invalid
    │   ├── TableError         a CSV or parquet table: columns, rows, encodings
    │   ├── ImageError         an image that cannot be used, with a category for counts
    │   ├── HierarchyError     labels that do not form a tree
    │   └── SchemaError        a file with a schema version that this hgld does not read
    ├── ConfigError            options that contradict each other or cannot be satisfied
    ├── MissingResourceError   model weights or another resource that is not available here
    │   └── MissingExtraError  an optional package is not installed; the message names the extra to install
    ├── ServiceError           a remote service that kept failing or sent an invalid response
    ├── DivergenceError        a training loss that is not finite
    └── StorageError           the disk: full, read-only, or changed while hgld was writing

Every message names the file and the row or member, what was found, what was expected and the fix.
"""

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from hgld.terminal import printable

_MOST_FOREIGN = 200  # maximum number of characters of a foreign value in a message
# an object's text has its memory address, which differs in every run
_OBJECT = re.compile(r"<([\w.]+)[^<>]* at 0x[0-9a-fA-F]+>")


def excerpt(foreign: object) -> str:
    """Return the text of a foreign value for a message: one line, at most 200 characters, safe for a terminal.

    >>> excerpt("a\\n b\\x1b[1m " + "9" * 10_000)[:12], len(excerpt("9" * 10_000))
    ('a b [1m 9999', 200)
    >>> excerpt("cannot read <_io.BytesIO object at 0x7f00aa00>"), excerpt(" ")
    ('cannot read BytesIO', '(nothing)')
    """
    first = 10 * _MOST_FOREIGN
    text = foreign[:first].decode("utf-8", errors="replace") if isinstance(foreign, bytes) else str(foreign)[:first]
    text = _OBJECT.sub(lambda match: match[1].rpartition(".")[2], text)
    shown = " ".join("".join(c if c.isprintable() else " " for c in text).split()) or "(nothing)"
    return shown if len(shown) <= _MOST_FOREIGN else shown[: _MOST_FOREIGN - 3] + "..."


def quoted(foreign: object) -> str:
    """Return Python's repr of a foreign value for a message, shortened like :func:`excerpt`.

    >>> quoted("a\\nb"), quoted(None), len(quoted("9" * 10_000)), len(quoted(["x"] * 10_000))
    ("'a\\\\nb'", 'None', 202, 200)
    """
    if isinstance(foreign, str):
        return repr(foreign if len(foreign) <= _MOST_FOREIGN else foreign[: _MOST_FOREIGN - 3] + "...")
    return excerpt(repr(foreign))


class HgldError(Exception):
    """Base class of all errors that hgld raises deliberately.

    The message escapes characters that could control a terminal, because foreign names may contain them.

    >>> str(InputError("no file a\\x1b[2J"))
    'no file a\\\\x1b[2J'
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(one) if isinstance(one, str) else one for one in args))


class InputError(HgldError, ValueError):
    """A file or value of the user is not as expected."""


class TableError(InputError):
    """A table that lacks a column, or has a row that cannot be used."""


class ImageError(InputError):
    """An image that cannot be used.

    Attributes:
        reason: short, stable category for counts: ``truncated``, ``too-many-pixels``, ...
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason

    def __reduce__(self) -> tuple[type["ImageError"], tuple[str, str]]:
        return type(self), (self.reason, str(self))


class HierarchyError(InputError):
    """Labels that do not form a tree."""


class SchemaError(InputError):
    """A file written under a schema version that this hgld does not read."""


class ConfigError(HgldError, ValueError):
    """Options that contradict each other or cannot be satisfied."""


class MissingResourceError(HgldError):
    """Model weights or another resource that is not available on this machine."""


class MissingExtraError(MissingResourceError):
    """An optional package that is not installed."""


class ServiceError(HgldError):
    """A remote service that kept failing, or sent invalid responses."""


class DivergenceError(HgldError, ArithmeticError):
    """A training loss that is not a finite number."""


class StorageError(HgldError, OSError):
    """A disk that is full, read-only, or changed while hgld was writing."""


def some(items: Iterable[str], most: int = 5, separator: str = ", ") -> str:
    """List the first items for a message, and the number of further items.

    If an item contains the separator, semicolons separate the items.
    """
    listed = list(items)
    separator = "; " if any(separator in item for item in listed[:most]) else separator
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return separator.join(listed[:most]) + more


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint, after a space, with the known name nearest to a misspelt name; empty if no name is near.

    >>> did_you_mean("trian", ["test", "train"])
    " Did you mean 'train'?"
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f" Did you mean {quoted(near[0])}?" if near else ""


@contextmanager
def optional_dependency(extra: str, purpose: str, hint: str = "") -> Iterator[None]:
    """Turn a failed import of an optional package into an error that names the extra to install.

    Args:
        extra: extra of hgld, as in ``pip install 'hgld[extra]'``.
        purpose: feature that needs the package; the message begins with it.
        hint: alternative to the package; the message ends with it.

    Raises:
        MissingExtraError: a package that the ``with`` block imports is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not extra or package in ("", "hgld"):
            raise
        message = f"{purpose} needs the package {package}, which is not installed: pip install 'hgld[{extra}]'."
        raise MissingExtraError(f"{message} {hint}".rstrip()) from error


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise ConfigError unless the value of an option is one of its choices."""
    if value not in choices:
        raise ConfigError(f"{name} {value!r} is unknown; expected one of {', '.join(choices)}.")


def at_least(least: int, **numbers: int) -> None:
    """Raise ConfigError if a number is below ``least``; the message states the first such number."""
    for name, number in numbers.items():
        if number < least:
            raise ConfigError(f"{name} is {number}; expected at least {least}.")


def check_positive(**numbers: float) -> None:
    """Raise ConfigError unless all numbers are finite and above 0."""
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} is {value}; expected a finite number > 0.")


@contextmanager
def storage_errors(what: str, hint: str, *also: type[Exception]) -> Iterator[None]:
    """Turn a failed write in the ``with`` block into an error that states the action and the fix.

    Args:
        what: action of the block, for instance ``write FILE``.
        hint: the fix.
        also: further error types of a failed write, besides OSError.

    Raises:
        StorageError: the block raised OSError or one of ``also``.
    """
    try:
        yield
    except HgldError:
        raise
    except (OSError, *also) as error:
        raise StorageError(f"cannot {what} ({getattr(error, 'strerror', None) or error}). {hint}") from error

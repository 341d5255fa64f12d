"""Output of a subcommand: text and progress bars for people, JSON for machines."""

import io
import json
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hgld.settings import setting
from hgld.terminal import is_terminal, printable, printable_json
from hgld.terminal import progress_bars as progress_bars


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text to stdout or stderr with its control characters escaped, so that data cannot control the terminal."""
    click.echo(printable(text), err=err, nl=nl)


def say_next(*words: object, err: bool = False) -> None:
    """Print the next command without passwords. The user must replace the words in capitals."""
    from hgld.addresses import without_secrets  # imported here, because most subcommands do not need it

    echo(f"next: hgld {shlex.join(without_secrets(str(word)) for word in words)}", err=err)


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """Options of subcommands that serve a local page."""

    port: int = setting(0, "Port of the page; 0: any free one.", least=0, most=65535)
    browser: bool = setting(True, "Open the page in a browser, if the output is a terminal.")


def announce_page(
    address: str, lines: Sequence[str], facts: dict[str, Any], page: PageOptions, *, as_json: bool
) -> None:
    """Print the address of a local page, and open the page if the output is a terminal.

    Args:
        address: the address, which includes the token.
        lines: lines to print below the address.
        facts: further facts for JSON.
        page: the options of the page.
        as_json: whether to print only JSON.
    """
    if as_json:
        echo(json.dumps({"address": address, **facts}))
    else:
        echo("\n".join([f"page       {address}", *lines]))
    sys.stdout.flush()
    if page.browser and not as_json and sys.stdout.isatty():
        from hgld.local_server import show_page

        show_page(address)


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a terminal: columns aligned left, two spaces apart."""
    lines = [[" ".join(printable(cell).split()) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )


def write_result(path: Path, text: str, flag: str) -> None:
    """Write a text file to the path of a flag; create its folder if needed.

    Raises:
        StorageError: the file cannot be written; the message states the flag.
    """
    from hgld.errors import storage_errors
    from hgld.files import write_atomic

    with storage_errors(f"write {path}", f"Choose another {flag}."):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)


def print_json(data: Any) -> None:
    """Print one JSON value in any encoding of stdout; NaN and infinity become null."""
    ascii_only = (sys.stdout.encoding or "ascii").lower().replace("-", "") != "utf8"
    text = json.dumps(_without_nan(data), indent=2, ensure_ascii=ascii_only, allow_nan=False)
    click.echo(printable_json(text))


def _without_nan(data: Any) -> Any:
    """Replace NaN and infinity by None, because JSON does not have them."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _without_nan(value) for key, value in data.items()}
    return [_without_nan(value) for value in data] if isinstance(data, list | tuple) else data


def print_rich(*parts: Any, width: int | None = None) -> None:
    """Print texts and rich's tables, ``width`` columns wide (None: as wide as the terminal).

    Control characters in texts are escaped. The caller must escape control characters in table cells. The output goes
    through :func:`click.echo`, because rich exits with 1 (a failed check) if the reader of the output stops.
    """
    from rich.console import Console
    from rich.text import Text

    page = io.StringIO()
    console = Console(file=page, force_terminal=is_terminal(sys.stdout), width=width, highlight=False)
    for part in parts:
        console.print(Text(printable(part)) if isinstance(part, str) else part)
    click.echo(page.getvalue(), nl=False)

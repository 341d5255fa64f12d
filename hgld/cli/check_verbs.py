"""The verbs that read a dataset directory back: index, verify."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hgld.cli.options import FOLDER, Names, json_option
from hgld.cli.shown import echo, print_json, print_rich, progress_bars
from hgld.terminal import is_terminal, printable

if TYPE_CHECKING:
    from pipelines.reindex import Rebuilt
    from pipelines.verify import Verification

_MOST_SHOWN = 50
_WIDTH_OF_FILES = 200  # where no terminal says how wide it is

_workers_option = click.option(
    "--workers", type=click.IntRange(min=0), default=1, show_default=True, help="Shards read at a time; 0: one a core."
)


def index_command() -> click.Command:
    @click.command()
    @click.argument("root", type=FOLDER)
    @click.option("--levels", type=Names(), help="Names of the levels, finest first, where the tars do not state them.")
    @click.option("--force", is_flag=True, help="Replace an index that is there and can be read.")
    @_workers_option
    @json_option
    def index(root: Path, levels: tuple[str, ...] | None, force: bool, workers: int, as_json: bool) -> None:
        """Rebuild index.parquet, hierarchy.parquet and dataset.json from the tars in ROOT alone.

        Tars of others work as well, if each KEY.jpg (or .png, .webp, ...) has a KEY.json with labels, names and split.
        Members and items that cannot be used are kept aside: rejected.parquet names them with the reason.
        """
        from pipelines.reindex import rebuild_index

        with progress_bars() as progress:
            rebuilt = rebuild_index(root, levels=levels, force=force, workers=workers, progress=progress)
        if as_json:
            print_json(_rebuilt_json(rebuilt))
        else:
            echo(_rebuilt_text(root, rebuilt))

    return index


def _rebuilt_json(rebuilt: "Rebuilt") -> dict[str, object]:
    manifest = rebuilt.manifest
    return {
        "name": manifest.name,
        "levels": list(manifest.levels),
        "group_size": manifest.group_size,
        "splits": dict(manifest.splits),
        "shards": len(manifest.shards),
        "rejected": rebuilt.rejected.to_dicts(),
        "notes": list(rebuilt.notes),
    }


def _rebuilt_text(root: Path, rebuilt: "Rebuilt") -> str:
    lines = [f"{root}: {len(rebuilt.manifest.shards)} shards, levels {', '.join(rebuilt.manifest.levels)}"]
    for split, facts in rebuilt.manifest.splits.items():
        classes = ", ".join(f"{count:,} {level}" for level, count in facts["classes"].items())
        lines.append(f"  {split}: {facts['items']:,} items; classes: {classes}")
    counts = rebuilt.rejected["reason"].value_counts().sort("reason")
    lines += [f"  kept aside, {reason}: {count:,}" for reason, count in counts.iter_rows()]
    return "\n".join([*lines, *rebuilt.notes, f"Next: hgld verify {root}"])


def verify_command() -> click.Command:
    @click.command()
    @click.argument("root", type=FOLDER)
    @click.option("--decode", is_flag=True, help="Decode every image.")
    @click.option("--near", is_flag=True, help="Look for images of other splits that look like training images.")
    @_workers_option
    @json_option
    @click.pass_context
    def verify(ctx: click.Context, root: Path, decode: bool, near: bool, workers: int, as_json: bool) -> None:
        """Read the dataset in ROOT back and list whatever is off.

        Sizes and checksums, the index against the tars, labels against the hierarchy, counts, classes and images that
        training shares with other splits, stray files. Nothing is changed, no link is followed.

        Exit code: 0 nothing is off, 1 something is, 2 ROOT is no dataset.
        """
        from hgld.cli import EXIT_CHECK_FAILED
        from pipelines.verify import verify as verify_dataset

        with progress_bars() as progress:
            found = verify_dataset(root, decode=decode, near=near, workers=workers, progress=progress)
        if as_json:
            print_json(_verification_json(found))
        else:
            _show(root, found)
        if len(found.findings):
            ctx.exit(EXIT_CHECK_FAILED)

    return verify


def _verification_json(found: "Verification") -> dict[str, object]:
    return {
        "name": found.name,
        "items": found.items,
        "shards": found.shards,
        "bytes": found.bytes,
        "findings": found.findings.to_dicts(),
        "notes": list(found.notes),
    }


def _show(root: Path, found: "Verification") -> None:
    from rich.table import Table
    from rich.text import Text

    parts = [f"{root}: {found.items:,} items in {found.shards:,} shards, {found.bytes / 1e9:,.2f} GB read"]
    parts += [f"Note: {note}" for note in found.notes]
    width = None if is_terminal(sys.stdout) else _WIDTH_OF_FILES
    if not len(found.findings):
        print_rich(*parts, "Nothing is off.", width=width)
        return
    table = Table()
    for name in ("kind", "split", "file", "member", "found", "expected"):
        table.add_column(name, overflow="fold")  # names whole, on several lines if need be
    for row in found.findings.head(_MOST_SHOWN).iter_rows():
        table.add_row(*(Text(_cell(cell)) for cell in row))  # Text: what comes from a tar is no markup
    counts = found.findings["kind"].value_counts().sort("kind")
    kinds = "; ".join(f"{kind}: {count:,}" for kind, count in counts.iter_rows())
    rest = len(found.findings) - _MOST_SHOWN
    shown = f", the first {_MOST_SHOWN} shown; --json lists all" if rest > 0 else ""
    end = f"{len(found.findings):,} finding{'s' * (len(found.findings) != 1)}{shown}"
    print_rich(*parts, table, kinds, end, width=width)


def _cell(text: str | None) -> str:
    """Text of a finding, its checksums cut short."""
    return printable(re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1...", text or ""))

"""The verbs that make a dataset directory and read it back: build-shards, index, verify."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hgld.cli.options import EXISTING_FILE, FOLDER, Names, SectionedCommand, complete_sources, flags, json_option, take
from hgld.cli.output import echo, print_json, print_rich, progress_bars, say_next
from hgld.terminal import is_terminal, printable

if TYPE_CHECKING:
    from hgld.pipelines.check.index import RebuildResult
    from hgld.pipelines.check.verify import Verification


def build_shards_command() -> click.Command:
    from hgld.pipelines.shards.config import ShardConfig, SourceConfig

    @click.command(cls=SectionedCommand)
    @click.argument("release", metavar="NAME", shell_complete=complete_sources)
    @click.option(
        "--source",
        type=click.Path(path_type=Path, exists=True),
        required=True,
        help="Folder of the release; for manifest, the table (CSV or parquet).",
    )
    @click.option("--out", required=True, help="New or empty folder, or a URL (s3://bucket/name), of the dataset.")
    @click.option("--dry-run", is_flag=True, help="Say what would be read and written, then stop.")
    @json_option
    @flags({"Reading the release": SourceConfig, "Writing the shards": ShardConfig})
    def build_shards(release: str, source: Path, out: str, dry_run: bool, as_json: bool, **given: Any) -> None:
        """Build the shards of the dataset NAME: its official release in, WebDataset shards and their index out.

        hgld datasets lists the names; folders (top/mid/fine/image.jpg) and manifest (a table with one column a level)
        take your own images. Stopped anywhere, the same command goes on; run again, it does nothing.
        """
        options, config = take(SourceConfig, given), take(ShardConfig, given)
        from hgld.pipelines.shards import build
        from hgld.pipelines.shards.build import plan_build

        if dry_run:
            plan = plan_build(build.read_release(release, source, options), out, options, config)
            if as_json:
                print_json(build.plan_summary(plan))
            else:
                echo(build.plan_text(plan))
            return
        with progress_bars() as progress:
            result = build.build_shards(release, source, out, options, config, progress)
        if as_json:
            print_json(build.result_summary(result))
        else:
            echo(build.result_text(result))

    return build_shards


# -- index, verify ----------------------------------------------------------------------------------------------------

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
        from hgld.pipelines.check.index import rebuild_index

        with progress_bars() as progress:
            rebuilt = rebuild_index(root, levels=levels, force=force, workers=workers, progress=progress)
        if as_json:
            print_json(_rebuilt_json(rebuilt))
        else:
            echo(_rebuilt_text(root, rebuilt))
            say_next("hgld", "verify", root)

    return index


def _rebuilt_json(rebuilt: "RebuildResult") -> dict[str, object]:
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


def _rebuilt_text(root: Path, rebuilt: "RebuildResult") -> str:
    lines = [f"{root}: {len(rebuilt.manifest.shards)} shards, levels {', '.join(rebuilt.manifest.levels)}"]
    for split, facts in rebuilt.manifest.splits.items():
        classes = ", ".join(f"{count:,} {level}" for level, count in facts["classes"].items())
        lines.append(f"  {split}: {facts['items']:,} items; classes: {classes}")
    counts = rebuilt.rejected["reason"].value_counts().sort("reason")
    lines += [f"  kept aside, {reason}: {count:,}" for reason, count in counts.iter_rows()]
    return "\n".join([*lines, *rebuilt.notes])


def verify_command() -> click.Command:
    @click.command()
    @click.argument("root", type=FOLDER)
    @click.option("--decode", is_flag=True, help="Decode every image.")
    @click.option("--near", is_flag=True, help="Look for images of other splits that look like training images.")
    @click.option(
        "--near-distance",
        type=click.IntRange(0, 5),
        metavar="BITS",
        help="Bits of 64 in which the hashes of such images may differ, 0 to 5; default 5. Implies --near.",
    )
    @click.option(
        "--near-allow",
        type=EXISTING_FILE,
        metavar="FILE",
        help="CSV with the columns key, looks_like: pairs of images that are meant to look alike. Implies --near.",
    )
    @_workers_option
    @json_option
    @click.pass_context
    def verify(
        ctx: click.Context,
        root: Path,
        decode: bool,
        near: bool,
        near_distance: int | None,
        near_allow: Path | None,
        workers: int,
        as_json: bool,
    ) -> None:
        """Read the dataset in ROOT back and list whatever is off.

        Sizes and checksums, the index against the tars, labels against the hierarchy, counts, classes and images that
        training shares with other splits, stray files. Nothing is changed, no link is followed.

        Exit code: 0 nothing is off, 1 something is, 2 ROOT is no dataset, 3 only --near found something: images that
        look alike, which may be meant.
        """
        from hgld.cli import EXIT_CHECK_FAILED, EXIT_LOOK_ALIKES
        from hgld.pipelines.check.verify import MAX_DISTANCE, NEAR
        from hgld.pipelines.check.verify import verify as verify_dataset

        with progress_bars() as progress:
            found = verify_dataset(
                root,
                decode=decode,
                near=near or near_distance is not None or near_allow is not None,
                near_distance=MAX_DISTANCE if near_distance is None else near_distance,
                near_allow=near_allow,
                workers=workers,
                progress=progress,
            )
        if as_json:
            print_json(_verification_json(found))
        else:
            _show(root, found)
        if len(found.findings):
            ctx.exit(EXIT_LOOK_ALIKES if (found.findings["kind"] == NEAR).all() else EXIT_CHECK_FAILED)

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
        say_next("hgld", "train", "RECIPE", "--data", root, "--out", "RUN")
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
    """Return the text of a finding, its checksums cut short."""
    return printable(re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1...", text or ""))

"""The verbs about the datasets that hgld knows: datasets, card, download."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hgld.cli.options import FOLDER, complete_choices, complete_datasets, json_option, reading_options
from hgld.cli.output import echo, print_json, print_rich, progress_bars, say_next
from hgld.errors import ConfigError

if TYPE_CHECKING:
    from hgld.pipelines.download import DownloadPlan, FetchResult
    from hgld.pipelines.shards.cards import DataCard

_DOWNLOADABLE = ("gldv2",)
_MOST_NUMBERS = 10_000


class NumberRanges(click.ParamType):
    """``0-3,7``: whole numbers and ranges of them."""

    name = metavar = "0-3,7"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        numbers: set[int] = set()
        for part in str(value).split(","):
            match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if first > last or last - first >= _MOST_NUMBERS:
                self.fail(f"{part!r}: expected numbers and ranges of them, for instance 0-3,7.", param, ctx)
            numbers.update(range(first, last + 1))
        return tuple(sorted(numbers))


def datasets_command() -> click.Command:
    @click.command()
    @click.argument("name", required=False, shell_complete=complete_datasets)
    @json_option
    def datasets(name: str | None, as_json: bool) -> None:
        """List the datasets that hgld can shard; with a NAME, print its card and how to obtain the files.

        Counts are those that publications state. Your own images need no card: see folders and manifest of
        hgld build-shards.
        """
        from hgld.pipelines.shards.cards import load_card
        from hgld.pipelines.shards.sources import SOURCES, has_card, source_name

        if name is not None:
            source = source_name(name)
            if not has_card(source):
                raise ConfigError(f"{source} is for your own images, and has no card; see hgld build-shards --help.")
            card = load_card(source)
            if as_json:
                print_json(_card_facts(source, card) | {"card": card.text})
            else:
                echo(f"{card.text.split('---', 2)[2].strip()}\n\n{_obtain(source, card)}")
            return
        cards = {source: load_card(source) for source in filter(has_card, SOURCES)}
        if as_json:
            print_json({"datasets": [_card_facts(source, card) for source, card in cards.items()]})
        else:
            _print_table(cards)

    return datasets


def _card_facts(source: str, card: "DataCard") -> dict[str, Any]:
    return {
        "name": source,
        "title": card.title,
        "levels": list(card.levels),
        "splits": {
            split: {
                "items": None if facts.items is None else facts.items.text,
                "classes": {level: count.text for level, count in facts.classes.items()},
            }
            for split, facts in card.splits.items()
        },
        "licence": card.licence,
        "licence_note": card.licence_note,
        "obtain": list(card.obtain),
        "protocol": card.protocol,
        "download": source in _DOWNLOADABLE,
    }


def _obtain(source: str, card: "DataCard") -> str:
    steps = "\n".join(f"  {number}. {step}" for number, step in enumerate(card.obtain, start=1))
    return (
        f"To obtain the files:\n{steps}\nLicence: {card.licence}. {card.licence_note}\n"
        f"Then: hgld build-shards {source} --source DIR --out OUT"
    )


def _print_table(cards: "dict[str, DataCard]") -> None:
    import shutil

    from rich.table import Table
    from rich.text import Text

    table = Table("name", "levels, finest first", "splits as published", "licence", box=None, pad_edge=False)
    for source, card in cards.items():
        splits = [_split_text(split, facts, card.levels[0]) for split, facts in card.splits.items()]
        levels = ", ".join(card.levels)
        table.add_row(*map(Text, (source, levels, "\n".join(splits) or "not stated", card.licence)))
    print_rich(table, width=max(100, shutil.get_terminal_size().columns))
    echo(
        "\nhgld datasets NAME prints a card and how to obtain the files. For your own images:\n"
        "hgld build-shards folders --source DIR, or hgld build-shards manifest --source TABLE --levels FINE,COARSE."
    )


def _split_text(split: str, facts: Any, finest: str) -> str:
    items = "images not stated" if facts.items is None else f"{facts.items} images"
    classes = facts.classes.get(finest)
    return f"{split}: {items}" + (f", {classes} classes of {finest}" if classes else "")


def card_command() -> click.Command:
    @click.command()
    @click.argument("root", type=click.Path(path_type=Path, file_okay=False, exists=True))
    @json_option
    def card(root: Path, as_json: bool) -> None:
        """Make README.md and croissant.json of the dataset directory ROOT anew, from its manifest.

        Shows where the counts differ from the published ones. The manifest is brought up to date with the new files.
        """
        from hgld.pipelines.shards.card_files import remake_card

        made = remake_card(root)
        if as_json:
            print_json({"files": list(made.files), "differences": made.differences.to_dicts()})
            return
        echo(f"{root}: wrote {', '.join(made.files)}.")
        for row in made.differences.iter_rows(named=True):
            found = "not built" if row["found"] is None else f"{row['found']:,} here"
            echo(f"  {row['split']}, {row['what']}: {row['published']} published, {found}")

    return card


def download_command() -> click.Command:
    @click.command()
    @click.argument(
        "name", shell_complete=lambda context, parameter, incomplete: complete_choices(_DOWNLOADABLE, incomplete)
    )
    @click.option("--split", type=click.Choice(("train", "index", "test")), required=True, help="Set of the release.")
    @click.option("--tars", type=NumberRanges(), default=(), help="Numbers of the tars to fetch.")
    @click.option("--metadata", is_flag=True, help="Fetch the lists (CSV) of the split, too.")
    @click.option("--out", type=FOLDER, required=True, help="Folder of the release; then --source of build-shards.")
    @click.option("--base-url", default=None, help="A mirror; default: the owners' server.")
    @click.option("--workers", default=4, show_default=True, help="Files at a time.")
    @click.option("--retries", default=8, show_default=True, help="Attempts in a row that bring a file no further.")
    @click.option("--timeout", default=60.0, show_default=True, help="Seconds to wait for the next bytes.")
    @click.option("--dry-run", is_flag=True, help="Say how many bytes would be fetched, then stop.")
    @reading_options(verifies=False)
    @json_option
    def download(
        name: str,
        split: str,
        tars: tuple[int, ...],
        metadata: bool,
        out: Path,
        base_url: str | None,
        workers: int,
        retries: int,
        timeout: float,
        dry_run: bool,
        as_json: bool,
    ) -> None:
        """Fetch the release NAME from its owners, where they allow it: gldv2.

        Stopped anywhere, the same command goes on. Tars are compared with the MD5 sums that the owners publish; files
        that are there and right are not fetched again.
        """
        from hgld.pipelines.shards.sources import source_name

        source = source_name(name)
        if source not in _DOWNLOADABLE:
            raise ConfigError(
                f"{source} cannot be fetched by hgld: its owners want to be asked, or give no lasting address. "
                f"hgld datasets {source} says how to obtain it."
            )
        if not tars and not metadata:
            raise click.UsageError("say what to fetch: --tars or --metadata, or both.")
        from hgld.data.storage import READING
        from hgld.pipelines.download import Downloader, Gldv2Request, download_gldv2, plan_gldv2
        from hgld.pipelines.shards.sources.gldv2 import BASE_URL

        with progress_bars() as progress:
            policy = READING.get()
            downloader = Downloader(
                workers=workers,
                retries=retries,
                timeout=timeout,
                progress=progress,
                allow_redirects_to=policy.allow_redirects_to,
                allow_private=policy.allow_private,
            )
            asked = Gldv2Request(out, split, tars, metadata, base_url or BASE_URL)
            if dry_run:
                _show_plan(out, plan_gldv2(asked, downloader), as_json)
                return
            fetched = download_gldv2(asked, downloader)
        _show_fetched(out, fetched, as_json)
        if not as_json:
            _say_next(out, base_url)

    return download


def _show_plan(out: Path, plan: "DownloadPlan", as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        print_json({"out": str(out)} | asdict(plan))
        return
    echo(
        f"{out}: {plan.files} files, {plan.bytes / 1e6:,.1f} MB; {plan.there / 1e6:,.1f} MB there already, "
        f"{(plan.bytes - plan.there) / 1e6:,.1f} MB to fetch; {plan.free / 1e9:,.1f} GB free. Nothing was fetched."
    )


def _say_next(out: Path, base_url: str | None) -> None:
    """Print what follows: lists that lack, then tars, then the shards."""
    from hgld.pipelines.download import missing_lists, missing_tars

    mirror = () if base_url is None else ("--base-url", base_url)
    fetch = ("hgld", "download", "gldv2", "--out", out, *mirror)
    if lists := missing_lists(out):
        say_next(*fetch, "--split", lists[0], "--metadata")
    elif tars := missing_tars(out):
        split, numbers = next(iter(tars.items()))
        say_next(*fetch, "--split", split, "--tars", _ranges(numbers))
    else:
        say_next("hgld", "build-shards", "gldv2", "--source", out, "--out", "SHARDS", "--dry-run")


def _ranges(numbers: tuple[int, ...]) -> str:
    """Return numbers in order as ``0-3,7``."""
    firsts = [n for n in numbers if n - 1 not in numbers]
    lasts = [n for n in numbers if n + 1 not in numbers]
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in zip(firsts, lasts, strict=True))


def _show_fetched(out: Path, fetched: "list[FetchResult]", as_json: bool) -> None:
    if as_json:
        files = [
            {
                "path": str(file.path.relative_to(out)),
                "bytes": file.bytes,
                "received": file.received,
                "outcome": file.outcome,
                "checked": file.checked,
            }
            for file in fetched
        ]
        print_json({"files": files})
        return
    there = sum(file.outcome == "there" for file in fetched)
    checked = sum(file.checked for file in fetched)
    received = sum(file.received for file in fetched)
    echo(
        f"{out}: {len(fetched)} files, {sum(file.bytes for file in fetched) / 1e6:,.1f} MB; {there} there already, "
        f"{received / 1e6:,.1f} MB received, {checked} compared with the published MD5."
    )

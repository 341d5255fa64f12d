"""The subcommands that build, check and copy datasets: build-shards, index, verify, card, datasets, download, push."""

import re
import shlex
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from hgld.cli.options import HostOptions, verb
from hgld.cli.output import echo, print_json, progress_bars, say_next, text_table
from hgld.errors import ConfigError
from hgld.pipelines.shards.config import ShardConfig, SourceConfig
from hgld.settings import setting
from hgld.terminal import is_terminal

if TYPE_CHECKING:
    from hgld.pipelines.shards.cards import DataCard
    from hgld.pipelines.shards.profile import Profile

_MOST_SHOWN = 50
_SHA256 = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
_DOWNLOADABLE = ("gldv2",)


# -- build-shards -----------------------------------------------------------------------------------------------------


def _source_names() -> Iterable[str]:
    from hgld.pipelines.shards.sources import source_names

    return source_names()


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Options of ``hgld build-shards``: the release to read and the dataset to write."""

    release: str = setting(
        ...,
        "Name of a release (hgld datasets lists them); for your own images, folders or manifest.",
        argument=True,
        metavar="NAME",
        offered=_source_names,
    )
    source: Path | None = setting(
        None, "Folder of the release; for manifest, the table (CSV or parquet).  [required]", path="existing"
    )
    out: str = setting(
        "",
        "New or empty folder of the dataset.  [default for your own images: SOURCE-shards, next to SOURCE]",
    )
    yes: bool = setting(False, "Build the proposed dataset of your own images without asking for confirmation.")


@verb(sections={SourceConfig: "Reading the release", ShardConfig: "Writing the shards"})
def build_shards(asked: BuildOptions, options: SourceConfig, config: ShardConfig, *, as_json: bool) -> int:
    """Convert the official release of the dataset NAME into WebDataset shards with an index.

    hgld datasets lists the names. For your own images, NAME is folders (top/mid/fine/image.jpg) or manifest (a table
    with one column per level): the command first prints the proposed dataset and the command that builds it.
    After a stop the same command resumes.
    """
    from hgld.pipelines.shards import build
    from hgld.pipelines.shards.cards import load_card
    from hgld.pipelines.shards.sources import OWN_DATA, has_card, source_name

    if asked.source is None:
        own, kind = Path(asked.release), "folders" if Path(asked.release).is_dir() else "manifest"
        way = f" For your own images: hgld build-shards {kind} --source {shlex.quote(str(own))}." * own.exists()
        raise click.UsageError(f"missing --source: the folder of the release.{way}")
    name, out, told, catalog = source_name(asked.release), asked.out, {}, None
    if name in OWN_DATA:
        source, here = asked.source.resolve(), Path.cwd()
        beside = source.with_name(f"{source.stem}-shards")
        out = out or str(beside.relative_to(here) if beside.is_relative_to(here) else beside)
        found, told, is_wanted = _profile(name, asked.source, out, asked, options, config, as_json)
        if not is_wanted:
            return 2 if asked.out else 0
        options, catalog = found.options, found.catalog
    elif not out:
        raise click.UsageError(f"missing --out: the folder of the dataset of {name}.")
    with progress_bars() as progress:
        if catalog is None:
            progress("reading the lists", 0, None)
            catalog = build.read_release(name, asked.source, options)
        card = load_card(name) if has_card(name) else None
        result = build.build_catalog(catalog, card, out, options, config, progress)
    if as_json:
        print_json(told | build.result_summary(result))
    else:
        echo(build.result_text(result, catalog.notes if told else None))
        say_next("train", "--data", out, "--out", "RUN")
    return 0


def _profile(
    name: str,
    source: Path,
    out: str,
    asked: BuildOptions,
    options: SourceConfig,
    config: ShardConfig,
    as_json: bool,
) -> "tuple[Profile, dict[str, Any], bool]":
    """Print the proposed dataset of the user's own images; return it, its JSON, and whether to build it."""
    from hgld.pipelines.shards import profile

    is_enough = bool(asked.out and (options.levels or name == "folders"))
    found = profile.profile(name, source, options, is_final=is_enough)
    command = profile.command(found, source, out, config)
    told = {"profile": profile.facts(found) | {"command": command}}
    is_wanted = is_enough or asked.yes
    if not as_json:
        echo(profile.text(found))
    elif found.problem or not is_wanted:
        print_json(told)
    if found.problem:
        raise ConfigError(found.problem)
    if not is_wanted and not as_json:
        echo(f"\nbuild: {command}")
        is_wanted = sys.stdin.isatty() and is_terminal(sys.stdout) and click.confirm("Build it?", default=True)
    return found, told, is_wanted


# -- index, verify ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """Options of ``hgld index``: the tars to index."""

    root: Path = setting(..., "Folder that holds the tars.", argument=True, path="folder")
    levels: tuple[str, ...] = setting((), "Level names, finest first, if the tars do not contain them.")
    force: bool = setting(False, "Replace an existing, readable index.")
    workers: int = setting(1, "Number of shards read in parallel; 0: one per core.", least=0)


@verb()
def index(asked: IndexOptions, *, as_json: bool) -> None:
    """Rebuild index.parquet, hierarchy.parquet and dataset.json from only the tars in ROOT.

    Tars of other software work too, if each KEY.jpg (or .png, .webp, ...) has a KEY.json with labels, names and split.
    rejected.parquet lists members and items that cannot be used, with the reason.
    """
    from hgld.pipelines.check.index import rebuild_index

    levels = asked.levels or None
    with progress_bars() as progress:
        rebuilt = rebuild_index(asked.root, levels=levels, force=asked.force, workers=asked.workers, progress=progress)
    manifest = rebuilt.manifest
    if as_json:
        told = {name: getattr(manifest, name) for name in ("name", "levels", "group_size", "splits")}
        print_json(told | {"rejected": rebuilt.rejected.to_dicts(), "notes": rebuilt.notes})
        return
    echo(f"{asked.root}: {len(manifest.shards)} shards, levels {', '.join(manifest.levels)}")
    for split, facts in manifest.splits.items():
        classes = ", ".join(f"{count:,} {level}" for level, count in facts["classes"].items())
        echo(f"  {split}: {facts['items']:,} items; classes: {classes}")
    for reason, count in rebuilt.rejected["reason"].value_counts().sort("reason").iter_rows():
        echo(f"  rejected, {reason}: {count:,}")
    for note in rebuilt.notes:
        echo(note)
    say_next("verify", asked.root)


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Options of ``hgld verify``: the checks of a dataset."""

    root: Path = setting(..., "Dataset directory.", argument=True, path="folder")
    decode: bool = setting(False, "Decode every image to find damaged ones.")
    workers: int = setting(1, "Number of shards read in parallel; 0: one per core.", least=0)


@verb()
def verify(asked: VerifyOptions, *, as_json: bool) -> int:
    """Check the files of the dataset in ROOT and list all errors.

    The command checks sizes, checksums and counts. It compares the index with the tars, and the labels with the
    hierarchy. It also finds stray files, and classes and images that are both in train and in another split. It changes
    nothing and follows no link.

    Exit code: 0 no errors, 1 errors, 2 ROOT is not a dataset.
    """
    from hgld.cli import EXIT_CHECK_FAILED
    from hgld.pipelines.check.verify import verify as verify_dataset

    with progress_bars() as progress:
        found = verify_dataset(asked.root, decode=asked.decode, workers=asked.workers, progress=progress)
    findings = found.findings
    code = EXIT_CHECK_FAILED if len(findings) else 0
    if as_json:
        print_json(vars(found) | {"findings": findings.to_dicts()})
        return code
    echo(f"{asked.root}: {found.items:,} items in {found.shards:,} shards, {found.bytes / 1e9:,.2f} GB read")
    for note in found.notes:
        echo(f"Note: {note}")
    if not code:
        echo("No errors found.")
        say_next("train", "--data", asked.root, "--out", "RUN")
        return code
    cells = findings.head(_MOST_SHOWN).fill_null("")
    rows = [[_SHA256.sub(r"\1...", cell) for cell in row] for row in cells.iter_rows()]
    echo(text_table(["kind", "split", "file", "member", "found", "expected"], rows))
    counts = findings["kind"].value_counts().sort("kind")
    echo("; ".join(f"{kind}: {count:,}" for kind, count in counts.iter_rows()))
    echo(f"findings: {len(findings):,}; the table shows at most {_MOST_SHOWN}, --json shows all")
    return code


# -- datasets, card ---------------------------------------------------------------------------------------------------


def _card_names() -> Iterable[str]:
    from hgld.pipelines.shards.sources import SOURCES, has_card

    return filter(has_card, SOURCES)


@dataclass(frozen=True, kw_only=True)
class DatasetsOptions:
    """Options of ``hgld datasets``: the dataset to describe."""

    name: str | None = setting(
        None, "Dataset whose card to print.  [default: a table of all]", argument=True, offered=_card_names
    )


@verb()
def datasets(asked: DatasetsOptions, *, as_json: bool) -> None:
    """List the datasets that hgld can shard; with a NAME, print its card and how to obtain the files.

    The counts come from publications. Your own images need no card: hgld build-shards --help explains how to build a
    dataset of them.
    """
    from hgld.pipelines.shards.cards import load_card
    from hgld.pipelines.shards.sources import has_card, source_name

    if asked.name is not None:
        source = source_name(asked.name)
        if not has_card(source):
            raise ConfigError(f"{source} is for your own images and has no card; see hgld build-shards --help.")
        card = load_card(source)
        if as_json:
            print_json(_card_facts(source, card) | {"card": card.text})
        else:
            steps = "\n".join(f"  {number}. {step}" for number, step in enumerate(card.obtain, start=1))
            echo(card.text.split("---", 2)[2].strip())
            echo(f"\nTo obtain the files:\n{steps}\nLicence: {card.licence}. {card.licence_note}")
            echo(f"Then: hgld build-shards {source} --source DIR --out OUT")
        return
    cards = {source: load_card(source) for source in _card_names()}
    if as_json:
        print_json({"datasets": [_card_facts(source, card) for source, card in cards.items()]})
        return
    rows = []
    for source, card in cards.items():
        splits = []
        for split, facts in card.splits.items():
            items = f"{facts.items.shown} images" if facts.items else "images not stated"
            classes = facts.classes.get(card.levels[0])
            splits.append(f"{split}: {items}" + (f", {classes.shown} classes of {card.levels[0]}" if classes else ""))
        first, *others = splits or ["not stated"]
        rows.append([source, ", ".join(card.levels), first, card.licence])
        rows += [["", "", split, ""] for split in others]
    echo(text_table(["name", "levels, finest first", "splits as published", "licence"], rows))
    echo(
        "hgld datasets NAME prints a card and how to obtain the files. For your own images:\n"
        "hgld build-shards folders --source DIR, or hgld build-shards manifest --source TABLE --levels FINE,COARSE."
    )


def _card_facts(source: str, card: "DataCard") -> dict[str, Any]:
    """Return the facts of a data card for JSON."""
    facts = {name: value for name, value in asdict(card).items() if name not in ("header", "sections", "text")}
    return facts | {"name": source, "download": source in _DOWNLOADABLE}


@dataclass(frozen=True, kw_only=True)
class CardOptions:
    """Options of ``hgld card``: the dataset whose card is rewritten."""

    root: Path = setting(..., "Dataset directory.", argument=True, path="existing")


@verb()
def card(asked: CardOptions, *, as_json: bool) -> None:
    """Rewrite README.md and croissant.json of the dataset directory ROOT from its manifest.

    The output lists the counts that differ from the published counts. The command also updates the checksums in
    dataset.json.
    """
    from hgld.pipelines.shards.build import differences_text
    from hgld.pipelines.shards.cards import CARD, CROISSANT, remake_card

    differences = remake_card(asked.root)
    if as_json:
        rows = [] if differences is None else differences.to_dicts()
        print_json({"files": [CARD, CROISSANT], "differences": rows})
        return
    echo(f"{asked.root}: wrote {CARD}, {CROISSANT}.")
    if differences is not None:
        echo("\n".join(differences_text(differences)))


# -- download ---------------------------------------------------------------------------------------------------------


def _numbers(text: str) -> tuple[int, ...]:
    """Return the sorted numbers in a text such as ``0-3,7``."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise ValueError("numbers and ranges, for instance 0-3,7")
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


@dataclass(frozen=True, kw_only=True)
class DownloadOptions:
    """Options of ``hgld download``: the files to fetch."""

    name: str = setting(
        ..., "Release to download; only gldv2 can be downloaded.", argument=True, offered=lambda: _DOWNLOADABLE
    )
    split: Literal["train", "index", "test"] = setting(..., "Split of the release to download.")
    tars: tuple[int, ...] = setting(
        (),
        "Numbers of the tars to download. Default: none; then pass --metadata.",
        metavar="0-3,7",
        parse=_numbers,
    )
    metadata: bool = setting(False, "Also download the CSV files that list the images of the split.")
    out: Path = setting(..., "Folder for the release; pass it as --source to hgld build-shards.", path="folder")
    base_url: str = setting("", "URL of a mirror of the release.  [default: the owners' server]")
    workers: int = setting(4, "Number of files to download in parallel.", least=1)


@verb()
def download(asked: DownloadOptions, hosts: HostOptions, *, as_json: bool) -> None:
    """Fetch the release NAME from its owners, if they allow direct download (gldv2).

    After a stop the same command resumes. hgld compares tars with the published MD5 sums, and does not fetch complete
    files again.
    """
    from hgld.pipelines.shards.sources import source_name

    source = source_name(asked.name)
    if source not in _DOWNLOADABLE:
        raise ConfigError(
            f"{source} cannot be fetched by hgld: its owners require a request, or publish no permanent URL. "
            f"hgld datasets {source} says how to obtain it."
        )
    if not asked.tars and not asked.metadata:
        raise click.UsageError("no files to fetch were chosen; give --tars, --metadata or both.")
    from hgld.pipelines.download import Downloader, download_gldv2
    from hgld.pipelines.shards.sources.gldv2 import BASE_URL

    out = asked.out
    with progress_bars() as progress:
        downloader = Downloader(progress=progress, workers=asked.workers, **vars(hosts))
        base_url = asked.base_url or BASE_URL
        fetched = download_gldv2(out, asked.split, asked.tars, downloader, has_lists=asked.metadata, base_url=base_url)
    if as_json:
        print_json({"files": [vars(file) | {"path": str(file.path.relative_to(out))} for file in fetched]})
        return
    there = sum(file.outcome == "there" for file in fetched)
    checked = sum(file.checked for file in fetched)
    received = sum(file.received for file in fetched)
    echo(
        f"{out}: {len(fetched)} files, {sum(file.bytes for file in fetched) / 1e6:,.1f} MB; {there} there already, "
        f"{received / 1e6:,.1f} MB received, {checked} compared with the published MD5."
    )
    say_next("build-shards", "gldv2", "--source", out, "--out", "SHARDS")


# -- push -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """Options of ``hgld push``: the folder to push, and the repository."""

    folder: Path = setting(..., "Dataset directory, or folder of a run of hgld train.", argument=True, path="folder")
    address: str = setting(
        ..., "Repository on the Hugging Face Hub to upload to.", argument=True, metavar="hf:USER/NAME"
    )
    dry_run: bool = setting(False, "List the files and their sizes, without an upload.")
    private: bool = setting(False, "Make the repository private if it is new.")


@verb()
def push(asked: PushOptions, *, as_json: bool) -> None:
    """Push a dataset directory or a run of hgld train to the Hugging Face Hub.

    For a dataset the command sends shards, tables, card and Croissant metadata. For a run the command sends the weights
    of the best checkpoint, the config, and a card with the evaluation. Unchanged files are not sent again, so after a
    stop the same command resumes. Log in first with `hf auth login`.
    """
    from hgld import hub
    from hgld.data.format import MANIFEST

    folder, address = asked.folder, asked.address
    hub.repository(address)
    if (folder / MANIFEST).is_file():
        contents = hub.dataset_contents(folder)
    else:
        from hgld.training.inference.export import run_contents

        contents = run_contents(folder, address)
    sizes = {path: len(one) if isinstance(one, bytes) else one.stat().st_size for path, one in contents.files.items()}
    if not asked.dry_run:
        with progress_bars() as progress:
            hub.push(address, contents, private=asked.private, progress=progress)
    if as_json:
        files = [{"path": path, "bytes": size} for path, size in sizes.items()]
        facts = {"repository": hub.repository(address), "kind": contents.kind, "sent": not asked.dry_run}
        print_json(facts | {"files": files})
    else:
        for path, size in sizes.items():
            echo(f"{size:>14,}  {path}")
        done = "would be sent" if asked.dry_run else "sent"
        echo(f"{len(sizes)} files, {sum(sizes.values()):,} bytes, {done} to the {contents.kind} {address}")

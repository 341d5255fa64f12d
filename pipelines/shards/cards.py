"""Data cards: a dataset's published counts, compared with a build's, and the card of the build."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import polars as pl
import yaml

from hgld.data_cards import card_path
from hgld.errors import ConfigError, SchemaError
from hgld.evaluation.protocols import PROTOCOLS

from ..card import escape_markdown, read_card
from .croissant import own_licence
from .sources import card_name

if TYPE_CHECKING:
    from hgld.data.format import Manifest, SplitFacts

_ROUNDED = re.compile(r"(\d+)(?:\.(\d+))?([KMkm])")
_UNITS = {"k": 1_000, "m": 1_000_000}
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"), (10**7, "1M<n<10M"))
_MOST_LISTED = 20
_FROM_CARD = ("Source", "As shards", "Levels", "Splits", "Licence", "Known faults")


@dataclass(frozen=True)
class PublishedCount:
    """A count as a publication prints it: exact, or rounded to thousands or millions.

    >>> PublishedCount("11788").agrees(11788), PublishedCount("343.1K").agrees(343_090), PublishedCount("2M").agrees(9)
    (True, True, False)
    """

    text: str

    def __post_init__(self) -> None:
        if not self.text.isdigit() and not _ROUNDED.fullmatch(self.text):
            raise ValueError(f"{self.text!r} is no count; expected a number such as 11788, or a rounded one: 343.1K.")

    def agrees(self, found: int) -> bool:
        """Tell whether ``found`` items would be printed as this count."""
        rounded = _ROUNDED.fullmatch(self.text)
        if rounded is None:
            return found == int(self.text)
        unit = _UNITS[rounded[3].lower()]
        step = Decimal(unit) / 10 ** len(rounded[2] or "")
        return abs(found - Decimal(self.text[:-1]) * unit) <= step / 2

    def __str__(self) -> str:
        return f"{int(self.text):,}" if self.text.isdigit() else self.text


@dataclass(frozen=True)
class PublishedSplit:
    """Published counts of a split.

    Attributes:
        items: number of images; None where no publication states it.
        classes: number of classes by level, where stated.
    """

    items: PublishedCount | None
    classes: Mapping[str, PublishedCount]


@dataclass(frozen=True)
class DataCard:
    """A card of ``data_cards/``.

    Attributes:
        name: of the card's file, without ``.md``.
        title: of the dataset, for people.
        levels: of its hierarchy, finest first.
        splits: counts as published.
        obtain: how to get the files, a step or address a line.
        licence: identifier of the licence, as Hugging Face spells it.
        licence_note: what the licence's name does not say.
        protocol: how the dataset is evaluated in the literature.
        header: the card's YAML header for Hugging Face, without hgld's own block.
        sections: the card's text by its ``##`` headings.
        text: the card as it is, YAML header included.
    """

    name: str
    title: str
    levels: tuple[str, ...]
    splits: Mapping[str, PublishedSplit]
    obtain: tuple[str, ...]
    licence: str
    licence_note: str
    protocol: str
    header: Mapping[str, Any]
    sections: Mapping[str, str]
    text: str


def load_card(name: str) -> DataCard:
    """Load and check the card of a dataset that hgld can make.

    Args:
        name: of the source or of its card, for example ``sop``.

    Raises:
        ConfigError: there is no such card.
        SchemaError: its header lacks something, or holds something unknown.
    """
    try:
        file = card_path(card_name(name))
    except FileNotFoundError as error:
        raise ConfigError(f"there is no data card {name!r}: {error}") from error
    header, sections = read_card(file)
    where = f"{file.name}: block 'hgld'"
    own = _mapping(header.pop("hgld", None), where)
    unknown = own.keys() - {"levels", "splits", "obtain", "licence_note", "protocol"}
    if unknown:
        raise SchemaError(f"{where} has the unknown key {min(map(str, unknown))!r}.")
    levels = _texts(own.get("levels"), f"{where}, levels")
    return DataCard(
        name=file.stem,
        title=_text(header.get("pretty_name"), f"{file.name}: pretty_name"),
        levels=levels,
        splits=_published(_mapping(own.get("splits"), f"{where}, splits"), levels, where),
        obtain=_texts(own.get("obtain"), f"{where}, obtain"),
        licence=_text(header.get("license"), f"{file.name}: license"),
        licence_note=_text(own.get("licence_note"), f"{where}, licence_note"),
        protocol=_text(own.get("protocol"), f"{where}, protocol"),
        header=header,
        sections=sections,
        text=file.read_text(encoding="utf-8"),
    )


def _mapping(value: Any, where: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise SchemaError(f"{where} is {value!r}; expected keys and values.")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SchemaError(f"{where} is {value!r}; expected text.")
    return value.strip()


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise SchemaError(f"{where} is {value!r}; expected a list of texts.")
    return tuple(_text(entry, where) for entry in value)


def _published(splits: Mapping[Any, Any], levels: Sequence[str], where: str) -> dict[str, PublishedSplit]:
    published = {}
    for split, value in splits.items():
        place = f"{where}, split {split}"
        facts = _mapping(value, place)
        classes = _mapping(facts.get("classes", {}), f"{place}, classes")
        unknown = [str(k) for k in facts.keys() - {"items", "classes"}] + [str(k) for k in classes.keys() - set(levels)]
        if unknown:
            raise SchemaError(f"{place} has the unknown key {unknown[0]!r}; expected items, and classes by level.")
        published[_text(split, place)] = PublishedSplit(
            items=_count(facts["items"], f"{place}, items") if "items" in facts else None,
            classes={level: _count(n, f"{place}, classes, {level}") for level, n in classes.items()},
        )
    return published


def _count(value: Any, where: str) -> PublishedCount:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise SchemaError(f"{where} is {value!r}; expected a number.")
    try:
        return PublishedCount(str(value))
    except ValueError as error:
        raise SchemaError(f"{where}: {error}") from error


def published_differences(card: DataCard, manifest: "Manifest") -> pl.DataFrame:
    """Compare a build's counts with the published ones.

    Returns:
        the differences, in the order of the card: split, what (``items``, or ``classes of LEVEL``), published (text,
        as printed), found (Int64, null: the split was not built). A rounded count differs if the build's would be
        rounded otherwise.
    """
    rows = []
    for split, published in card.splits.items():
        for what, count, found in _compared(published, manifest.splits.get(split)):
            if found is None or not count.agrees(found):
                rows.append((split, what, str(count), found))
    schema = {"split": pl.String, "what": pl.String, "published": pl.String, "found": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _compared(
    published: PublishedSplit, found: "SplitFacts | None"
) -> Iterator[tuple[str, PublishedCount, int | None]]:
    if published.items is not None:
        yield "items", published.items, None if found is None else found["items"]
    for level, count in published.classes.items():
        yield f"classes of {level}", count, None if found is None else found["classes"].get(level)


def dataset_card(
    card: DataCard | None, manifest: "Manifest", differences: pl.DataFrame | None = None, notes: Sequence[str] = ()
) -> str:
    """Write the card of a build, ``README.md`` of its directory: a Hugging Face dataset card with the counts found.

    Args:
        card: of the dataset; None for the user's own data.
        manifest: of the build.
        differences: from :func:`published_differences`; None computes them.
        notes: what the adapter has to say about the release.

    Returns:
        Markdown. Everything that comes from the data (names of splits, levels, files, reasons) is escaped.
    """
    if differences is None and card is not None:
        differences = published_differences(card, manifest)
    title = escape_markdown(card.title if card else manifest.name)
    parts = [
        f"---\n{_header(card, manifest)}---\n",
        f"# {title}, as shards\n\n{_described(card, manifest)}{_made_by(manifest)}\n",
        f"## Counts\n\n{_counts(card, manifest)}\n",
    ]
    if card is not None and differences is not None:
        parts.append(f"## Differences from the published counts\n\n{_differences(differences)}\n")
    parts.append(f"## Left out\n\n{_rejected(manifest.rejected)}\n")
    if notes:
        parts.append("## Notes of this build\n\n" + "\n".join(f"- {escape_markdown(note)}" for note in notes) + "\n")
    parts += [f"## Reading\n\n{_reading(manifest)}\n", f"## How it was built\n\n{_provenance(manifest)}\n"]
    if card is not None or manifest.protocol:
        parts.append(f"## Protocol\n\n{_protocol(card, manifest)}\n")
    if card is not None:
        parts += [f"## {name}\n\n{card.sections[name]}\n" for name in _FROM_CARD if name in card.sections]
    return "\n".join(parts)


def _protocol(card: DataCard | None, manifest: "Manifest") -> str:
    """Return how the dataset is evaluated: by the card, and by the command."""
    parts = [] if card is None else [card.protocol]
    if manifest.protocol:
        found = PROTOCOLS.get(manifest.protocol)
        parts += [] if found is None or card is not None else [found.summary]
        parts.append(f"`hgld evaluate --checkpoint RUN --data DIRECTORY` takes the protocol `{manifest.protocol}`.")
    return "\n\n".join(parts)


def _header(card: DataCard | None, manifest: "Manifest") -> str:
    items = sum(facts["items"] for facts in manifest.splits.values())
    size = next((text for most, text in _SIZES if items < most), "10M<n<100M")
    own = {
        "pretty_name": card.title if card else " ".join(manifest.name.split()),
        "task_categories": ["image-feature-extraction"],
        **(card.header if card else _licence(manifest)),
        "size_categories": [size],
        "configs": [{"config_name": "default", "data_files": _data_files(manifest)}],
    }
    return yaml.safe_dump(own, sort_keys=False, allow_unicode=True)


def _licence(manifest: "Manifest") -> dict[str, str]:
    """Return Hugging Face's keys for a licence: its identifier, or the name of a licence that has none."""
    licence = own_licence(manifest)
    if not licence:
        return {}
    known = re.fullmatch(r"[A-Za-z0-9.-]+", licence)
    return {"license": licence.lower()} if known else {"license": "other", "license_name": " ".join(licence.split())}


def _data_files(manifest: "Manifest") -> list[dict[str, str]]:
    """Return the file pattern of every split with shards.

    A pattern that matches no file is an error to Hugging Face ``datasets``.
    """
    return [{"split": s, "path": f"{s}-*.tar"} for s, facts in manifest.splits.items() if facts["shards"]]


def _described(card: DataCard | None, manifest: "Manifest") -> str:
    described = manifest.provenance.get("description")
    return f"{escape_markdown(described)}\n\n" if card is None and isinstance(described, str) and described else ""


def _made_by(manifest: "Manifest") -> str:
    items = sum(facts["items"] for facts in manifest.splits.values())
    tars, size = len(manifest.shards), sum(shard.bytes for shard in manifest.shards)
    return (
        f"{items:,} images with labels at {len(manifest.levels)} levels, in {tars:,} tar{'s' * (tars != 1)} of "
        f"{size / 1e9:,.2f} GB, written by `hgld build-shards`. `dataset.json` has every option, seed and checksum; "
        "`index.parquet` says where each image lies."
    )


def _counts(card: DataCard | None, manifest: "Manifest") -> str:
    levels = [f"classes of {level}" for level in manifest.levels]
    rows = ["| split | what | this build | published |", "|---|---|---:|---:|"]
    for split, facts in manifest.splits.items():
        published = card.splits.get(split) if card else None
        printed = {what: str(count) for what, count, _ in _compared(published, facts)} if published else {}
        found = [facts["items"], *(facts["classes"].get(level, 0) for level in manifest.levels)]
        for what, count in zip(["items", *levels], found, strict=True):
            name = f"{escape_markdown(split)} | {escape_markdown(what)}"
            rows.append(f"| {name} | {count:,} | {printed.get(what, 'not stated' if card else '')} |")
        if facts["unlabelled"]:
            rows.append(f"| {escape_markdown(split)} | items without a finest label | {facts['unlabelled']:,} | |")
    return "\n".join(rows)


def _differences(differences: pl.DataFrame) -> str:
    if differences.is_empty():
        return "None: every published count is met."
    rows = ["| split | what | published | this build |", "|---|---|---:|---:|"]
    for split, what, published, found in differences.iter_rows():
        names = f"{escape_markdown(split)} | {escape_markdown(what)}"
        rows.append(f"| {names} | {published} | {'not built' if found is None else f'{found:,}'} |")
    return "\n".join(rows)


def _rejected(rejected: Mapping[str, int]) -> str:
    if not rejected:
        return "No image was left out."
    rows = [f"| {escape_markdown(reason)} | {count:,} |" for reason, count in sorted(rejected.items())]
    text = "`rejected.parquet` names each of them, with what was found."
    return "\n".join(["| reason | images |", "|---|---:|", *rows, "", text])


def _reading(manifest: "Manifest") -> str:
    split = next(iter(manifest.splits), "train")
    program = f'import hgld\n\ndataset = hgld.open_dataset("DIRECTORY", {json.dumps(split)})\nimage = dataset.image(0)'
    return (
        f"```python\n{program}\n```\n\nThe tars are plain WebDataset (`key.jpg`, `key.json`): any of its readers, and "
        '`datasets.load_dataset("DIRECTORY")`, can read them.'
    )


def _provenance(manifest: "Manifest") -> str:
    """Return the provenance as a table; long lists are left to ``dataset.json``."""
    rows = ["| fact | value |", "|---|---|"]
    for name, value in _flat("", manifest.provenance):
        if isinstance(value, list) and len(value) > _MOST_LISTED:
            shown = f"{len(value):,} entries, see `dataset.json`"
        else:
            shown = escape_markdown(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        rows.append(f"| {escape_markdown(name)} | {shown} |")
    return "\n".join(rows)


def _flat(prefix: str, facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name} / ", value)
        else:
            yield f"{prefix}{name}", value

"""Data cards: a dataset's published counts, compared with a build's, and the card of the build."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import polars as pl
import yaml

from hgld.data_cards import card_path
from hgld.errors import ConfigError
from hgld.evaluation.protocols import PROTOCOLS

from ..card import escape_markdown, markdown_table, read_card, size_category
from .sources import CARDS

if TYPE_CHECKING:
    from hgld.data.format import Manifest, SplitFacts

_ROUNDED = re.compile(r"(\d+)(?:\.(\d+))?([KMkm])")
_UNITS = {"k": 1_000, "m": 1_000_000}
_MOST_LISTED = 20
_FROM_CARD = ("Source", "As shards", "Levels", "Splits", "Licence", "Known faults")


@dataclass(frozen=True)
class PublishedCount:
    """A count as a publication prints it: exact, or rounded to thousands or millions.

    >>> PublishedCount("11788").agrees(11788), PublishedCount("343.1K").agrees(343_090), PublishedCount("2M").agrees(9)
    (True, True, False)
    """

    text: str

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
    """Load the card of a dataset that hgld can make.

    Args:
        name: of the source or of its card, for example ``sop``.

    Raises:
        ConfigError: there is no such card.
    """
    try:
        file = card_path(CARDS.get(name, name))
    except FileNotFoundError as error:
        raise ConfigError(f"there is no data card {name!r}: {error}") from error
    header, sections = read_card(file)
    own = header.pop("hgld")
    splits = {}
    for split, facts in own["splits"].items():
        classes = {level: PublishedCount(str(count)) for level, count in facts.get("classes", {}).items()}
        items = PublishedCount(str(facts["items"])) if "items" in facts else None
        splits[split] = PublishedSplit(items, classes)
    return DataCard(
        name=file.stem,
        title=header["pretty_name"],
        levels=tuple(own["levels"]),
        splits=splits,
        obtain=tuple(text.strip() for text in own["obtain"]),
        licence=header["license"],
        licence_note=own["licence_note"].strip(),
        protocol=own["protocol"].strip(),
        header=header,
        sections=sections,
        text=file.read_text(encoding="utf-8"),
    )


def known_card(manifest: "Manifest") -> DataCard | None:
    """Return the card that has the dataset's name; None if there is none or if its levels differ."""
    try:
        card = load_card(manifest.name)
    except ConfigError:
        return None
    return card if card.levels == manifest.levels else None


def published_differences(card: DataCard, manifest: "Manifest") -> pl.DataFrame:
    """Compare a build's counts with the published ones.

    Returns:
        the differences, in the order of the card: split, what (``items``, or ``classes of LEVEL``), published (text,
        as printed), found (Int64, null: the split was not built). A rounded count differs if the build's would be
        rounded otherwise.
    """
    rows = [
        (split, what, str(count), found)
        for split, published in card.splits.items()
        for what, count, found in _compared(published, manifest.splits.get(split))
        if found is None or not count.agrees(found)
    ]
    schema = {"split": pl.String, "what": pl.String, "published": pl.String, "found": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _compared(
    published: PublishedSplit, found: "SplitFacts | None"
) -> Iterator[tuple[str, PublishedCount, int | None]]:
    if published.items is not None:
        yield "items", published.items, None if found is None else found["items"]
    for level, count in published.classes.items():
        yield f"classes of {level}", count, None if found is None else found["classes"].get(level)


def own_licence(manifest: "Manifest") -> str:
    """Return the licence that the builder of a dataset stated; empty where none was."""
    licence = manifest.provenance.get("licence")
    return licence if isinstance(licence, str) and licence != "not stated" else ""


# -- the card of a build ----------------------------------------------------------------------------------------------


def dataset_card(card: DataCard | None, manifest: "Manifest") -> str:
    """Write the card of a build, ``README.md`` of its directory: a Hugging Face dataset card with the counts found.

    Args:
        card: of the dataset; None for the user's own data.
        manifest: of the build.

    Returns:
        Markdown. Everything that comes from the data (names of splits, levels, files, reasons) is escaped.
    """
    facts = manifest.provenance
    sections = {"Counts": _counts(card, manifest)}
    if card is not None:
        differences = published_differences(card, manifest)
        rows = [(*names, "not built" if found is None else f"{found:,}") for *names, found in differences.iter_rows()]
        table = markdown_table(("split", "what", "published", "this build"), rows, numbers=2)
        sections["Differences from the published counts"] = table if rows else "None: every published count is met."
    rejected = [(reason, f"{count:,}") for reason, count in sorted(manifest.rejected.items())]
    sections["Left out"] = "No image was left out."
    if rejected:
        named = "`rejected.parquet` names each of them, with what was found."
        sections["Left out"] = f"{markdown_table(('reason', 'images'), rejected)}\n\n{named}"
    if isinstance(notes := facts.get("notes"), list) and notes:
        sections["Notes of this build"] = "\n".join(f"- {escape_markdown(str(note))}" for note in notes)
    sections["Reading"] = _READING.replace("SPLIT", json.dumps(next(iter(manifest.splits), "train")))
    stated = [(name, _shown(value)) for name, value in _flat("", facts)]
    sections["How it was built"] = markdown_table(("fact", "value"), stated, numbers=0)
    if card is not None or manifest.protocol:
        sections["Protocol"] = _protocol(card, manifest)
    if card is not None:
        sections |= {name: card.sections[name] for name in _FROM_CARD if name in card.sections}
    description = facts.get("description")
    described = f"{escape_markdown(str(description))}\n\n" if card is None and description else ""
    size = sum(shard.bytes for shard in manifest.shards)
    tars = f"{len(manifest.shards):,} tar{'s' * (len(manifest.shards) != 1)}"
    begin = (
        f"---\n{_header(card, manifest)}---\n\n"
        f"# {escape_markdown(card.title if card else manifest.name)}, as shards\n\n{described}"
        f"{_items(manifest):,} images with labels at {len(manifest.levels)} levels, in {tars} of {size / 1e9:,.2f} GB, "
        "written by `hgld build-shards`. `dataset.json` has every option, seed and checksum; `index.parquet` says "
        "where each image lies.\n"
    )
    return "\n".join([begin, *(f"## {title}\n\n{text}\n" for title, text in sections.items())])


_READING = """```python
import hgld

dataset = hgld.open_dataset("DIRECTORY", SPLIT)
image = dataset.image(0)
```

The tars are plain WebDataset (`key.jpg`, `key.json`): any of its readers, and `datasets.load_dataset("DIRECTORY")`, \
can read them."""


def _items(manifest: "Manifest") -> int:
    return sum(facts["items"] for facts in manifest.splits.values())


def _header(card: DataCard | None, manifest: "Manifest") -> str:
    licence = own_licence(manifest)
    if card is not None:
        stated = dict(card.header)
    elif re.fullmatch(r"[A-Za-z0-9.-]+", licence):  # an identifier, or the name of a licence that has none
        stated = {"license": licence.lower()}
    else:
        stated = {"license": "other", "license_name": " ".join(licence.split())} if licence else {}
    # A pattern that matches no file is an error to Hugging Face datasets.
    files = [{"split": s, "path": f"{s}-*.tar"} for s, facts in manifest.splits.items() if facts["shards"]]
    own = {
        "pretty_name": card.title if card else " ".join(manifest.name.split()),
        "task_categories": ["image-feature-extraction"],
        **stated,
        "size_categories": [size_category(_items(manifest))],
        "configs": [{"config_name": "default", "data_files": files}],
    }
    return yaml.safe_dump(own, sort_keys=False, allow_unicode=True)


def _counts(card: DataCard | None, manifest: "Manifest") -> str:
    rows = []
    for split, facts in manifest.splits.items():
        published = card.splits.get(split) if card else None
        printed = {what: str(count) for what, count, _ in _compared(published, facts)} if published else {}
        found = {"items": facts["items"]}
        found |= {f"classes of {level}": facts["classes"].get(level, 0) for level in manifest.levels}
        for what, count in found.items():
            rows.append((split, what, f"{count:,}", printed.get(what, "not stated" if card else "")))
        if facts["unlabelled"]:
            rows.append((split, "items without a finest label", f"{facts['unlabelled']:,}", ""))
    return markdown_table(("split", "what", "this build", "published"), rows, numbers=2)


def _protocol(card: DataCard | None, manifest: "Manifest") -> str:
    """Return how the dataset is evaluated: by the card, and by the command."""
    parts = [] if card is None else [card.protocol]
    if manifest.protocol:
        found = PROTOCOLS.get(manifest.protocol)
        parts += [] if found is None or card is not None else [found.summary]
        parts.append(f"`hgld evaluate --checkpoint RUN --data DIRECTORY` takes the protocol `{manifest.protocol}`.")
    return "\n\n".join(parts)


def _shown(value: Any) -> str:
    """Return a fact of the provenance for a table; long lists are left to ``dataset.json``."""
    if isinstance(value, list) and len(value) > _MOST_LISTED:
        return f"{len(value):,} entries, see `dataset.json`"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _flat(prefix: str, facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name} / ", value)
        else:
            yield f"{prefix}{name}", value

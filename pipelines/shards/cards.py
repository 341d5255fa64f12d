"""Data cards with published counts, and the files that describe a build: ``README.md`` and ``croissant.json``.

This module also writes all files of a dataset except its shards.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from hgld.data.format import (
    BOX,
    CARD,
    CROISSANT,
    HIERARCHY,
    IMAGE_SUFFIXES,
    INDEX,
    MANIFEST,
    FileFacts,
    Manifest,
    SplitFacts,
)
from hgld.data.index import split_facts, write_index
from hgld.data_cards import card_path
from hgld.errors import ConfigError, InputError
from hgld.evaluation.protocols import PROTOCOLS
from hgld.files import aside_of, file_lock, put_in_place, sync, write_atomic
from hgld.hierarchy import Hierarchy
from hgld.tables import parquet_schema

from ..card import escape_markdown, markdown_table, read_card, size_category
from ..stage import fingerprint, json_text, storage_errors
from .reading import read_manifest
from .sources import CARDS

EARLIER = ".dataset.json.earlier"  # temporary name of the manifest while other files are replaced
_ROUNDED = re.compile(r"(\d+)(?:\.(\d+))?([KMkm])")
_UNITS = {"k": 1_000, "m": 1_000_000}
_FROM_CARD = ("Source", "As shards", "Levels", "Splits", "Licence", "Known problems")


class PublishedCount(str):
    """A published count: exact, or rounded to thousands or millions.

    >>> PublishedCount("11788").agrees(11788), PublishedCount("343.1K").agrees(343_090), PublishedCount("2M").agrees(9)
    (True, True, False)
    """

    __slots__ = ()

    def agrees(self, found: int) -> bool:
        """Tell whether a number of items, rounded in the same way, is this count."""
        rounded = _ROUNDED.fullmatch(self)
        if rounded is None:
            return found == int(self)
        unit = _UNITS[rounded[3].lower()]
        step = Decimal(unit) / 10 ** len(rounded[2] or "")
        return abs(found - Decimal(self[:-1]) * unit) <= step / 2

    @property
    def shown(self) -> str:
        """The count as text, such as 1,234."""
        return f"{int(self):,}" if self.isdigit() else str(self)


@dataclass(frozen=True)
class PublishedSplit:
    """Published counts of a split.

    Attributes:
        items: number of images; None if no publication states it.
        classes: number of classes by level, for levels with a published number.
    """

    items: PublishedCount | None
    classes: Mapping[str, PublishedCount]


@dataclass(frozen=True)
class DataCard:
    """A card of ``data_cards/``.

    Attributes:
        name: name of the card's file, without ``.md``.
        title: readable name of the dataset.
        levels: levels of its hierarchy, finest first.
        splits: published counts by split.
        obtain: instructions to get the files, one step or URL per line.
        licence: identifier of the licence, as Hugging Face spells it.
        licence_note: further conditions of the licence.
        protocol: usual evaluation of the dataset in the literature.
        header: the card's YAML header for Hugging Face, without hgld's own block.
        sections: the card's text by its ``##`` headings.
        text: the whole text of the card, including the YAML header.
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
        name: name of the source or of its card, for example ``sop``.

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


def known_card(manifest: Manifest) -> DataCard | None:
    """Return the card that has the dataset's name; None if there is no such card or its levels differ."""
    try:
        card = load_card(manifest.name)
    except ConfigError:
        return None
    return card if card.levels == manifest.levels else None


def published_differences(card: DataCard, manifest: Manifest) -> pl.DataFrame:
    """Compare a build's counts with the published counts.

    Returns:
        one row per difference, in the order of the card, with the columns split, what (``items``, or ``classes of
        LEVEL``), published (text, as printed) and found (Int64; null: the split was not built). A rounded count agrees
        if the build's count rounds to it.
    """
    rows = [
        (split, what, count.shown, found)
        for split, published in card.splits.items()
        for what, count, found in _compared(published, manifest.splits.get(split))
        if found is None or not count.agrees(found)
    ]
    schema = {"split": pl.String, "what": pl.String, "published": pl.String, "found": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _compared(published: PublishedSplit, found: SplitFacts | None) -> Iterator[tuple[str, PublishedCount, int | None]]:
    if published.items is not None:
        yield "items", published.items, None if found is None else found["items"]
    for level, count in published.classes.items():
        yield f"classes of {level}", count, None if found is None else found["classes"].get(level)


def own_licence(manifest: Manifest) -> str:
    """Return the licence that the builder of a dataset stated; empty if no licence was stated."""
    licence = manifest.provenance.get("licence")
    return licence if isinstance(licence, str) and licence != "not stated" else ""


# -- the card of a build ----------------------------------------------------------------------------------------------


def dataset_card(card: DataCard | None, manifest: Manifest) -> str:
    """Write the card of a build, ``README.md`` of its directory: a Hugging Face dataset card with the counts found.

    Args:
        card: card of the dataset; None for the user's own data.
        manifest: manifest of the build.

    Returns:
        Markdown. Everything that comes from the data (names of splits, levels, files, reasons) is escaped.
    """
    facts = manifest.provenance
    sections = {"Counts": _counts(card, manifest)}
    rejected = [(reason, f"{count:,}") for reason, count in sorted(manifest.rejected.items())]
    sections["Left out"] = "No image was excluded."
    if rejected:
        named = "`rejected.parquet` names each of them, with what was found."
        sections["Left out"] = f"{markdown_table(('reason', 'images'), rejected)}\n\n{named}"
    if isinstance(notes := facts.get("notes"), list) and notes:
        sections["Notes of this build"] = "\n".join(f"- {escape_markdown(str(note))}" for note in notes)
    sections["Reading"] = _READING.replace("SPLIT", json.dumps(next(iter(manifest.splits), "train")))
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


def _items(manifest: Manifest) -> int:
    return sum(facts["items"] for facts in manifest.splits.values())


def _header(card: DataCard | None, manifest: Manifest) -> str:
    licence = own_licence(manifest)
    if card is not None:
        stated = dict(card.header)
    elif re.fullmatch(r"[A-Za-z0-9.-]+", licence):  # a licence identifier, or a licence's name of one word
        stated = {"license": licence.lower()}
    else:
        stated = {"license": "other", "license_name": " ".join(licence.split())} if licence else {}
    # If a pattern matches no file, Hugging Face datasets raises an error.
    files = [{"split": s, "path": f"{s}-*.tar"} for s, facts in manifest.splits.items() if facts["shards"]]
    own = {
        "pretty_name": card.title if card else " ".join(manifest.name.split()),
        "task_categories": ["image-feature-extraction"],
        **stated,
        "size_categories": [size_category(_items(manifest))],
        "configs": [{"config_name": "default", "data_files": files}],
    }
    return yaml.safe_dump(own, sort_keys=False, allow_unicode=True)


def _counts(card: DataCard | None, manifest: Manifest) -> str:
    rows = []
    for split, facts in manifest.splits.items():
        published = card.splits.get(split) if card else None
        printed = {what: count.shown for what, count, _ in _compared(published, facts)} if published else {}
        found = {"items": facts["items"]}
        found |= {f"classes of {level}": facts["classes"].get(level, 0) for level in manifest.levels}
        for what, count in found.items():
            rows.append((split, what, f"{count:,}", printed.get(what, "not stated" if card else "")))
        if facts["unlabelled"]:
            rows.append((split, "items without a finest label", f"{facts['unlabelled']:,}", ""))
    return markdown_table(("split", "what", "this build", "published"), rows, numbers=2)


def _protocol(card: DataCard | None, manifest: Manifest) -> str:
    """Return the evaluation protocol of the card, and the command that follows it."""
    parts = [] if card is None else [card.protocol]
    if manifest.protocol:
        found = PROTOCOLS.get(manifest.protocol)
        parts += [] if found is None or card is not None else [found.summary]
        parts.append(f"`hgld evaluate --checkpoint RUN --data DIRECTORY` takes the protocol `{manifest.protocol}`.")
    return "\n\n".join(parts)


# -- croissant.json: the directory described in Croissant 1.1 (docs.mlcommons.org/croissant) --------------------------
#
# The record set "images" has every image, read from the tars, with its labels and split, read from the index. Every tar
# is a FileObject with its SHA-256.

_TERMS = (  # the terms of Croissant's own vocabulary that its context abbreviates
    "arrayShape citeAs column containedIn equivalentProperty extract field fileProperty fileObject fileSet format "
    "includes isArray isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace "
    "samplingRate separator source subField transform"
)
_CLASS_COLUMNS = {
    "level": ("sc:Text", "Name of the level."),
    "label": ("cr:Int32", "Number of the class within its level, as images have it."),
    "name": ("sc:Text", "Name of the class."),
    "parent": ("cr:Int32", "Label of the class above, at the next coarser level; empty at the coarsest."),
}
_BOX_TEXT = "Side of the box to crop to, in pixels of the upright image; empty for the whole image."
_IMAGES = "pictures"
# mlcroissant applies the transform twice, so its result must pass unchanged
_WITHOUT_SUFFIX = rf"^(.+?)(?:\.(?:{'|'.join(IMAGE_SUFFIXES)}))?$"


def croissant(manifest: Manifest, card: DataCard | None, *, boxes: bool = False) -> dict[str, Any]:
    """Return the content of ``croissant.json``.

    Args:
        manifest: manifest of the dataset directory; its ``files`` include the index and the hierarchy.
        card: card of the dataset; None: the manifest states description and licence.
        boxes: True if the index has boxes to crop to.
    """
    stated = manifest.provenance.get("description") if card is None else card.sections.get("Source")
    description = str(stated or "") or (
        f"{card.title if card else manifest.name}: {_items(manifest)} images with labels at the levels "
        f"{', '.join(manifest.levels)}, as WebDataset shards with an index."
    )
    licence = own_licence(manifest) if card is None else card.licence
    # mlcroissant reads application/x-parquet, not the registered application/vnd.apache.parquet
    files = [_file(name, manifest.files[name], "application/x-parquet") for name in (INDEX, HIERARCHY)]
    files += [_file(s.name, {"bytes": s.bytes, "sha256": s.sha256}, "application/x-tar") for s in manifest.shards]
    images = {
        **_named("cr:FileSet", _IMAGES, "The images in the tars."),
        "containedIn": [{"@id": shard.name} for shard in manifest.shards],
        "encodingFormat": "image/jpeg",
        "includes": [f"*.{suffix}" for suffix in IMAGE_SUFFIXES],
    }
    splits = _field("splits", "name", "The split.", "sc:Text")
    classes = [
        _field("classes", name, text, kind, source=_column(HIERARCHY, name))
        for name, (kind, text) in _CLASS_COLUMNS.items()
    ]
    return {
        "@context": {
            "@language": "en",
            "@vocab": "https://schema.org/",
            "sc": "https://schema.org/",
            "cr": "http://mlcommons.org/croissant/",
            "rai": "http://mlcommons.org/croissant/RAI/",
            "dct": "http://purl.org/dc/terms/",
            "conformsTo": "dct:conformsTo",
            "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
            **{term: f"cr:{term}" for term in _TERMS.split()},
            **{term: {"@id": f"cr:{term}", "@type": "@json"} for term in ("examples", "data")},
            **{term: {"@container": "@language"} for term in ("name", "description")},
        },
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": re.sub(r"[^A-Za-z0-9_.-]+", "-", manifest.name) or "dataset",
        "description": description,
        **({"license": licence} if licence else {}),
        # other items or labels change the index's checksum, and so the version
        "version": f"1.0.0+{manifest.files[INDEX]['sha256'][:12]}",
        "distribution": [*files, images],
        "recordSet": [
            {
                **_record_set("splits", "The splits of the dataset.", ["name"], [splits]),
                "dataType": "cr:Split",
                "data": [{"splits/name": name} for name in manifest.splits],
            },
            _record_set("classes", "The tree of classes, one record per class.", ["level", "label"], classes),
            _record_set("images", "One record per image.", ["key"], _image_fields(manifest.levels, boxes)),
        ],
    }


def _named(kind: str, name: str, description: str, id_: str = "") -> dict[str, Any]:
    return {"@type": kind, "@id": id_ or name, "name": name, "description": description}


def _record_set(name: str, description: str, keys: Sequence[str], fields: Sequence[dict[str, Any]]) -> dict[str, Any]:
    key = [{"@id": f"{name}/{key}"} for key in keys]
    return {**_named("cr:RecordSet", name, description), "key": key if len(key) > 1 else key[0], "field": fields}


def _file(name: str, facts: Mapping[str, Any], form: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "contentUrl": name,
        "contentSize": f"{facts['bytes']} B",
        "encodingFormat": form,
        "sha256": facts["sha256"],
    }


def _field(record: str, name: str, description: str, kind: str, **more: object) -> dict[str, Any]:
    return {**_named("cr:Field", name, description, f"{record}/{name}"), "dataType": kind, **more}


def _column(file: str, column: str) -> dict[str, Any]:
    return {"fileObject": {"@id": file}, "extract": {"column": column}}


def _image_fields(levels: Sequence[str], boxes: bool) -> list[dict[str, Any]]:
    """Return the fields of images: key and image from the tars, joined with the index's split, labels and box."""
    files = {"fileSet": {"@id": _IMAGES}}
    path = {**files, "extract": {"fileProperty": "fullpath"}, "transform": {"regex": _WITHOUT_SUFFIX}}
    content = {**files, "extract": {"fileProperty": "content"}}
    key_text = "Name of the item: its image is KEY.SUFFIX in the shard, its facts KEY.json."
    fields = [
        _field("images", "key", key_text, "sc:Text", source=path, references=_column(INDEX, "key")),
        _field("images", "image", "The image.", "sc:ImageObject", source=content),
        _field("images", "split", "Split of the item.", "sc:Text", source=_column(INDEX, "split")),
    ]
    for c, level in enumerate(levels):
        is_name = re.fullmatch(r"[A-Za-z0-9_.-]+", level) and not level.startswith("level_")
        text = f"Class at level {c} of {len(levels)}, {level!r} (0 is the finest): label in classes; -1 is unknown."
        name = level if is_name else f"level_{c}"
        fields.append(_field("images", name, text, "cr:Int32", source=_column(INDEX, level)))
    sides = BOX if boxes else ()
    return fields + [_field("images", side, _BOX_TEXT, "cr:Int32", source=_column(INDEX, side)) for side in sides]


# -- all files of a dataset except its shards --------------------------------------------------------------------------


def described(manifest: Manifest, card: DataCard | None, *, boxes: bool) -> tuple[dict[str, bytes], Manifest]:
    """Return ``README.md`` and ``croissant.json`` of a dataset, and its manifest with their checksums.

    Args:
        manifest: manifest of the dataset, with all other files.
        card: card of the dataset; None if hgld has no card for it.
        boxes: True if the index has boxes to crop to.
    """
    made = {
        CARD: dataset_card(card, manifest).encode(),
        CROISSANT: json_text(croissant(manifest, card, boxes=boxes)).encode(),
    }
    facts = {name: FileFacts(bytes=len(d), sha256=hashlib.sha256(d).hexdigest()) for name, d in made.items()}
    return made, replace(manifest, files=dict(sorted({**manifest.files, **facts}.items())))


def write_dataset(
    root: Path,
    index: pl.DataFrame,
    hierarchy: Hierarchy,
    tables: Mapping[str, pl.DataFrame],
    manifest: Manifest,
    card: DataCard | None,
    keep: Collection[str] = (),
) -> Manifest:
    """Write all files of a dataset except its shards, and return the manifest.

    All files are first written and flushed under temporary names; if that fails, the files of the dataset stay as they
    were. Then an earlier manifest is renamed to :data:`EARLIER`, and the files get their names, the manifest last:
    without a manifest, the directory counts as unfinished.

    Args:
        root: the dataset directory.
        index: rows of the index.
        hierarchy: tree of the classes.
        tables: further tables by file name.
        manifest: manifest without counts of splits and without files.
        card: card of the dataset; None if hgld has no card for it.
        keep: names of files that stay as they are if they exist.
    """
    written: dict[str, Path] = {}

    def write(name: str, content: Callable[[Path], object]) -> None:
        written[name] = aside_of(root / name, racing=True)
        content(written[name])
        sync(written[name])

    try:
        write(INDEX, lambda aside: write_index(index, aside, manifest.levels))
        write(HIERARCHY, hierarchy.to_parquet)
        for name, table in tables.items():
            write(name, table.write_parquet)
        kept = {name for name in keep if (root / name).is_file() and not (root / name).is_symlink()}
        facts = {name: fingerprint(written.get(name, root / name)) for name in sorted({*written, *kept})}
        full = replace(manifest, splits=split_facts(index, manifest.levels), files=facts)
        made, full = described(full, card, boxes=BOX[0] in index.columns)
        full = replace(full, files={**full.files, **{name: facts[name] for name in kept}})
        for name, data in {**made, MANIFEST: full.to_json().encode()}.items():
            if name not in kept:
                write(name, partial(Path.write_bytes, data=data))
        if (root / MANIFEST).is_file():
            (root / MANIFEST).replace(root / EARLIER)
            sync(root)
        for name, aside in written.items():
            if name == MANIFEST:
                sync(root)
            put_in_place(aside, root / name)
        sync(root)
        (root / EARLIER).unlink(missing_ok=True)
    finally:
        for aside in written.values():
            aside.unlink(missing_ok=True)
    return full


@contextmanager
def dataset_lock(root: Path) -> Iterator[None]:
    """Lock a dataset directory against other processes that change its files.

    Raises:
        StorageError: another process holds the lock, or the folder is not writable.
    """
    busy = f"another process is changing the dataset in {root}; wait for it, or stop it."
    with file_lock(root / ".dataset.lock", busy, keep=False):
        yield


def remake_card(root: Path) -> pl.DataFrame | None:
    """Rewrite ``README.md`` and ``croissant.json`` of a dataset directory and enter them in its manifest.

    If the call is stopped in between, the same call repairs the directory.

    Args:
        root: the directory; its manifest and the columns of its index are read.

    Returns:
        differences from the published counts (:func:`published_differences`); None if hgld has no card of the
        dataset.

    Raises:
        InputError: the folder is not a dataset directory, or its manifest cannot be read.
        StorageError: the disk is full or not writable.
    """
    if not (root / MANIFEST).is_file():
        raise InputError(
            f"{root} has no {MANIFEST}; expected a dataset directory. If it holds shards: hgld index {root}"
        )
    with dataset_lock(root), storage_errors("hgld card", root):
        manifest = read_manifest(root / MANIFEST)
        if missing := [name for name in (INDEX, HIERARCHY) if name not in manifest.files]:
            raise InputError(f"{root / MANIFEST} does not list {missing[0]}. Write it again: hgld index {root} --force")
        boxes = BOX[0] in parquet_schema(root / INDEX, fix=f"Write it again: hgld index {root}")
        card = known_card(manifest)
        made, manifest = described(manifest, card, boxes=boxes)
        for name, data in {**made, MANIFEST: manifest.to_json().encode()}.items():
            write_atomic(root / name, data)
    return None if card is None else published_differences(card, manifest)

"""A dataset written for another tool: its items one after another, and the pictures beside them or by reference.

The names of a build, which have no pictures, become texts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hgld.data.dataset import ShardDataset
from hgld.data.index import BOX
from hgld.errors import ConfigError
from hgld.files import write_folder
from hgld.hierarchy import Hierarchy

from . import fiftyone, label_studio
from .reviewed import Verdict, Verdicts, path_of

PICTURES = "data"  # folder of the pictures, where they are written
_MARK = ".hgld-conversion"  # in a folder that another conversion may replace
_AT_ONCE = 256  # items that are in memory
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class ConvertedItem:
    """An item as a format writes it.

    Attributes:
        key: its name in the dataset.
        file: ``key`` with the suffix of its picture.
        split: of the item.
        path: names of its classes, finest level first; None where unknown.
        bytes: of the picture's file.
        size: width and height of the whole picture, upright, in pixels.
        box: left, top, right, bottom of the item in it, in pixels; None: the whole picture.
        verdict: of people; None where nobody decided.
    """

    key: str
    file: str
    split: str
    path: tuple[str | None, ...]
    bytes: int
    size: tuple[int, int]
    box: tuple[int, int, int, int] | None
    verdict: Verdict | None


@dataclass(frozen=True)
class Conversion:
    """A dataset as a format takes it.

    Attributes:
        hierarchy: of the items.
        items: read once; with ``at`` None each picture lies in ``data`` of the folder before its item comes.
        verdicts: of people; None where none were given.
        at: where the pictures lie elsewhere, as the tool takes it.
        facts: about the dataset, JSON-ready.
        boxes: whether some items may be parts of their pictures.
    """

    hierarchy: Hierarchy
    items: Iterator[ConvertedItem]
    verdicts: Verdicts | None
    at: str | None
    facts: Mapping[str, Any]
    boxes: bool


class Format(Protocol):
    """The writer of a tool's files: a module with this function."""

    def write(self, folder: Path, conversion: Conversion) -> None:
        """Write the files into a folder that is empty but for the pictures."""


FORMATS: Mapping[str, Format] = {"fiftyone": fiftyone, "label-studio": label_studio}


@dataclass(frozen=True)
class Converted:
    """Numbers of a conversion.

    Attributes:
        items: written.
        decided: of these somebody decided about, or about their classes.
        dropped: of these.
        elsewhere: items that were decided about one by one and are not among those written.
        pictures: written.
        picture_bytes: of these.
    """

    items: int
    decided: int
    dropped: int
    elsewhere: int
    pictures: int
    picture_bytes: int


def convert(
    dataset: ShardDataset,
    out: Path,
    kind: str,
    *,
    at: str | None = None,
    verdicts: Verdicts | None = None,
    progress: Progress = lambda *_: None,
) -> Converted:
    """Write a dataset for another tool; memory holds its index and a few hundred pictures.

    Args:
        dataset: opened with the levels that are wanted.
        out: new or empty folder, or an earlier conversion, which is replaced; it appears whole or not at all.
        kind: one of :data:`FORMATS`.
        at: where the pictures lie under their keys: for FiftyOne a folder, for Label Studio what stands before
            ``KEY.jpg``, an address for instance; None: they are written to ``out/data``.
        verdicts: of people, about this dataset.
        progress: called with a task, the number of items done and their total.

    Raises:
        ConfigError: ``out`` is not empty, or holds the working directory, or the format cannot hold the dataset.
        InputError: a picture cannot be read.
    """
    items = _Items(dataset, verdicts, progress)
    facts = {"name": dataset.manifest.name, "levels": list(dataset.levels), "items": len(dataset)}
    facts |= {"licence": dataset.manifest.provenance["licence"]} if "licence" in dataset.manifest.provenance else {}
    boxes = BOX[0] in dataset.frame.columns

    def fill(folder: Path) -> None:
        reading = items.read(folder / PICTURES if at is None else None)
        FORMATS[kind].write(folder, Conversion(dataset.hierarchy, reading, verdicts, at, facts, boxes))

    _write(out, fill)
    elsewhere = 0 if verdicts is None else len(verdicts.of_item) - items.given
    return Converted(len(dataset), items.decided, items.dropped, elsewhere, items.pictures, items.picture_bytes)


def convert_names(
    hierarchy: Hierarchy, out: Path, kind: str, *, source: str, verdicts: Verdicts | None = None
) -> Converted:
    """Write names without pictures, the finest level of a hierarchy, as texts to be put into the classes above.

    Args:
        hierarchy: of a build.
        out: as of :func:`convert`.
        kind: ``label-studio``.
        source: what the names are of, for people.
        verdicts: of people, about this hierarchy.

    Raises:
        ConfigError: ``out`` as of :func:`convert`, or the format shows pictures alone or cannot hold the hierarchy.
    """
    if kind != "label-studio":
        raise ConfigError(f"{source} holds names and no pictures, and {kind} shows pictures: take --to label-studio.")
    _write(out, lambda folder: label_studio.write_names(folder, hierarchy, verdicts, source))
    decided = [] if verdicts is None else list(verdicts.of_class.values())
    elsewhere = 0 if verdicts is None else len(verdicts.of_item)
    dropped = sum(verdict.path is None for verdict in decided)
    return Converted(hierarchy.num_classes[0], len(decided), dropped, elsewhere, 0, 0)


def _write(out: Path, fill: Callable[[Path], None]) -> None:
    """Write a conversion into a new folder, or in place of an earlier one."""
    if out.is_dir() and any(out.iterdir()) and not (out / _MARK).is_file():
        raise ConfigError(f"{out} is not empty, and holds no earlier conversion. Name a new folder.")
    if Path.cwd().is_relative_to(out.resolve()):
        raise ConfigError(f"{out}: the working directory is in it, and it is replaced whole. Name another folder.")

    def filled(folder: Path) -> None:
        fill(folder)
        (folder / _MARK).touch()

    write_folder(out, filled, flush=False)


class _Items:
    """The items of a dataset, in its order; their pictures are written as they are read."""

    def __init__(self, dataset: ShardDataset, verdicts: Verdicts | None, progress: Progress) -> None:
        self._dataset, self._verdicts, self._progress = dataset, verdicts, progress
        self.decided = self.dropped = self.given = self.pictures = self.picture_bytes = 0

    def read(self, folder: Path | None) -> Iterator[ConvertedItem]:
        """Yield the items, and write their pictures into a folder first; None: they are not read."""
        total = len(self._dataset)
        for start in range(0, total, _AT_ONCE):
            positions = np.arange(start, min(start + _AT_ONCE, total))
            rows = self._dataset.frame[start : start + len(positions)].to_dicts()
            if folder is not None:
                self._write(folder, rows, self._dataset.read_many(positions))
            for row, labels in zip(rows, self._dataset.labels[positions].tolist(), strict=True):
                yield self._item(row, labels)
            self._progress("convert", start + len(positions), total)

    def _write(self, folder: Path, rows: Sequence[Mapping[str, Any]], pictures: Sequence[bytes]) -> None:
        for row, data in zip(rows, pictures, strict=True):
            file = folder / _file(row)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
            self.picture_bytes += len(data)
        self.pictures += len(rows)

    def _item(self, row: Mapping[str, Any], labels: list[int]) -> ConvertedItem:
        split, key = row["split"], row["key"]
        verdict = None
        if self._verdicts is not None:
            given = self._verdicts.of_item.get((split, key))
            self.given += given is not None
            verdict = given or self._verdicts.of_class.get(labels[0])
        self.decided += verdict is not None
        self.dropped += verdict is not None and verdict.path is None
        turned = row["orientation"] >= 5
        size = (row["height"], row["width"]) if turned else (row["width"], row["height"])
        box = tuple(row[side] for side in BOX) if row.get(BOX[0]) is not None else None
        path = path_of(self._dataset.hierarchy, labels)
        return ConvertedItem(key, _file(row), split, path, row["size"], size, box, verdict)


def _file(row: Mapping[str, Any]) -> str:
    return f"{row['key']}.{row['suffix']}"

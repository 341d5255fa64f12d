"""Levels of a dataset from a build of a hierarchy (``--labels DIR``).

The items keep their finest class as the release gives it; the levels above it are those of the build's ``labels.csv``.
A class is looked up there by its text: as an id, as a name, then as a name whatever its case, with ``_`` for spaces. A
class that the build does not know, or that names several of its items with different labels, has no coarser labels; it
is counted and named, and its images stay.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from hgld.errors import ConfigError, TableError, some
from hgld.tables import CsvText

from ..hierarchy.names.name_classes import match_key
from .catalog import Catalog, check_level_names

LABELS = "labels.csv"
_BESIDE_LEVELS = ("id", "name")
_LABELS_OF_THEIR_OWN = ("gldv2", "inat-base", "inat-full")  # sources that read --labels themselves
_MOST_NAMED = 10
_Labels = tuple[str | None, ...]


def is_build(folder: Path, source: str) -> bool:
    """Tell whether the levels are those of a build of a hierarchy, and not of files that the source reads itself.

    Raises:
        ConfigError: the source reads no labels of its own, and the folder holds no build's.
    """
    own = source in _LABELS_OF_THEIR_OWN
    if (folder / LABELS).is_file():
        return not own or not any(folder.glob("*_label_to_hierarchical.csv"))
    if own:
        return False
    raise ConfigError(
        f"--labels {folder} holds no {LABELS}; expected the folder of a build of names of anything: hgld "
        f"build-hierarchy --classes FILE --out {folder}."
    )


@dataclass(frozen=True)
class BuildLabels:
    """The labels of a build.

    Attributes:
        file: ``labels.csv``.
        levels: those above the items, finest first.
        by_key: the labels of every id and name, and of every name in lower case with spaces for ``_``; None where they
            differ between items.
    """

    file: Path
    levels: tuple[str, ...]
    by_key: Mapping[str, _Labels | None]

    @classmethod
    def read(cls, folder: Path) -> "BuildLabels":
        """Read the labels of a build.

        Raises:
            TableError: its ``labels.csv`` cannot be read, or has no level.
            InputError: a level has a name that a dataset cannot have.
        """
        file = folder / LABELS
        table = CsvText.read(file)
        levels = tuple(column for column in table.columns if column not in _BESIDE_LEVELS)
        if not levels:
            raise TableError(f"{file} has the columns {', '.join(table.columns)}; expected id, name and levels.")
        check_level_names(levels, str(file))
        ids: dict[str, _Labels | None] = {}
        names: dict[str, _Labels | None] = {}
        loose: dict[str, _Labels | None] = {}
        for _, (id_, name, *cells) in table.select([*_BESIDE_LEVELS, *levels]):
            labels = tuple(cell or None for cell in cells)
            for found, key in ((ids, id_), (names, name), (loose, match_key(name))):
                found[key] = labels if found.get(key, labels) == labels else None
        return cls(file, levels, {**loose, **names, **ids})

    def of(self, text: str) -> tuple[_Labels | None, str]:
        """Return the labels of a class; or None, with the reason."""
        for key in (text, match_key(text)):
            if key in self.by_key:
                labels = self.by_key[key]
                return labels, "" if labels else "names several items with different labels"
        return None, "not in the build"


def with_levels_of(catalog: Catalog, folder: Path) -> Catalog:
    """Return a catalog with its finest level and the levels of a build.

    Raises:
        ConfigError: the finest level has the name of one of the build's.
        TableError: the build's labels cannot be read, or it knows none of the catalog's classes.
    """
    found = BuildLabels.read(folder)
    finest = catalog.levels[0]
    if finest in found.levels:
        raise ConfigError(
            f"--labels {folder}: the finest level of the dataset is {finest!r}, and so is one of the build's; give one "
            "of them another name with --levels."
        )
    classes = catalog.items[finest].drop_nulls().unique().sort().to_list()
    told = {name: found.of(name) for name in classes}
    known = {name: labels for name, (labels, _) in told.items() if labels is not None}
    if not known:
        shown = ", ".join(map(repr, classes[:3]))
        raise TableError(
            f"{found.file}: none of its ids and names is one of the {len(classes):,} classes of {finest!r}, as "
            f"{shown}. Is it the build of this dataset's names? Its names must be spelt as the classes are."
        )
    rows = [(name, *labels) for name, labels in known.items()]
    table = pl.DataFrame(rows, schema=dict.fromkeys([finest, *found.levels], pl.String), orient="row")
    items = catalog.items.drop(catalog.levels[1:]).join(table, on=finest, how="left", maintain_order="left")
    return replace(
        catalog,
        levels=(finest, *found.levels),
        items=items,
        notes=(*catalog.notes, *_notes(found, told, catalog.items[finest])),
        sources=(*catalog.sources, found.file),
    )


def _notes(found: BuildLabels, told: Mapping[str, tuple[_Labels | None, str]], labels: pl.Series) -> list[str]:
    """Return a note for each reason why classes have no coarser labels."""
    notes = []
    counts = dict(labels.drop_nulls().value_counts().iter_rows())
    for reason in ("not in the build", "names several items with different labels"):
        missing = [name for name, (_, why) in told.items() if why == reason]
        if missing:
            notes.append(
                f"{len(missing):,} of {len(told):,} classes with {sum(counts[name] for name in missing):,} images have "
                f"no labels from {found.file.name} ({reason}): {some(missing, _MOST_NAMED)}."
            )
    return notes

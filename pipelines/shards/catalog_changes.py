"""Change a catalog before it is built: draw splits by class, exclude items, join levels of a hierarchy build."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from hgld.data.format import short
from hgld.errors import ConfigError, TableError, quoted, some
from hgld.tables import CsvText

from ..hierarchy.names.clean import match_key
from .catalog import TRAIN, Catalog, check_level_names

VAL = "val"
CALIBRATION_CLASSES = 10  # number of classes that hgld calibrate needs
_VAL_AIM = 12  # number of classes for val: more than needed, because classes may have only one image or broken images
_MANY_CLASSES = 40  # if there are at least this many classes, val gets _VAL_AIM classes
_LONGEST_REASON = 500


def keep_splits(catalog: Catalog, splits: Sequence[str]) -> Catalog:
    """Return a catalog with only the named splits, or with all splits if none is named.

    Raises:
        ConfigError: the release does not have one of the splits.
    """
    there = catalog.items["split"].unique().sort().to_list()
    if unknown := [split for split in splits if split not in there]:
        raise ConfigError(
            f"{catalog.name} has no split {quoted(unknown[0])}; its splits are {', '.join(there)}. Correct --splits."
        )
    kept = catalog.items.filter(pl.col("split").is_in(list(splits))) if splits else catalog.items
    return catalog if len(kept) == len(catalog.items) else catalog.with_items(kept)


def draw_classes(
    classes: Iterable[str], fraction: float, seed: int | Sequence[int], option: str = "--test-classes"
) -> frozenset[str]:
    """Draw classes for another split; the order and number of the items do not matter.

    Args:
        classes: names of the finest classes, in any order, repeats allowed.
        fraction: share of the classes to draw, between 0 and 1, rounded to whole classes; at least one class is drawn
            and one class is left.
        seed: the same seed and classes give the same draw.
        option: name of the option with the fraction, for the message.

    Raises:
        ConfigError: the fraction is not between 0 and 1, or there are fewer than two classes.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"{option} is {fraction:g}; expected a fraction between 0 and 1, for instance 0.5.")
    names = sorted(set(classes))
    if len(names) < 2:
        raise ConfigError(f"there are {len(names)} finest classes; a class-disjoint split needs at least two.")
    count = min(max(round(fraction * len(names)), 1), len(names) - 1)
    order = np.random.default_rng(seed).permutation(len(names))
    return frozenset(names[i] for i in order[:count])


def default_parts(classes: int) -> tuple[float, float]:
    """Return the default values of ``--test-classes`` and ``--val-classes`` for a number of classes.

    A quarter of the classes is test (half of four or five classes). Val gets 15% of all classes, and at least 12 if
    there are 40 or more, because ``hgld calibrate`` needs 10. With fewer than 40 classes, val gets a third of the
    classes left. With fewer than seven classes there is no val split; with fewer than four classes there is no test
    split either.

    Args:
        classes: number of the finest classes.
    """
    if classes < 4:
        return 0.0, 0.0
    test = 0.5 if classes < 6 else 0.25
    rest = classes - round(test * classes)
    if classes < _MANY_CLASSES:
        return test, 0.33 if classes >= 7 else 0.0
    return test, max(0.2, math.ceil(100 * _VAL_AIM / rest) / 100)


def _seed_of_val(seed: int) -> tuple[int, int]:
    """Return the seed for drawing val classes; it differs from the seed for drawing test classes."""
    return seed, 1


def with_val_classes(catalog: Catalog, fraction: float, seed: int) -> Catalog:
    """Return a catalog in which a part of the training classes is the split ``val``.

    ``val`` shares no finest class with any other split: training classes that another split also has are not drawn. All
    other splits stay unchanged.

    Args:
        catalog: catalog of the release, with all of its splits.
        fraction: share of the drawable classes.
        seed: seed of the draw.

    Raises:
        ConfigError: the fraction is not between 0 and 1, fewer than two classes are left to draw from, or the release
            has a val split of its own or no training split.
    """
    there, finest = catalog.items["split"].unique().sort().to_list(), catalog.levels[0]
    if VAL in there:
        raise ConfigError(f"{catalog.name} already has a split {VAL}; omit --val-classes.")
    if TRAIN not in there:
        raise ConfigError(
            f"{catalog.name}: --val-classes takes classes of the split {TRAIN}, but the splits are "
            f"{', '.join(there)}. Omit it."
        )
    in_train = pl.col("split") == TRAIN
    classes = catalog.items.filter(in_train)[finest].drop_nulls().unique()
    elsewhere = catalog.items.filter(~in_train)[finest].drop_nulls().unique()
    free = classes.filter(~classes.is_in(elsewhere.implode()))
    drawn = draw_classes(free, fraction, _seed_of_val(seed), "--val-classes")
    moved = in_train & pl.col(finest).is_in(sorted(drawn)).fill_null(value=False)
    items = catalog.items.with_columns(split=pl.when(moved).then(pl.lit(VAL)).otherwise("split"))
    note = (
        f"{len(drawn):,} of the {len(classes):,} classes of {TRAIN}, with {(items['split'] == VAL).sum():,} of its "
        f"{(catalog.items['split'] == TRAIN).sum():,} items, are the split {VAL}, drawn by the seed {seed}."
    )
    notes = [*catalog.notes, note]
    if len(drawn) < CALIBRATION_CLASSES:
        notes.append(
            f"val has {len(drawn)} classes, and hgld calibrate needs {CALIBRATION_CLASSES}: raise --val-classes."
        )
    return replace(catalog, items=items, notes=tuple(notes), disjoint=catalog.disjoint or there == [TRAIN])


def without_leaks(catalog: Catalog, drawn: Sequence[str]) -> Catalog:
    """Return a catalog without the training items that may show a class of a drawn split.

    Such an item has no finest label, and its coarser labels do not exclude the classes of these splits. It becomes a
    dropped file.

    Args:
        catalog: catalog of the release.
        drawn: splits that were drawn by class.
    """
    finest, *coarser = catalog.levels
    held = catalog.items.filter(pl.col("split").is_in(list(drawn)))
    is_open = (pl.col("split") == TRAIN) & pl.col(finest).is_null()
    for level in coarser:
        # if a class of these splits has no known parent at this level, the level excludes no item
        parents = held.drop_nulls(finest).group_by(finest).agg(pl.col(level).drop_nulls().n_unique())[level]
        if (parents > 0).all():
            above = held[level].drop_nulls().unique().implode()
            is_open &= pl.col(level).is_null() | pl.col(level).is_in(above)
    out = catalog.items.filter(is_open)
    if held.is_empty() or out.is_empty():
        return catalog
    return _without(catalog, out, f"no {finest}: may show a class of {' or '.join(sorted(drawn))}", pl.lit(""))


def _without(catalog: Catalog, out: pl.DataFrame, reason: str, detail: pl.Expr) -> Catalog:
    """Return a catalog in which some items are dropped for a reason."""
    dropped = out.select("file", "split", reason=pl.lit(reason), detail=detail)
    before = [] if catalog.dropped is None else [catalog.dropped.select(dropped.columns)]
    left = catalog.items.filter(~pl.col("key").is_in(out["key"].implode()))
    return replace(catalog.with_items(left), dropped=pl.concat([*before, dropped]))


def without_excluded(catalog: Catalog, file: Path) -> Catalog:
    """Return a catalog without the items of a list; each of these items becomes a dropped file with its reason.

    Args:
        catalog: catalog of the release.
        file: CSV with the column ``key`` (the keys in the dataset's index) and optionally ``reason``, written by ``hgld
            audit`` or by people. A note names keys that no item has.

    Raises:
        TableError: the list cannot be read, has an empty key, or names no item; or no item is left.
    """
    table, reasons = CsvText.read(file), {}
    for line, (key, *reason) in table.select(["key", "reason"] if "reason" in table.columns else ["key"]):
        if not key.strip():
            raise TableError(f"{file}, line {line}: an empty key; expected the key of an item. Delete the line.")
        reasons.setdefault(key.strip(), " ".join(" ".join(reason).split())[:_LONGEST_REASON])
    items = catalog.items
    out = items.filter(pl.col("key").is_in(list(reasons)))
    unknown = sorted(reasons.keys() - set(out["key"]))
    if out.is_empty():
        raise TableError(
            f"{file}: none of its {len(reasons):,} keys is an item of {catalog.name!r}; expected keys such as "
            f"{short(items['key'][0])}, as in the dataset's index.parquet. Is it the list of another dataset?"
        )
    if len(out) == len(items):
        raise TableError(f"{file}: excludes all {len(items):,} items of {catalog.name!r}. Remove some lines.")
    details = {key: f"{key}: {reason}" for key, reason in reasons.items() if reason}
    notes = [f"{len(out):,} items are excluded because {file.name} lists them."]
    if unknown:
        notes.append(f"{len(unknown):,} keys of {file.name} are not items of this build: {some(map(short, unknown))}.")
    return replace(
        _without(catalog, out, "excluded", pl.col("key").replace(details)),
        notes=(*catalog.notes, *notes),
        sources=(*catalog.sources, file),
    )


# -- levels of a build of a hierarchy (--labels DIR) ------------------------------------------------------------------

LABELS = "labels.csv"
_READ_OWN_LABELS = ("gldv2", "inat-base", "inat-full")  # sources that read --labels themselves
_Labels = tuple[str | None, ...]


def is_build(folder: Path, source: str) -> bool:
    """Tell whether a folder of labels is a hierarchy build; otherwise the source reads its files itself.

    Raises:
        ConfigError: the source reads no labels of its own, and the folder is not a hierarchy build.
    """
    own = source in _READ_OWN_LABELS
    if (folder / LABELS).is_file():
        return not own or not any(folder.glob("*_label_to_hierarchical.csv"))
    if own:
        return False
    raise ConfigError(
        f"--labels {folder} holds no {LABELS}; expected the folder of a build of class names. Make one with hgld "
        f"build-hierarchy --classes FILE --out {folder}."
    )


def with_levels_of(catalog: Catalog, folder: Path) -> Catalog:
    """Return a catalog with its finest level and, above it, the levels of a build's ``labels.csv``.

    A class is looked up in ``labels.csv`` by its text: as an id, then as a name, then as a name regardless of letter
    case, repeated spaces and ``_`` for spaces. A class has no coarser labels if the build does not know it, or has
    several items of this name with different labels. A note counts and names such classes; their images stay.

    Raises:
        ConfigError: the finest level has the same name as a level of the build.
        TableError: the build's labels cannot be read, or it knows none of the catalog's classes.
        InputError: a level of the build has a name that a dataset cannot have.
    """
    file, finest = folder / LABELS, catalog.levels[0]
    levels, by_key = _read_labels(file)
    if finest in levels:
        raise ConfigError(
            f"--labels {folder}: the finest level of the dataset and a level of the build are both called {finest!r}; "
            "give one of them another name with --levels."
        )
    counts: dict[str, int] = dict(catalog.items[finest].drop_nulls().value_counts().sort(finest).iter_rows())
    found = {name: next((key for key in (name, match_key(name)) if key in by_key), None) for name in counts}
    rows = [(name, *labels) for name, key in found.items() if key is not None and (labels := by_key[key])]
    if not rows:
        raise TableError(
            f"{file}: none of its ids and names is one of the {len(counts):,} classes of {finest!r} (such "
            f"as {some(map(repr, counts), 3)}). Give the folder of a build of this dataset's class names."
        )
    reasons = {
        "not in the build": [name for name, key in found.items() if key is None],
        "names several items with different labels": [n for n, key in found.items() if key and not by_key[key]],
    }
    notes = [
        f"{len(names):,} of {len(counts):,} classes with {sum(counts[name] for name in names):,} images have no labels "
        f"from {file.name} ({reason}): {some(names, 10)}."
        for reason, names in reasons.items()
        if names
    ]
    table = pl.DataFrame(rows, schema=dict.fromkeys([finest, *levels], pl.String), orient="row")
    return replace(
        catalog,
        levels=(finest, *levels),
        items=catalog.items.drop(catalog.levels[1:]).join(table, on=finest, how="left", maintain_order="left"),
        notes=(*catalog.notes, *notes),
        sources=(*catalog.sources, file),
    )


def _read_labels(file: Path) -> tuple[tuple[str, ...], dict[str, _Labels | None]]:
    """Return a build's levels above the items, and its labels by id and name (None if a name has different labels)."""
    table = CsvText.read(file)
    levels = tuple(column for column in table.columns if column not in ("id", "name"))
    if not levels:
        raise TableError(f"{file} has the columns {', '.join(table.columns)}; expected id, name and levels.")
    check_level_names(levels, str(file))
    ids: dict[str, _Labels | None] = {}
    names: dict[str, _Labels | None] = {}
    loose: dict[str, _Labels | None] = {}
    for _, (id_, name, *cells) in table.select(["id", "name", *levels]):
        labels = tuple(cell or None for cell in cells)
        for found, key in ((ids, id_), (names, name), (loose, match_key(name))):
            found[key] = labels if found.get(key, labels) == labels else None
    return levels, {**loose, **names, **ids}

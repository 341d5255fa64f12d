"""Splits by class: some of the finest classes go to another split, with all of their items."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from hgld.errors import ConfigError

from .catalog import TRAIN, Catalog

if TYPE_CHECKING:
    from .config import SourceConfig

VAL = "val"


def draw_classes(
    classes: Iterable[str], fraction: float, seed: int | Sequence[int], option: str = "--test-classes"
) -> frozenset[str]:
    """Draw classes for another split; the order and number of the items do not matter.

    Args:
        classes: names of the finest classes, in any order, repeats allowed.
        fraction: part of the classes to draw, between 0 and 1, rounded to the nearest class; at least one is drawn and
            one left.
        seed: the same seed and classes give the same draw.
        option: that states the fraction, for the message.

    Raises:
        ConfigError: the fraction is not between 0 and 1, or there are fewer than two classes.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"{option} is {fraction:g}; expected a fraction between 0 and 1, for instance 0.5.")
    names = sorted(set(classes))
    if len(names) < 2:
        raise ConfigError(f"there are {len(names)} finest classes; a class-disjoint split needs two at least.")
    count = min(max(round(fraction * len(names)), 1), len(names) - 1)
    order = np.random.default_rng(seed).permutation(len(names))
    return frozenset(names[i] for i in order[:count])


def for_adapter(options: "SourceConfig") -> "SourceConfig":
    """Return the options for an adapter, which knows nothing of ``val_classes``: what becomes val is train to it."""
    if not options.val_classes:
        return options
    splits = dict.fromkeys(TRAIN if split == VAL else split for split in options.splits)
    return replace(options, val_classes=0.0, splits=tuple(splits))


def with_val_classes(catalog: Catalog, options: "SourceConfig") -> Catalog:
    """Return a catalog in which a part of the training classes is the split ``val``.

    ``val`` shares no finest class with ``train`` or with any other split: classes of train that another split has too
    are not drawn. Items of train without a finest class stay there. All other splits are as they were.

    Args:
        catalog: of the release.
        options: ``val_classes``, the part of the classes that could be drawn; ``seed``; ``splits``.

    Raises:
        ConfigError: the fraction is not between 0 and 1; the release has a val split of its own or no training split,
            or ``splits`` hides classes that must not be drawn.
        InputError: fewer than two classes are left to draw from.
    """
    there, finest = catalog.items["split"].unique().sort().to_list(), catalog.levels[0]
    if VAL in there:
        raise ConfigError(f"{catalog.name} has a split {VAL} of its own; leave --val-classes out.")
    if TRAIN not in there:
        raise ConfigError(
            f"{catalog.name}: --val-classes takes classes of the split {TRAIN}, and the splits are {', '.join(there)}. "
            f"Leave it out, or name {TRAIN} in --splits."
        )
    if options.splits and not catalog.disjoint:
        raise ConfigError(
            f"{catalog.name}: its splits share classes, and {VAL} must share none with any of them. Leave --splits out."
        )
    in_train = pl.col("split") == TRAIN
    classes = catalog.items.filter(in_train)[finest].drop_nulls().unique()
    elsewhere = catalog.items.filter(~in_train)[finest].drop_nulls().unique()
    free = classes.filter(~classes.is_in(elsewhere.implode()))
    # Another stream than that of --test-classes, which draws from the same names.
    drawn = draw_classes(free, options.val_classes, (options.seed, 1), "--val-classes")
    moved = in_train & pl.col(finest).is_in(sorted(drawn)).fill_null(value=False)
    items = catalog.items.with_columns(split=pl.when(moved).then(pl.lit(VAL)).otherwise("split"))
    note = (
        f"{len(drawn):,} of the {len(classes):,} classes of {TRAIN}, with {(items['split'] == VAL).sum():,} of its "
        f"{(catalog.items['split'] == TRAIN).sum():,} items, are the split {VAL}, drawn by the seed {options.seed}."
    )
    if options.splits:
        items = items.filter(pl.col("split").is_in(options.splits))
    return replace(
        catalog.with_items(items),
        notes=(*catalog.notes, note),
        disjoint=catalog.disjoint or there == [TRAIN],
    )

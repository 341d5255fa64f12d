"""A taxonomy given with ``--tree``: the class of every name in it, for the class graph or as the levels themselves.

An item's class is the one whose id is the item's own; else the one of its name, letters' case and underscores aside.
Where no class is called so, further names count (synonyms, vernacular names). A name that several classes have means
the most usual one where the format says which that is (WordNet's senses); else it has no class, and is listed.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

from hgld.errors import ConfigError, HierarchyError
from hgld.hierarchy import FILE, Hierarchy
from hgld.taxonomy.formats import read_taxonomy
from hgld.taxonomy.graph import Taxonomy
from hgld.taxonomy.levels import EvenLevels, even_levels

from ..config import TreeConfig
from .classes import Item
from .landmark_tables import CLASSES
from .name_classes import (
    SEVERAL,
    NameClasses,
    match_key,
    names_without_class,
    one_class_a_name,
    tally,
)

NOT_THERE = "not-in-tree"
_SAME_ID, _SAME_NAME, _FURTHER_NAME, _USUAL = "by id", "by name", "by a further name", "by its most usual meaning"


def read_tree(config: TreeConfig) -> Taxonomy:
    """Read the taxonomy of ``--tree``.

    Raises:
        ConfigError: none is given, or the format is none.
        InputError: it is not a taxonomy.
    """
    if config.tree is None:
        raise ConfigError("--tree is not given; expected a file or folder with a taxonomy.")
    return read_taxonomy(config.tree, config.tree_format, columns=config.tree_columns)


def tree_files(config: TreeConfig) -> list[Path]:
    """Return the files of ``--tree`` whose contents are stated in the provenance; of a folder tree there are none."""
    place = config.tree
    if place is None or not place.exists():
        return []
    if place.is_file():
        return [place]
    return [file for name in (FILE, "data.noun", "index.noun") if (file := place / name).is_file()]


def classes_in_tree(taxonomy: Taxonomy, config: TreeConfig, items: Sequence[Item]) -> NameClasses:
    """Find the classes of items in a taxonomy.

    Args:
        taxonomy: as read.
        config: where it is to be the levels, items without a class, or without one at the first level above, have a
            status of their own, by which they are dropped.
        items: the names.

    Raises:
        HierarchyError: no name is in the tree; or, for the levels, as :func:`hgld.taxonomy.levels.even_levels`.
    """
    places, how = _places(taxonomy, items)
    if not places:
        raise HierarchyError(
            f"{taxonomy.source}: none of the {len(items):,} names is a class of it, for instance "
            f"{', '.join(repr(item.name[:60]) for item in items[:3])}; it has {len(taxonomy):,} classes, for instance "
            f"{', '.join(map(repr, taxonomy.names[:3]))}. Is it the tree of these names, read in the right format "
            f"({taxonomy.format})?"
        )
    of, how = one_class_a_name(items, {item: taxonomy.ids[place] for item, place in places.items()}, how)
    statuses = {}
    if config.tree_use == "levels":
        statuses = {item.id: how[item.id] for item in items if item.id not in of}
        group_of = group_labels(tree_levels(taxonomy, config, of.values()))
        statuses |= {item: "no-class-above" for item, class_id in of.items() if class_id not in group_of}
    key = {"tree": taxonomy.fingerprint(), "use": config.tree_use}
    if config.tree_use == "levels":
        key |= {"parents": config.parents, "cut": config.cut}
    return NameClasses(of, how, _graph(taxonomy, set(of.values())), statuses, key, _notes(taxonomy, how, items, of))


def tree_levels(
    taxonomy: Taxonomy, config: TreeConfig, class_ids: Iterable[str], names: Sequence[str] = ()
) -> EvenLevels:
    """Return the levels above the classes of the names, by the rules of the options.

    Args:
        taxonomy: as read.
        config: the rules.
        class_ids: of the names.
        names: of the levels, finest first; empty: those of the rules.

    Raises:
        ConfigError: the names are not as many as the levels.
        HierarchyError: the rules do not suit the taxonomy, or no level is above the names.
    """
    position = {class_id: place for place, class_id in enumerate(taxonomy.ids)}
    items = [position[class_id] for class_id in sorted(set(class_ids))]
    found = even_levels(taxonomy, parents=config.parents, cut=config.cut, levels=names, items=items)
    if len(found.hierarchy.levels) < 2:
        raise HierarchyError(
            f"{taxonomy.source}: it has no level above the names by {found.cut}. Choose another --cut, or "
            "--tree-use evidence."
        )
    return found


def group_labels(found: EvenLevels) -> dict[str, list[str | None]]:
    """Return the labels at every level above the finest by class id; without the classes that have no first one."""
    hierarchy: Hierarchy = found.hierarchy
    rows = hierarchy.expand(range(hierarchy.num_classes[0]))[:, 1:]
    labels = {}
    for place, row in zip(found.nodes[0].tolist(), rows.tolist(), strict=True):
        if row[0] >= 0:
            named = [hierarchy.names[c][label] if label >= 0 else None for c, label in enumerate(row, 1)]
            labels[found.taxonomy.ids[place]] = named
    return labels


def _places(taxonomy: Taxonomy, items: Sequence[Item]) -> tuple[dict[str, int], dict[str, str]]:
    """Return the position of each item's class by the item's id, and how it was found or why there is none."""
    by_id = {class_id: place for place, class_id in enumerate(taxonomy.ids)}
    named: dict[str, dict[int, None]] = {}
    further: dict[str, dict[int, None]] = {}
    for place, name in enumerate(taxonomy.names):
        named.setdefault(match_key(name), {})[place] = None
    for name, meant in taxonomy.synonyms.items():
        further.setdefault(match_key(name), {}).update(dict.fromkeys(meant))
    if taxonomy.by_usage:  # their order says more than whose first name it is
        named = {key: meant for key, meant in named.items() if key not in further}
    places, how = {}, {}
    for item in items:
        key = match_key(item.name)
        meant = list(named.get(key) or further.get(key, ()))
        if item.id != item.name and item.id in by_id:
            places[item.id], how[item.id] = by_id[item.id], _SAME_ID
        elif len(meant) == 1 or (meant and taxonomy.by_usage):
            places[item.id] = meant[0]
            how[item.id] = (
                _USUAL if len(meant) > 1 else _SAME_NAME if key in named or taxonomy.by_usage else _FURTHER_NAME
            )
        else:
            how[item.id] = SEVERAL if meant else NOT_THERE
    return places, how


def _graph(taxonomy: Taxonomy, class_ids: set[str]) -> pl.DataFrame:
    """Return these classes and all above them as a table of classes."""
    position = {class_id: place for place, class_id in enumerate(taxonomy.ids)}
    kept = {position[class_id] for class_id in class_ids}
    front = list(kept)
    while front:
        front = [p for p in {parent for place in front for parent in taxonomy.parents[place]} if p not in kept]
        kept.update(front)
    rows = sorted(
        (taxonomy.ids[p], taxonomy.names[p], None, [taxonomy.ids[above] for above in taxonomy.parents[p]]) for p in kept
    )
    return pl.DataFrame(rows, schema=CLASSES, orient="row")


def _notes(taxonomy: Taxonomy, how: dict[str, str], items: Sequence[Item], of: dict[str, str]) -> tuple[str, ...]:
    read = f"{taxonomy.format} with {len(taxonomy):,} classes"
    notes = [f"the tree ({read}) has classes for {len(of):,} of {len(items):,} items: {tally(how)}."]
    reasons = {NOT_THERE: "not in the tree", SEVERAL: "of several classes in the tree"}
    return (*notes, *names_without_class(items, how, reasons))

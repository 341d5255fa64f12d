"""Rules that turn a taxonomy of any shape into levels, and count their changes.

Several parents (``parents``): ``refuse`` raises an error with the names of the classes. ``first`` keeps the first
parent in the file. ``most-specific`` keeps the parent with the longest path to the top (at a tie, the first of these
parents).

Uneven depth (``cut``) has three rules for the levels above the finest level:

- ``root:2,1``: the ancestors 2 and 1 steps below the top. The finest level has the classes without children. ``root``
  alone uses all depths, but no top level with a single class, because such a level distinguishes nothing.
- ``leaves:1,2``: the ancestors 1 and 2 steps above the finest class. A single top class is in no level.
- ``ranks:species,family,order``: the classes of these ranks; the first rank is the finest level. ``ranks`` alone uses
  all ranks of the file.

If a class has no ancestor at a level, the class itself is also a class of that level. With ``ranks``, this needs
an ancestor at a coarser level; otherwise its class at the level is unknown (-1).
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import polars as pl

from hgld.errors import ConfigError, HierarchyError, check_choice, quoted, some
from hgld.hierarchy import Hierarchy
from hgld.taxonomy.graph import Taxonomy, distinct_names, short

ParentsRule = Literal["refuse", "first", "most-specific"]
MOST_LEVELS = 64
_CHANGES = pl.Schema({"id": pl.String, "name": pl.String, "what": pl.String, "detail": pl.String})
_Changes = list[tuple[str, str, str, str]]


@dataclass(frozen=True)
class EvenLevels:
    """The levels made from a taxonomy, and the changes that the rules made.

    Attributes:
        hierarchy: the levels; class ids follow the sorted names of a level, but ids in hgld's own files are kept.
        taxonomy: the taxonomy that was read.
        nodes: per level, the position of each class in the taxonomy.
        parents: the rule for several parents.
        cut: the rule for uneven depth, with its depths or ranks.
        counts: number of changes per reason; the changes made by the reader come first.
        changes: one row per class that a rule changed, with id, name, type of change (``what``) and ``detail``.
    """

    hierarchy: Hierarchy
    taxonomy: Taxonomy
    nodes: tuple[np.ndarray, ...]
    parents: str
    cut: str
    counts: dict[str, int]
    changes: pl.DataFrame


def levels_as_they_are(hierarchy: Hierarchy, taxonomy: Taxonomy) -> EvenLevels:
    """Return a hierarchy that needs no rules.

    Args:
        hierarchy: hierarchy with even levels.
        taxonomy: the same classes, finest level first, in the order of their ids.
    """
    ends = np.cumsum((0, *hierarchy.num_classes))
    nodes = tuple(np.arange(first, last) for first, last in itertools.pairwise(ends))
    cut = f"ranks:{','.join(hierarchy.levels)}"
    return EvenLevels(hierarchy, taxonomy, nodes, "refuse", cut, {}, pl.DataFrame(schema=_CHANGES))


def even_levels(
    taxonomy: Taxonomy,
    *,
    parents: ParentsRule = "refuse",
    cut: str = "",
    levels: Sequence[str] = (),
    items: Sequence[int] | np.ndarray | None = None,
) -> EvenLevels:
    """Turn a taxonomy into levels.

    Args:
        taxonomy: taxonomy of any shape.
        parents: rule for classes with several parents.
        cut: rule for uneven depth; empty: ``ranks`` if every class has a rank, else ``root``.
        levels: names of the levels, finest first. If ``cut`` is ``root`` or ``leaves`` without numbers, they also set
            the number of levels.
        items: positions of the classes of the finest level, with or without children; the rule ``ranks`` then selects
            only levels above them. Default: the classes without children; with ``ranks``, the classes of the finest
            rank.

    Raises:
        ConfigError: a rule is invalid, or the number of names differs from the number of levels.
        HierarchyError: a class has several parents and the rule is ``refuse``, or the taxonomy lacks what a rule needs.
    """
    changes: _Changes = []
    above = _choose_parents(taxonomy, parents, changes)
    rule, marks = _parse_cut(taxonomy, cut)
    finest = taxonomy.leaves.tolist() if items is None else np.unique(np.asarray(items, dtype=np.int64)).tolist()
    if rule == "ranks":
        named = list(marks) or _rank_order(taxonomy, above)
        if items is not None and all(taxonomy.ranks[place] == named[0] for place in finest):
            named = named[1:]  # leave out the finest rank, because it is the rank of the items
        rows = _by_ranks(taxonomy, above, named, None if items is None else finest)
        spelt, default = f"ranks:{','.join(named)}", (*(("class",) if items is not None else ()), *named)
    else:
        tops = [place for place, parent in enumerate(above) if parent < 0]
        lone = tops[0] if len(tops) == 1 and len(taxonomy) > 1 else -1
        ways = [list(_path_up(above, place)) for place in finest]
        deepest = max(map(len, ways), default=1) - 2  # depth of the deepest parent of a finest class
        numbers = _step_numbers(taxonomy, rule, marks, len(levels), range(int(lone >= 0), deepest + 1))
        rows = []
        for way in ways:
            if rule == "root":
                rows.append([way[0], *(way[max(len(way) - 1 - number, 0)] for number in numbers)])
            else:
                end = len(way) - 1 - (way[-1] == lone and len(way) > 1)
                rows.append([way[0], *(way[min(number, end)] for number in numbers)])
        spelt = f"{rule}:{','.join(map(str, numbers))}" if numbers else rule
        default = ("class", *(f"{'depth' if rule == 'root' else 'height'} {n}" for n in numbers))
    if levels and len(levels) != len(default):
        raise ConfigError(
            f"{taxonomy.source}: {len(levels)} level names ({', '.join(levels)}) for {len(default)} levels "
            f"({', '.join(default)}). Give as many names, or choose other levels with --cut."
        )
    table = np.array(rows, dtype=np.int64).reshape(len(rows), len(default))
    return _make_levels(taxonomy, tuple(levels) or default, table, (parents, spelt), changes, is_whole=items is None)


def _choose_parents(taxonomy: Taxonomy, rule: str, changes: _Changes) -> list[int]:
    """Choose one parent for each class, and return its position; -1 at the top."""
    check_choice("parents", rule, get_args(ParentsRule))
    several, names = taxonomy.with_several_parents, taxonomy.names
    if several and rule == "refuse":
        shown = (
            f"{short(names[p])} under " + " and ".join(short(names[q]) for q in taxonomy.parents[p][:5])
            for p in several
        )
        raise HierarchyError(
            f"{taxonomy.source}: {len(several):,} classes have several parents: {some(shown, separator='; ')}. A "
            "hierarchy has one per class: choose --parents first or most-specific, or correct the file."
        )
    above = [parents[0] if parents else -1 for parents in taxonomy.parents]
    for place in several:
        candidates = taxonomy.parents[place]
        if rule == "most-specific":
            # of several equally specific parents, max returns the first
            above[place] = max(candidates, key=lambda parent: taxonomy.steps_to_top[parent])
        others = [names[parent] for parent in candidates if parent != above[place]]
        detail = f"kept {names[above[place]]}, left out {' | '.join(others)}"
        changes.append((taxonomy.ids[place], names[place], "several parents", detail))
    return above


def _path_up(above: Sequence[int], place: int) -> Iterator[int]:
    while place >= 0:
        yield place
        place = above[place]


def _parse_cut(taxonomy: Taxonomy, cut: str) -> tuple[str, tuple[str, ...]]:
    """Return the name of the rule and its values: ranks, or numbers of steps."""
    rule, colon, marks = cut.partition(":")
    if not cut:
        return ("ranks" if all(taxonomy.ranks) else "root"), ()
    listed = tuple(mark.strip() for mark in marks.split(",")) if colon else ()
    is_valid = rule in ("root", "leaves", "ranks") and all(listed) and len(set(listed)) == len(listed)
    if rule != "ranks":
        are_numbers = all(mark.isascii() and mark.isdigit() and len(mark) < 5 for mark in listed)
        is_valid = is_valid and are_numbers and not (rule == "leaves" and "0" in listed)
    if not is_valid:
        raise ConfigError(
            f"cut is {quoted(cut)}; expected root, root:2,1 (steps below the top), leaves:1,2 (steps above the finest "
            "classes, from 1 on), ranks or ranks:species,family (finest first), each value once."
        )
    return rule, listed


def _step_numbers(taxonomy: Taxonomy, rule: str, marks: tuple[str, ...], count: int, depths: range) -> list[int]:
    """Return the depths (or heights) of the levels above the finest level, finest first.

    Args:
        taxonomy: the taxonomy, for messages.
        rule: origin of the steps: ``root`` or ``leaves``.
        marks: the numbers in the rule. Without numbers, ``root`` takes all depths and ``leaves`` height 1; if levels
            are named, both rules take as many numbers as the level names need.
        count: number of level names; 0: the levels have no names.
        depths: the depths that can become levels. A lone root is excluded; the last depth is the depth of the deepest
            parent of a finest class.
    """
    numbers = sorted(map(int, marks), reverse=rule == "root")
    if not marks and rule == "root":
        numbers = list(reversed(depths))
        numbers = numbers[max(len(numbers) - (count - 1), 0) :] if count else numbers
    elif not marks:
        numbers = list(range(1, count or 2))
    if len(numbers) >= MOST_LEVELS:
        raise HierarchyError(
            f"{taxonomy.source}: {len(numbers) + 1} levels; expected {MOST_LEVELS} at most. Choose some of them, for "
            "instance --cut root:2,1."
        )
    return numbers


def _rank_order(taxonomy: Taxonomy, above: Sequence[int]) -> list[str]:
    """Return all ranks, finest first. Ranks whose classes are never above each other keep the order of the file."""
    ranks = taxonomy.ranks
    if not any(ranks):
        raise HierarchyError(f"{taxonomy.source}: no class has a rank. Choose --cut root or leaves.")
    below: dict[str, set[str]] = {rank: set() for rank in ranks if rank}
    if len(below) > MOST_LEVELS:
        raise HierarchyError(
            f"{taxonomy.source}: {len(below):,} ranks; choose at most {MOST_LEVELS} of them with --cut ranks:A,B,C."
        )
    nearest = list[str | None](ranks)
    for place in taxonomy.order:
        upper = nearest[above[place]] if above[place] >= 0 else None
        rank = ranks[place]
        if rank and upper:
            below[upper].add(rank)
        nearest[place] = rank or upper
    order: list[str] = []
    while len(order) < len(below):
        free = next((r for r in below if r not in order and not below[r] - set(order)), None)
        if free is None:
            left = [r for r in below if r not in order]
            raise HierarchyError(
                f"{taxonomy.source}: the ranks {some(map(short, left))} are above as well as below each other, so they "
                f"have no order. Choose the ranks to use: --cut ranks:{','.join(left[:2])}."
            )
        order.append(free)
    return order


def _by_ranks(
    taxonomy: Taxonomy, above: Sequence[int], named: Sequence[str], finest: Sequence[int] | None
) -> list[list[int]]:
    """Return one row per class of these ranks: its class at every level, -1 if unknown or finer than its rank.

    Args:
        taxonomy: taxonomy with ranks.
        above: position of each class's parent.
        named: the ranks, finest first.
        finest: classes of a finer level below these ranks; None: there is no such level.
    """
    levels = {rank: c for c, rank in enumerate(named, int(finest is not None))}
    own = [levels.get(rank, -1) if rank else -1 for rank in taxonomy.ranks]
    if lacking := [rank for rank, c in levels.items() if c not in set(own)]:
        known = sorted({r for r in taxonomy.ranks if r})
        raise HierarchyError(
            f"{taxonomy.source}: no class has the rank {short(lacking[0])}; found {some(map(short, known)) or 'none'}."
        )
    last, rows = len(named) - (finest is None), []
    for item in range(len(taxonomy)) if finest is None else finest:
        start = own[item] if finest is None else 0
        if start < 0:
            continue
        row, way, here = [*[-1] * start, item], list(_path_up(above, item)), 0
        for c in range(start + 1, last + 1):
            ranked = [own[place] for place in way[here:]]
            if c in ranked:
                here += ranked.index(c)
            elif max(ranked) < c:  # the item's class is unknown at all coarser levels too
                row += [-1] * (last + 1 - c)
                break
            row.append(way[here])
        rows.append(row)
    return rows


def _make_levels(
    taxonomy: Taxonomy,
    levels: tuple[str, ...],
    table: np.ndarray,
    rules: tuple[str, str],
    changes: _Changes,
    *,
    is_whole: bool,
) -> EvenLevels:
    """Build the levels from a table of positions in the taxonomy.

    Args:
        taxonomy: the taxonomy.
        levels: names of the L levels.
        table: (N, L) positions: one row per finest class, one column per level; -1: unknown.
        rules: the rules for several parents and for uneven depth.
        changes: the changes so far; this function appends to them.
        is_whole: True if every class should have a level; classes without a level are then counted.
    """
    ids, plain = taxonomy.ids, taxonomy.names
    counts = {**taxonomy.counts}
    if changes:
        counts["classes under several parents"] = len(changes)
        counts["parents left out"] = sum(len(taxonomy.parents[p]) - 1 for p in taxonomy.with_several_parents)
    nodes, names, labels = [], [], []
    for c, (level, column) in enumerate(zip(levels, table.T, strict=True)):
        known = np.unique(column[column >= 0])
        distinct, renamed = distinct_names([plain[p] for p in known], [ids[p] for p in known])
        order = sorted(range(len(known)), key=distinct.__getitem__)
        label = np.full(len(taxonomy) + 1, -1, dtype=np.int64)  # index -1 reads the last entry, so -1 stays -1
        label[known[order]] = np.arange(len(known))
        nodes.append(known[order])
        names.append([distinct[i] for i in order])
        labels.append(label[column])
        if renamed:
            counts[f"names of several classes at {level}"] = renamed
            for p, name in zip(known.tolist(), distinct, strict=True):
                if name != plain[p]:
                    changes.append((ids[p], plain[p], "name of several classes", f"{level}: {name}"))
        alone = np.unique(column[(column >= 0) & (column == table[:, c - 1])]) if c else known[:0]
        if alone.size:
            counts[f"stand for themselves at {level}"] = len(alone)
            changes += [(ids[p], plain[p], "stands for itself", level) for p in alone]
    left = np.setdiff1d(np.arange(len(taxonomy)), np.concatenate(nodes))
    if left.size and is_whole:
        counts["classes at no level"] = len(left)
        changes += [(ids[p], plain[p], "at no level", "") for p in left]
    hierarchy = Hierarchy.from_labels(np.stack(labels, axis=1), levels, names)
    listed = pl.DataFrame(changes, schema=_CHANGES, orient="row").sort("what", "id", "detail")
    return EvenLevels(hierarchy, taxonomy, tuple(nodes), *rules, counts, listed)

"""Even levels out of a taxonomy of any shape: a rule for several parents, a rule for uneven depth, counts of both.

Several parents (``parents``): ``refuse`` names them and stops. ``first`` keeps the first parent in the file.
``most-specific`` keeps the parent with the longest path to the top (the first of equals), so never an ancestor of
another parent.

Uneven depth (``cut``): the levels above the finest one are

- ``root:2,1``: the ancestors so many steps below the top. The finest level has the classes that nothing lies
  below. ``root`` alone takes all depths, but for a top of one class, which tells nothing apart;
- ``leaves:1,2``: the ancestors so many steps above the finest class; such a single top class is no class of a level;
- ``ranks:species,family,order``: the classes of these ranks, the finest level too. ``ranks`` alone takes all ranks
  that the file has.

Where a class has no ancestor at a level, it stands for itself there; nothing is claimed about what it shares with
others. By ranks this needs one of a coarser level above it; without, the level is unknown (-1).
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import polars as pl

from hgld.errors import ConfigError, HierarchyError, quoted, some
from hgld.hierarchy import Hierarchy
from hgld.taxonomy.graph import Taxonomy, distinct_names, short

ParentsRule = Literal["refuse", "first", "most-specific"]
MOST_LEVELS = 64
_CHANGES = pl.Schema({"id": pl.String, "name": pl.String, "what": pl.String, "detail": pl.String})
_Changes = list[tuple[str, str, str, str]]


@dataclass(frozen=True)
class EvenLevels:
    """A taxonomy's hierarchy, and what the rules did to get there.

    Attributes:
        hierarchy: class ids follow the sorted names of a level; hgld's own files keep theirs.
        taxonomy: the taxonomy that was read.
        nodes: for every level the position in the taxonomy of each class.
        parents: the rule for several parents.
        cut: the rule for uneven depth, depths and ranks spelt out.
        counts: number of changes per rule, after the counts of reading.
        changes: every class that a rule touched: id, name, what, detail.
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
    """Make even levels of a taxonomy.

    Args:
        taxonomy: taxonomy of any shape.
        parents: rule for classes under several parents.
        cut: rule for uneven depth; empty: ``ranks`` if every class has one, else ``root``.
        levels: names of the levels, finest first; by ``root`` and ``leaves`` without numbers their number says how many
            levels there are.
        items: positions of the classes of the finest level, even if they have children; None: the classes without
            children, by ranks those of the finest rank. The ranks are then those above the items.

    Raises:
        ConfigError: a rule is not one of the rules, or the names are not as many as the levels.
        HierarchyError: a class has several parents and the rule refuses, or the taxonomy is not what the rule needs.
    """
    changes: _Changes = []
    above = _one_parent(taxonomy, parents, changes)
    rule, marks = _parse_cut(taxonomy, cut)
    finest = taxonomy.leaves.tolist() if items is None else np.unique(np.asarray(items, dtype=np.int64)).tolist()
    if rule == "ranks":
        named = list(marks) or _rank_order(taxonomy, above)
        if items is not None and all(taxonomy.ranks[place] == named[0] for place in finest):
            named = named[1:]  # the items' own rank
        rows = _by_ranks(taxonomy, above, named, None if items is None else finest)
        spelt, default = f"ranks:{','.join(named)}", (*(("class",) if items is not None else ()), *named)
    else:
        tops = [place for place, parent in enumerate(above) if parent < 0]
        lone = tops[0] if len(tops) == 1 and len(taxonomy) > 1 else -1
        ways = {place: list(_way_up(above, place)) for place in finest}
        deepest = max(map(len, ways.values()), default=1) - 2  # depth of what lies above them
        numbers = _numbers(taxonomy, rule, marks, len(levels), int(lone >= 0), deepest)
        rows = []
        for place, way in ways.items():
            if rule == "root":
                rows.append([place, *(way[max(len(way) - 1 - number, 0)] for number in numbers)])
            else:
                way = way[:-1] if way[-1] == lone and len(way) > 1 else way
                rows.append([place, *(way[min(number, len(way) - 1)] for number in numbers)])
        spelt = f"{rule}:{','.join(map(str, numbers))}" if numbers else rule
        default = ("class", *(f"{'depth' if rule == 'root' else 'height'} {n}" for n in numbers))
    if levels and len(levels) != len(default):
        raise ConfigError(
            f"{taxonomy.source}: {len(levels)} level names ({', '.join(levels)}) for {len(default)} levels "
            f"({', '.join(default)}). Name as many, or choose others with --cut."
        )
    table = np.array(rows, dtype=np.int64).reshape(len(rows), len(default))
    found = _leveled(taxonomy, tuple(levels) or default, table, (parents, spelt), changes)
    if items is None:
        return found
    counts = {what: number for what, number in found.counts.items() if what != "classes at no level"}  # not asked for
    return replace(found, counts=counts, changes=found.changes.filter(pl.col("what") != "at no level"))


def _one_parent(taxonomy: Taxonomy, rule: str, changes: _Changes) -> list[int]:
    """Return the position of each class's one parent, -1 at the top."""
    if rule not in get_args(ParentsRule):
        raise ConfigError(f"parents is {quoted(rule)}; expected one of {', '.join(get_args(ParentsRule))}.")
    torn, names = taxonomy.with_several_parents, taxonomy.names
    if torn and rule == "refuse":
        shown = (
            f"{short(names[p])} under " + " and ".join(short(names[q]) for q in taxonomy.parents[p][:5]) for p in torn
        )
        raise HierarchyError(
            f"{taxonomy.source}: {len(torn):,} classes have several parents: {some(shown, separator='; ')}. A "
            "hierarchy has one per class: choose --parents first or most-specific, or correct the file."
        )
    above = [parents[0] if parents else -1 for parents in taxonomy.parents]
    for place in torn:
        candidates = taxonomy.parents[place]
        if rule == "most-specific":
            above[place] = max(candidates, key=lambda parent: taxonomy.steps_to_top[parent])  # the first of equals
        left = [names[parent] for parent in candidates if parent != above[place]]
        detail = f"kept {names[above[place]]}, left out {' | '.join(left)}"
        changes.append((taxonomy.ids[place], names[place], "several parents", detail))
    return above


def _way_up(above: Sequence[int], place: int) -> Iterator[int]:
    while place >= 0:
        yield place
        place = above[place]


def _parse_cut(taxonomy: Taxonomy, cut: str) -> tuple[str, tuple[str, ...]]:
    rule, colon, marks = cut.partition(":")
    if not cut:
        return ("ranks" if all(taxonomy.ranks) else "root"), ()
    listed = tuple(mark.strip() for mark in marks.split(",")) if colon else ()
    if rule not in ("root", "leaves", "ranks") or not all(listed) or len(set(listed)) != len(listed):
        raise ConfigError(
            f"cut is {quoted(cut)}; expected root, root:2,1 (steps below the top), leaves:1,2 (steps above the finest "
            "classes), ranks or ranks:species,family (finest first), each mark once."
        )
    if rule != "ranks" and not all(mark.isascii() and mark.isdigit() and len(mark) < 5 for mark in listed):
        raise ConfigError(f"cut is {quoted(cut)}; expected whole numbers of steps, as in {rule}:2,1.")
    return rule, listed


def _numbers(taxonomy: Taxonomy, rule: str, marks: tuple[str, ...], levels: int, first: int, deepest: int) -> list[int]:
    """Return the depths (or heights) of the levels above the finest one, finest first.

    Args:
        taxonomy: the taxonomy, for messages.
        rule: ``root`` or ``leaves``.
        marks: the numbers that the rule states; none: all depths, or one height.
        levels: number of levels that are named; 0: none are.
        first: least depth that tells classes apart.
        deepest: largest depth of a class above the finest ones.
    """
    numbers = sorted(map(int, marks), reverse=rule == "root")
    if not marks and rule == "root":
        numbers = list(range(deepest, first - 1, -1))
        numbers = numbers[max(len(numbers) - (levels - 1), 0) :] if levels else numbers
    elif not marks:
        numbers = list(range(1, levels or 2))
    if rule == "leaves" and numbers and not numbers[0]:
        raise ConfigError("cut is leaves:0,...; expected steps from 1 on: the finest classes are a level anyway.")
    if len(numbers) >= MOST_LEVELS:
        raise HierarchyError(
            f"{taxonomy.source}: {len(numbers) + 1} levels; expected {MOST_LEVELS} at most. Choose some of them, for "
            "instance --cut root:2,1."
        )
    return numbers


def _rank_order(taxonomy: Taxonomy, above: Sequence[int]) -> list[str]:
    """Return all ranks, finest first: a rank precedes those above it; else the order of the file counts."""
    ranks = taxonomy.ranks
    if not any(ranks):
        raise HierarchyError(f"{taxonomy.source}: no class has a rank. Choose --cut root or leaves.")
    below: dict[str, set[str]] = {rank: set() for rank in ranks if rank}
    if len(below) > MOST_LEVELS:
        raise HierarchyError(
            f"{taxonomy.source}: {len(below):,} ranks; name {MOST_LEVELS} of them at most, with --cut ranks:A,B,C."
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
                f"{taxonomy.source}: the ranks {some(map(short, left))} lie above as well as below each other, so they "
                f"have no order. Name those to take: --cut ranks:{','.join(left[:2])}."
            )
        order.append(free)
    return order


def _by_ranks(
    taxonomy: Taxonomy, above: Sequence[int], named: Sequence[str], finest: Sequence[int] | None
) -> list[list[int]]:
    """Return for each class of these ranks its class at every level, -1 if unknown or finer than its rank.

    Args:
        taxonomy: taxonomy with ranks.
        above: each class's one parent.
        named: the ranks, finest first.
        finest: classes that are a level of their own, below these ranks; None: there is none.
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
        row, way, here = [*[-1] * start, item], list(_way_up(above, item)), 0
        for c in range(start + 1, last + 1):
            ranked = [own[place] for place in way[here:]]
            if c in ranked:
                here += ranked.index(c)
            elif max(ranked) < c:  # no coarser class is known, either
                row += [-1] * (last + 1 - c)
                break
            row.append(way[here])
        rows.append(row)
    return rows


def _leveled(
    taxonomy: Taxonomy, levels: tuple[str, ...], table: np.ndarray, rules: tuple[str, str], changes: _Changes
) -> EvenLevels:
    """Return the levels of a table of positions in the taxonomy, one row per finest class, -1 if unknown."""
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
        label = np.full(len(taxonomy) + 1, -1, dtype=np.int64)  # the last one: -1 stays -1
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
    if left.size:
        counts["classes at no level"] = len(left)
        changes += [(ids[p], plain[p], "at no level", "") for p in left]
    hierarchy = Hierarchy.from_labels(np.stack(labels, axis=1), levels, names)
    listed = pl.DataFrame(changes, schema=_CHANGES, orient="row").sort("what", "id", "detail")
    return EvenLevels(hierarchy, taxonomy, tuple(nodes), *rules, counts, listed)

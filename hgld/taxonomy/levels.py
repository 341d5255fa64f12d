"""Even levels out of a taxonomy of any shape: a rule for several parents, a rule for uneven depth, counts of both.

Several parents (``parents``): ``refuse`` names them and stops; ``first`` keeps the first in the file; ``most-specific``
the one with the longest way up to the top, the first of equals, so never one that lies above another.

Uneven depth (``cut``): the levels above the finest one are

- ``root:2,1``: the ancestors so many steps below the top. The finest level is that of the classes that nothing lies
  below. ``root`` alone takes all depths, but for a top of one class, which tells nothing apart;
- ``leaves:1,2``: the ancestors so many steps above the finest class; such a single top class is no class of a level;
- ``ranks:species,family,order``: the classes of these ranks, the finest level too. ``ranks`` alone takes all ranks
  that the file has.

Where a class has no ancestor at a level, it stands for itself there; nothing is claimed about what it shares with
others. By ranks this needs one of a coarser level above it; without, the level is unknown (-1).
"""

import itertools
from collections.abc import Sequence
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


@dataclass(frozen=True)
class EvenLevels:
    """A taxonomy's hierarchy, and what the rules did to get there.

    Attributes:
        hierarchy: class ids follow the sorted names of a level; hgld's own files keep theirs.
        taxonomy: as it was read.
        nodes: for every level the position in the taxonomy of each class.
        parents: the rule for several parents.
        cut: the rule for uneven depth, depths and ranks spelt out.
        counts: how often the rules did something, by what it was; those of reading first.
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
        hierarchy: of even levels.
        taxonomy: the same classes, finest level first, in the order of their ids.
    """
    ends = np.cumsum((0, *hierarchy.num_classes))
    nodes = tuple(np.arange(first, last) for first, last in itertools.pairwise(ends))
    cut = f"ranks:{','.join(hierarchy.levels)}"
    return EvenLevels(hierarchy, taxonomy, nodes, "refuse", cut, {}, _table([]))


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
        taxonomy: of any shape.
        parents: rule for classes under several parents.
        cut: rule for uneven depth; empty: ``ranks`` where every class has one, else ``root``.
        levels: names of the levels, finest first; by ``root`` and ``leaves`` without numbers their number says how many
            levels there are.
        items: positions of the classes that are the finest level, whatever lies below them; None: those that nothing
            lies below, by ranks those of the finest rank. The ranks are then those above the items.

    Raises:
        ConfigError: a rule is not one of the rules, or the names are not as many as the levels.
        HierarchyError: a class has several parents and the rule refuses, or the taxonomy is not what the rule needs.
    """
    changes: list[tuple[str, str, str, str]] = []
    above = _one_parent(taxonomy, parents, changes)
    rule, marks = _parse_cut(taxonomy, cut)
    finest = taxonomy.leaves if items is None else np.unique(np.asarray(items, dtype=np.int64))
    if rule == "ranks":
        named = list(marks) or _rank_order(taxonomy, above)
        if items is not None and all(taxonomy.ranks[place] == named[0] for place in finest.tolist()):
            named = named[1:]  # the items' own rank
        columns = _by_ranks(taxonomy, above, named, None if items is None else finest)
        spelt, default = f"ranks:{','.join(named)}", (*(("class",) if items is not None else ()), *named)
    else:
        numbers = _numbers(taxonomy, above, rule, marks, len(levels), finest)
        columns = _by_steps(taxonomy, above, rule, numbers, finest)
        spelt = f"{rule}:{','.join(map(str, numbers))}" if numbers else rule
        default = ("class", *(f"{'depth' if rule == 'root' else 'height'} {n}" for n in numbers))
    if levels and len(levels) != len(columns):
        raise ConfigError(
            f"{taxonomy.source}: {len(levels)} names of levels ({', '.join(levels)}) for {len(columns)} levels "
            f"({', '.join(default)}). Name as many, or choose others with --cut."
        )
    found = _leveled(taxonomy, tuple(levels) or default, columns, (parents, spelt), changes)
    return found if items is None else _of_items(found)


# -- several parents ---------------------------------------------------------------------------------------------------


def _one_parent(taxonomy: Taxonomy, rule: str, changes: list[tuple[str, str, str, str]]) -> np.ndarray:
    """Return the position of each class's one parent, -1 at the top."""
    if rule not in get_args(ParentsRule):
        raise ConfigError(f"parents is {quoted(rule)}; expected one of {', '.join(get_args(ParentsRule))}.")
    torn = taxonomy.with_several_parents
    if torn and rule == "refuse":
        raise HierarchyError(
            f"{taxonomy.source}: {len(torn):,} classes lie under several parents: "
            + some(
                (
                    f"{short(taxonomy.names[p])} under " + " and ".join(short(taxonomy.names[q]) for q in above[:5])
                    for p, above in ((p, taxonomy.parents[p]) for p in torn)
                ),
                separator="; ",
            )
            + ". A hierarchy has one a class: choose --parents first or most-specific, or correct the file."
        )
    above = np.array([parents[0] if parents else -1 for parents in taxonomy.parents], dtype=np.int64)
    for place in torn:
        candidates = taxonomy.parents[place]
        if rule == "most-specific":
            above[place] = max(candidates, key=lambda parent: taxonomy.steps_to_top[parent])  # the first of equals
        left = [taxonomy.names[parent] for parent in candidates if parent != above[place]]
        detail = f"kept {taxonomy.names[above[place]]}, left out {' | '.join(left)}"
        changes.append((taxonomy.ids[place], taxonomy.names[place], "several parents", detail))
    return above


# -- uneven depth ------------------------------------------------------------------------------------------------------


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


def _lone_top(taxonomy: Taxonomy, above: np.ndarray) -> int:
    """Return the position of the one class at the top if there are others, else -1."""
    top = np.flatnonzero(above < 0)
    return int(top[0]) if len(top) == 1 and len(taxonomy) > 1 else -1


def _depths(taxonomy: Taxonomy, above: np.ndarray) -> np.ndarray:
    depths = np.zeros(len(taxonomy), dtype=np.int64)
    for place in taxonomy.order.tolist():
        if above[place] >= 0:
            depths[place] = depths[above[place]] + 1
    return depths


def _numbers(
    taxonomy: Taxonomy, above: np.ndarray, rule: str, marks: tuple[str, ...], levels: int, finest: np.ndarray
) -> list[int]:
    """Return the depths (or heights) of the levels above the finest one, finest first."""
    numbers = sorted(map(int, marks), reverse=rule == "root")
    if not marks:
        lone = _lone_top(taxonomy, above) >= 0
        deepest = int(_depths(taxonomy, above)[finest].max(initial=0)) - 1  # of what lies above them
        if rule == "root":
            numbers = list(range(deepest, int(lone) - 1, -1))
            numbers = numbers[max(len(numbers) - (levels - 1), 0) :] if levels else numbers
        else:
            numbers = list(range(1, levels or 2))
    if rule == "leaves" and numbers and not numbers[0]:
        raise ConfigError("cut is leaves:0,...; expected steps from 1 on: the finest classes are a level anyway.")
    if len(numbers) >= MOST_LEVELS:
        raise HierarchyError(
            f"{taxonomy.source}: {len(numbers) + 1} levels; expected {MOST_LEVELS} at most. Choose some of them, for "
            "instance --cut root:2,1."
        )
    return numbers


def _by_steps(
    taxonomy: Taxonomy, above: np.ndarray, rule: str, numbers: list[int], finest: np.ndarray
) -> list[np.ndarray]:
    """Return for each level the position of each finest class's class there."""
    lone = _lone_top(taxonomy, above)
    depths = _depths(taxonomy, above)
    climbed = above.copy()
    if rule == "leaves" and lone >= 0:
        climbed[climbed == lone] = -1
    columns, now = [finest], finest
    height = 0
    for number in numbers:
        steps = number - height if rule == "leaves" else max(int(depths[now].max(initial=0)) - number, 0)
        for _ in range(steps):
            rises = climbed[now] >= 0 if rule == "leaves" else depths[now] > number
            if not rises.any():
                break
            now = np.where(rises, climbed[now], now)
        height = number
        columns.append(now)
    return columns


def _rank_order(taxonomy: Taxonomy, above: np.ndarray) -> list[str]:
    """Return all ranks, finest first: a rank that lies below another comes before it, else the order of the file."""
    ranks = taxonomy.ranks
    if not any(ranks):
        raise HierarchyError(f"{taxonomy.source}: no class has a rank. Choose --cut root or leaves.")
    below: dict[str, set[str]] = {rank: set() for rank in ranks if rank}
    if len(below) > MOST_LEVELS:
        raise HierarchyError(
            f"{taxonomy.source}: {len(below):,} ranks; name {MOST_LEVELS} of them at most, with --cut ranks:A,B,C."
        )
    nearest = list[str | None](ranks)
    for place in taxonomy.order.tolist():
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
    taxonomy: Taxonomy, above: np.ndarray, named: Sequence[str], finest: np.ndarray | None
) -> list[np.ndarray]:
    """Return for each level and every class of these ranks its class there, -1 where unknown or finer than its rank.

    Args:
        taxonomy: with ranks.
        above: each class's one parent.
        named: the ranks, finest first.
        finest: classes that are a level of their own, below these ranks; None: there is none.
    """
    position = {rank: c for c, rank in enumerate(named)}
    own = np.array([position.get(rank, -1) if rank else -1 for rank in taxonomy.ranks], dtype=np.int64)
    for rank, c in position.items():
        if not (own == c).any():
            known = sorted({r for r in taxonomy.ranks if r})
            raise HierarchyError(
                f"{taxonomy.source}: no class has the rank {short(rank)}; found {some(map(short, known)) or 'none'}."
            )
    nearest = np.full((len(named), len(taxonomy)), -1, dtype=np.int64)  # nearest class of a rank, itself included
    depths = _depths(taxonomy, above)
    for depth in range(int(depths.max(initial=0)) + 1):
        here = np.flatnonzero(depths == depth)
        if depth:
            nearest[:, here] = nearest[:, above[here]]
        ranked = here[own[here] >= 0]
        nearest[own[ranked], ranked] = ranked
    items = np.flatnonzero(own >= 0) if finest is None else finest
    columns = [np.where(own[items] == 0, items, -1)] if finest is None else [finest]
    for c in range(finest is None, len(named)):
        below, here = columns[-1], np.full(len(items), -1, dtype=np.int64)
        known = below >= 0
        here[known] = nearest[c, below[known]]
        if c + 1 < len(named):
            coarser = np.zeros(len(items), dtype=bool)
            coarser[known] = (nearest[c + 1 :, below[known]] >= 0).any(axis=0)
            here = np.where((here < 0) & coarser, below, here)
        columns.append(np.where(own[items] == c, items, here) if finest is None else here)
    return columns


# -- the hierarchy -----------------------------------------------------------------------------------------------------


def _leveled(
    taxonomy: Taxonomy,
    levels: tuple[str, ...],
    columns: list[np.ndarray],
    rules: tuple[str, str],
    changes: list[tuple[str, str, str, str]],
) -> EvenLevels:
    parents, cut = rules
    counts = {**taxonomy.counts}
    if changes:
        counts["classes under several parents"] = len(changes)
        counts["parents left out"] = sum(len(taxonomy.parents[p]) - 1 for p in taxonomy.with_several_parents)
    nodes, names, labels = [], [], []
    for c, (level, column) in enumerate(zip(levels, columns, strict=True)):
        known = np.unique(column[column >= 0])
        distinct, renamed = distinct_names([taxonomy.names[p] for p in known], [taxonomy.ids[p] for p in known])
        order = sorted(range(len(known)), key=distinct.__getitem__)
        label = np.full(len(taxonomy) + 1, -1, dtype=np.int64)  # the last one: -1 stays -1
        label[known[order]] = np.arange(len(known))
        nodes.append(known[order])
        names.append([distinct[i] for i in order])
        labels.append(label[column])
        if renamed:
            counts[f"names of several classes at {level}"] = renamed
            changes += [
                (taxonomy.ids[p], taxonomy.names[p], "name of several classes", f"{level}: {name}")
                for p, name in zip(known, distinct, strict=True)
                if name != taxonomy.names[p]
            ]
        alone = np.unique(column[(column >= 0) & (column == columns[c - 1])]) if c else known[:0]
        if alone.size:
            counts[f"stand for themselves at {level}"] = len(alone)
            changes += [(taxonomy.ids[p], taxonomy.names[p], "stands for itself", level) for p in alone]
    left = np.setdiff1d(np.arange(len(taxonomy)), np.concatenate(nodes))
    if left.size:
        counts["classes at no level"] = len(left)
        changes += [(taxonomy.ids[p], taxonomy.names[p], "at no level", "") for p in left]
    hierarchy = Hierarchy.from_labels(np.stack(labels, axis=1), levels, names)
    return EvenLevels(hierarchy, taxonomy, tuple(nodes), parents, cut, counts, _table(changes))


def _of_items(found: EvenLevels) -> EvenLevels:
    """Return what was found without the classes that lie above none of the items: they were not asked for."""
    counts = {what: number for what, number in found.counts.items() if what != "classes at no level"}
    return replace(found, counts=counts, changes=found.changes.filter(pl.col("what") != "at no level"))


def _table(changes: list[tuple[str, str, str, str]]) -> pl.DataFrame:
    return pl.DataFrame(changes, schema=_CHANGES, orient="row").sort("what", "id", "detail")

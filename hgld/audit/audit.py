"""The audit of a labelled set of images: wrong labels, faults of the hierarchy, copies across splits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import polars as pl
from torch import Tensor

from hgld.audit.class_faults import ClassFault, find_class_faults
from hgld.audit.label_noise import LabelNoise, find_wrong_labels
from hgld.audit.posterior import decoy_posterior
from hgld.errors import InputError
from hgld.evaluation.neighbors import nearest_neighbors
from hgld.evaluation.options import Progress
from hgld.evaluation.scores import prepare_embeddings
from hgld.hierarchy import Hierarchy

TRAIN = "train"
_CANDIDATES = 5  # possible copies of an image that are looked at
_MADE = 200  # copies that are made to see how much copies are alike
_LOST = 0.01  # share of them that a pair is less alike than: no copy
_FEWEST_ITEMS = 20


def _silent(task: str, done: int, total: int | None) -> None:
    """Tell nobody."""


class Pictures(Protocol):
    """A comparison of the pictures themselves (:class:`hgld.audit.picture_copies.PictureCopies`)."""

    def nearest(self, queries: np.ndarray, references: np.ndarray, k: int) -> np.ndarray: ...

    def alike(self, pairs: np.ndarray) -> np.ndarray: ...

    def of_copies(self, items: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class AuditOptions:
    """Options of an audit.

    Attributes:
        probability: from which a finding is listed.
        progress: called with a task, the units done and their total.
    """

    probability: float = 0.5
    progress: Progress = _silent


@dataclass(frozen=True, eq=False)
class Audit:
    """Findings of an audit, the most probable first.

    Attributes:
        levels: finest first.
        keys: of the N items.
        judged: number of those with a known finest class.
        images: wrong labels: item (its index), key, split, level (the coarsest at which it is probably wrong), given
            and proposed (classes there), given_finest, proposed_finest, probability (at that level), neighbors,
            neighbors_given and neighbors_proposed (of the nearest items, how many are of these classes there),
            near_given and near_proposed (the nearest items of these finest classes).
        classes: faults of the hierarchy: kind (``one``, ``two``, ``parent``), level, class, other, probability, items,
            evidence, first_items and second_items (some items of both sides), second_classes (of ``two``: the finest
            classes that lie in the second part for the most).
        copies: items of different splits that are probably copies: item, key, split, other, other_key, other_split,
            probability, alike, same_class.
        labels: (N,) rows item, key, and the probability that the label is wrong at each level; NaN: not judged.
        rates: share of wrong labels: level, rate, low, high (95%).
        notes: what was not judged, and why.
    """

    levels: tuple[str, ...]
    keys: tuple[str, ...]
    judged: int
    images: pl.DataFrame
    classes: pl.DataFrame
    copies: pl.DataFrame
    labels: pl.DataFrame
    rates: pl.DataFrame
    notes: tuple[str, ...]

    def noted(self, note: str) -> "Audit":
        """Return the audit with one more note."""
        return replace(self, notes=(*self.notes, note))

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as a JSON-ready dictionary."""
        tables = {name: getattr(self, name).to_dicts() for name in ("rates", "images", "classes", "copies")}
        return {
            "levels": list(self.levels),
            "items": len(self.keys),
            "judged": self.judged,
            **tables,
            "notes": [*self.notes],
        }


def audit(
    embeddings: Tensor | np.ndarray,
    labels: np.ndarray,
    *,
    levels: Sequence[str],
    names: Sequence[Sequence[str]] | None = None,
    keys: Sequence[str] | None = None,
    splits: Sequence[str] | None = None,
    pictures: Pictures | None = None,
    options: AuditOptions = AuditOptions(),  # frozen
) -> Audit:
    """Look for wrong labels, faults of the hierarchy and copies across splits.

    Args:
        embeddings: (N, D) of any floating dtype.
        labels: (N, L) class ids, finest first, -1 where unknown.
        levels: names of the levels.
        names: class names a level; the ids as text if None.
        keys: of the items; their indices as text if None.
        splits: of the items; None: copies are not looked for.
        pictures: compares the pictures themselves; None: copies are judged by the embeddings alone.
        options: see there.

    Raises:
        InputError: embeddings and labels do not belong together, or too few items have a known finest class.
        HierarchyError: a class has two parents.

    >>> import numpy as np
    >>> from hgld.audit import audit
    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat(np.arange(12), 10)[:, None] // [1, 4]
    >>> embeddings = np.eye(12)[labels[:, 0]] + 0.1 * rng.standard_normal((120, 12))
    >>> labels[3] = [7, 1]
    >>> found = audit(embeddings, labels, levels=["fine", "coarse"])
    >>> found.images.select("item", "level", "given", "proposed").rows()
    [(3, 'coarse', '1', '0')]
    """
    table = np.asarray(labels)
    unit = prepare_embeddings(embeddings, "item").numpy()
    if len(unit) != len(table):
        raise InputError(
            f"{len(unit)} embeddings come with {len(table)} rows of labels; expected one row an embedding."
        )
    tree = Hierarchy.from_labels(table, levels, names)
    judged = np.flatnonzero(table[:, 0] >= 0)
    if len(judged) < _FEWEST_ITEMS:
        raise InputError(
            f"{len(judged)} of {len(table)} items have a known class at level {levels[0]!r}; an audit takes "
            f"{_FEWEST_ITEMS} at least. Name other --levels, or other labels."
        )
    notes = []
    if len(judged) < len(table):
        notes.append(f"{len(table) - len(judged)} items without a known {levels[0]} are not judged.")
    present, classes = np.unique(table[judged, 0], return_inverse=True)
    ancestors, ids = _ancestors(tree, present)
    items = _Items(judged, unit, table, tree, ids, keys, splits)
    noise = find_wrong_labels(unit[judged], classes, ancestors, options.progress)
    options.progress("judge classes", 0, None)
    faults = list(find_class_faults(unit[judged], classes, ancestors))
    for level, name in enumerate(levels):
        kinds = {fault.kind for fault in faults if fault.level == level}
        lacking = [
            k for k in ("one", "two", "parent") if k not in kinds and not (k == "parent" and level + 1 == len(levels))
        ]
        if lacking:
            notes.append(f"{name}: too few classes to judge by ({', '.join(lacking)}).")
    copies = _no_copies()
    if splits is None or len(set(splits)) < 2:
        notes.append("copies across splits are not looked for: there is one split.")
    else:
        copies = _copies(items, pictures, options)
    bound = options.probability
    return Audit(
        tuple(levels),
        tuple(map(items.key, range(len(table)))),
        len(judged),
        _wrong_images(items, noise, classes, ancestors, bound),
        _class_table(items, [fault for fault in faults if fault.probability >= bound]),
        copies,
        _all_labels(items, noise),
        _rate_table(levels, noise),
        tuple(notes),
    )


@dataclass(frozen=True, eq=False)
class _Items:
    """The items of an audit, and the classes of those that are judged (``ids``: by level, their own numbers)."""

    judged: np.ndarray
    unit: np.ndarray
    table: np.ndarray
    tree: Hierarchy
    ids: list[np.ndarray]
    keys: Sequence[str] | None
    splits: Sequence[str] | None

    def key(self, item: int) -> str:
        return str(item) if self.keys is None else str(self.keys[item])

    def split(self, item: int) -> str:
        return "" if self.splits is None else str(self.splits[item])

    def name(self, level: int, label: int) -> str:
        """Return the name of a class by its number in the audit; unknown ones have none."""
        own = self.ids[level][label]
        return self.tree.names[level][own] if own >= 0 else ""


def _ancestors(tree: Hierarchy, present: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return (C, L) numbers of the present classes and of those above, and the class ids behind these numbers.

    A class whose parent is unknown has one of its own there, with the id -1: nothing else is known to share it.
    """
    expanded = tree.expand(present)
    columns, ids = [], []
    for column in expanded.T:
        known = column.astype(np.int64)
        alone = np.where(known < 0, known.max() + 1 + np.arange(len(known)), known)
        kept, numbers = np.unique(alone, return_inverse=True)
        columns.append(numbers)
        ids.append(np.where(kept > known.max(), -1, kept))
    return np.stack(columns, axis=1), ids


def _wrong_images(
    items: _Items, noise: LabelNoise, classes: np.ndarray, ancestors: np.ndarray, bound: float
) -> pl.DataFrame:
    rows = []
    for row in np.flatnonzero(np.nanmax(noise.wrong, axis=1, initial=0.0) >= bound):
        given = int(classes[row])
        level = _coarsest_wrong(items, noise, int(row), ancestors[given], bound)
        if level < 0:
            continue
        proposed = int(noise.proposed[row, level])
        here, there = int(ancestors[given, level]), int(ancestors[proposed, level])
        near = ancestors[classes[noise.neighbors[row]], level]
        item = int(items.judged[row])
        rows.append(
            {
                "item": item,
                "key": items.key(item),
                "split": items.split(item),
                "level": items.tree.levels[level],
                "given": items.name(level, here),
                "proposed": items.name(level, there),
                "given_finest": items.name(0, given),
                "proposed_finest": items.name(0, proposed),
                "probability": float(noise.wrong[row, level]),
                "neighbors": len(near),
                "neighbors_given": int((near == here).sum()),
                "neighbors_proposed": int((near == there).sum()),
                "near_given": _nearest_of(items, item, np.flatnonzero(classes == given)),
                "near_proposed": _nearest_of(items, item, np.flatnonzero(classes == proposed)),
            }
        )
    text, number = pl.String, pl.Int64
    schema = {"item": number, **dict.fromkeys(("key", "split", "level", "given", "proposed"), text)}
    schema |= {"given_finest": text, "proposed_finest": text, "probability": pl.Float64}
    schema |= dict.fromkeys(("neighbors", "neighbors_given", "neighbors_proposed"), number)
    schema |= dict.fromkeys(("near_given", "near_proposed"), pl.List(number))
    return pl.DataFrame(rows, schema=schema).sort("probability", "item", descending=[True, False])


def _coarsest_wrong(items: _Items, noise: LabelNoise, row: int, given: np.ndarray, bound: float) -> int:
    """Return the coarsest level at which a label is known and probably wrong; -1 for none."""
    likely = [level for level in np.flatnonzero(noise.wrong[row] >= bound) if items.ids[level][given[level]] >= 0]
    return int(likely[-1]) if likely else -1


_SHOWN_ITEMS = 8
_SHOWN_NEAREST = 4


def _nearest_of(items: _Items, item: int, rows: np.ndarray) -> list[int]:
    """Return the items among some judged rows that are nearest to an item, itself left out."""
    others = items.judged[rows]
    others = others[others != item]
    order = np.argsort(-(items.unit[others] @ items.unit[item]), kind="stable")
    return others[order[:_SHOWN_NEAREST]].tolist()


def _class_table(items: _Items, faults: Sequence[ClassFault]) -> pl.DataFrame:
    rows = []
    for fault in faults:
        above = fault.level + (fault.kind == "parent")
        name = items.name(fault.level, fault.label)
        other = "" if fault.other < 0 else items.name(above, fault.other)
        if not name or (fault.other >= 0 and not other):
            continue
        first, second = (
            [int(item) for item in items.judged[part[:: max(1, len(part) // _SHOWN_ITEMS)][:_SHOWN_ITEMS]]]
            for part in fault.parts
        )
        rows.append(
            {
                "kind": fault.kind,
                "level": items.tree.levels[fault.level],
                "class": name,
                "other": other,
                "probability": fault.probability,
                "items": len(fault.parts[0]) + (len(fault.parts[1]) if fault.kind != "parent" else 0),
                "evidence": ", ".join(f"{mark}: {value:.2f}" for mark, value in fault.evidence.items()),
                "first_items": first,
                "second_items": second,
                "second_classes": _mostly_in(items, fault) if fault.kind == "two" and fault.level else [],
            }
        )
    numbers = dict.fromkeys(("first_items", "second_items"), pl.List(pl.Int64))
    texts = dict.fromkeys(("kind", "level", "class", "other"), pl.String)
    schema = {**texts, "probability": pl.Float64, "items": pl.Int64, "evidence": pl.String, **numbers}
    schema |= {"second_classes": pl.List(pl.String)}
    return pl.DataFrame(rows, schema=schema).sort("probability", maintain_order=True, descending=True)


def _mostly_in(items: _Items, fault: ClassFault) -> list[str]:
    """Return the finest classes of which more items are in the second part of a class than in the first."""
    counts = [np.bincount(items.table[items.judged[part], 0], minlength=1) for part in fault.parts]
    size = max(map(len, counts))
    first, second = (np.pad(count, (0, size - len(count))) for count in counts)
    return [items.tree.names[0][label] for label in np.flatnonzero(second > first)]


def _all_labels(items: _Items, noise: LabelNoise) -> pl.DataFrame:
    known = pl.DataFrame({"item": items.judged, "key": [items.key(int(item)) for item in items.judged]})
    return known.with_columns(
        pl.Series(level, noise.wrong[:, column]) for column, level in enumerate(items.tree.levels)
    )


def _rate_table(levels: Sequence[str], noise: LabelNoise) -> pl.DataFrame:
    found = noise.rates
    return pl.DataFrame({"level": list(levels), "rate": found.rates, "low": found.low, "high": found.high})


# -- copies across splits ---------------------------------------------------------------------------------------------


def _no_copies() -> pl.DataFrame:
    schema = {"item": pl.Int64, "key": pl.String, "split": pl.String}
    schema |= {"other": pl.Int64, "other_key": pl.String, "other_split": pl.String}
    return pl.DataFrame(schema=schema | {"probability": pl.Float64, "alike": pl.Float64, "same_class": pl.Boolean})


def _copies(items: _Items, pictures: Pictures | None, options: AuditOptions) -> pl.DataFrame:
    """Find items of other splits that are copies of training items (of the largest split where none is ``train``).

    The nearest item of training is held against decoys: the nearest item of another finest class within training. A
    pair of pictures that is less alike than nearly all copies made here is none, whatever the decoys are like.
    """
    options.progress("look for copies", 0, None)
    split = np.asarray(items.splits, dtype=object)
    sizes = {name: int((split == name).sum()) for name in dict.fromkeys(items.splits or ())}
    trained = TRAIN if TRAIN in sizes else max(sizes, key=lambda name: sizes[name])
    references, queries = np.flatnonzero(split == trained), np.flatnonzero(split != trained)
    generator = np.random.default_rng(0)
    sample = np.sort(generator.permutation(references)[: max(1000, len(queries))])
    found = _most_alike(items, pictures, queries, references, other_class=False)
    decoys = _most_alike(items, pictures, sample, references, other_class=True)
    chances = decoy_posterior(found[1], decoys[1])
    made = np.empty(0) if pictures is None else pictures.of_copies(np.sort(generator.permutation(references)[:_MADE]))
    if len(made):
        chances = np.where(found[1] < np.quantile(made, _LOST), 0.0, chances)
    rows = []
    for query, other, alike, chance in zip(
        queries.tolist(), found[0].tolist(), found[1].tolist(), chances.tolist(), strict=True
    ):
        if other >= 0 and chance >= options.probability:
            own, theirs = items.table[query, 0], items.table[other, 0]
            same = None if own < 0 or theirs < 0 else bool(own == theirs)
            place = (query, items.key(query), items.split(query), other, items.key(other), items.split(other))
            rows.append((*place, chance, alike, same))
    table = pl.DataFrame(rows, schema=_no_copies().schema, orient="row")
    return table.sort("probability", "alike", "item", descending=[True, True, False])


def _most_alike(
    items: _Items, pictures: Pictures | None, queries: np.ndarray, references: np.ndarray, *, other_class: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return (Q,) the reference that is most like each query, -1 for none, and (Q,) how much."""
    best, score = np.full(len(queries), -1), np.full(len(queries), -1.0)
    for candidates in _candidates(items, pictures, queries, references):
        wanted = candidates != queries[:, None]
        if other_class:
            wanted &= items.table[candidates, 0] != items.table[queries, 0][:, None]
        rows, columns = np.nonzero(wanted)
        pairs = np.stack([queries[rows], candidates[rows, columns]], axis=1)
        alike = _cosines(items.unit, pairs) if pictures is None else pictures.alike(pairs)
        for row, other, value in zip(rows.tolist(), pairs[:, 1].tolist(), alike.tolist(), strict=True):
            if value > score[row]:
                best[row], score[row] = other, value
    return best, score


def _candidates(
    items: _Items, pictures: Pictures | None, queries: np.ndarray, references: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield tables of references, (Q, k), that lie near each query: by the embeddings, and by the pictures."""
    place = np.full(len(items.unit), -1)
    place[references] = np.arange(len(references))
    own = place[queries]
    count = min(_CANDIDATES, len(references) - int((own >= 0).any()))
    if count > 0 and len(queries):
        near, _ = nearest_neighbors(items.unit[queries], items.unit[references], count, self_index=own)
        yield references[near]
    if pictures is not None:
        yield pictures.nearest(queries, references, _CANDIDATES)


def _cosines(unit: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    return np.einsum("pd,pd->p", unit[pairs[:, 0]], unit[pairs[:, 1]])

"""The audit of a labelled set of images: wrong labels, errors of the hierarchy, copies across splits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from hgld.errors import InputError, quoted
from hgld.evaluation.embedding_files import KEY, SPLIT, read_keyed, read_labelled
from hgld.evaluation.scores import prepare_embeddings
from hgld.label_audit import AuditOptions
from hgld.label_audit.class_faults import ClassFault, find_class_faults
from hgld.label_audit.copies import ImageCopies, find_copies
from hgld.label_audit.wrong_labels import LabelNoise, find_wrong_labels
from hgld.labels import Array, Labels, class_names, read_label_sides
from hgld.prediction.votes import complete_labels

if TYPE_CHECKING:
    from hgld.data.dataset import ShardDataset

_FEWEST_ITEMS = 20
_SHOWN_ITEMS, _SHOWN_NEAREST = 8, 4
_IMAGES = pl.Schema(
    {
        "item": int,
        "key": str,
        "split": str,
        "level": str,
        "given": str,
        "proposed": str,
        "given_finest": str,
        "proposed_finest": str,
        "probability": float,
        "neighbors": int,
        "neighbors_given": int,
        "neighbors_proposed": int,
        "near_given": list[int],
        "near_proposed": list[int],
    }
)
_CLASSES = pl.Schema(
    {
        "kind": str,
        "level": str,
        "class": str,
        "other": str,
        "probability": float,
        "items": int,
        "evidence": str,
        "first_items": list[int],
        "second_items": list[int],
    }
)
_COPIES = pl.Schema(
    {
        "item": int,
        "key": str,
        "split": str,
        "other": int,
        "other_key": str,
        "other_split": str,
        "probability": float,
        "alike": float,
        "same_class": bool,
    }
)


@dataclass(frozen=True, eq=False)
class Audit:
    """Findings of an audit, the most probable first.

    Attributes:
        levels: names of the levels, finest first.
        keys: keys of the N items.
        judged: number of items with a known finest class.
        images: one row per wrong label, with item (index), key and split. ``level`` is the coarsest level at which the
            label is probably wrong; ``given``, ``proposed`` and ``probability`` are the classes and the probability at
            that level. ``given_finest`` and ``proposed_finest`` are the finest classes; ``near_given`` and
            ``near_proposed`` are the nearest items of each. ``neighbors_given`` and ``neighbors_proposed`` count the
            ``neighbors`` nearest items that are in the given and in the proposed class.
        classes: one row per error of the hierarchy, with kind, level, class, other, probability, items, evidence,
            first_items and second_items (some items of both classes). Kind ``one``: the class and ``other`` should be
            one class. Kind ``parent``: the class belongs under ``other``.
        copies: one row per pair of probable copies in different splits: item, key, split, other, other_key,
            other_split, probability, alike (correlation), same_class.
        labels: one row per judged item: item, key, and per level the probability that the label is wrong; NaN if the
            label cannot be judged.
        rates: one row per level: level, and rate, the estimated share of wrong labels.
        notes: items that were not judged, and why.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as a JSON-ready dictionary."""
        tables = {name: getattr(self, name).to_dicts() for name in ("rates", "images", "classes", "copies")}
        facts = {"levels": list(self.levels), "items": len(self.keys), "judged": self.judged}
        return facts | tables | {"notes": [*self.notes]}


def audit(
    embeddings: Array,
    labels: Labels,
    *,
    levels: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    splits: Sequence[str] | None = None,
    images: ImageCopies | None = None,
    options: AuditOptions | None = None,
) -> Audit:
    """Find wrong labels, errors of the hierarchy and copies across splits.

    Args:
        embeddings: (N, D) of any floating dtype.
        labels: (N, L) integers, finest level first, negative if unknown; or class names, a table or a dataset, in any
            form that :func:`hgld.labels.class_numbers` reads.
        levels: names of the L levels, or of a table's columns; None: all columns, or ``level0``, ``level1``, ...
        keys: keys of the items; None: their indices as text.
        splits: splits of the items; None: do not look for copies.
        images: object that compares the images; None: do not look for copies.
        options: options of the audit; None: the defaults.

    Raises:
        InputError: the numbers of embeddings and labels differ, or too few items have a known finest class.
        HierarchyError: a class has two parents.

    >>> import hgld
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat(np.arange(12), 10)[:, None] // [1, 4]
    >>> embeddings = np.eye(12)[labels[:, 0]] + 0.1 * rng.standard_normal((120, 12))
    >>> labels[3] = [7, 1]
    >>> found = hgld.audit(embeddings, labels, levels=["fine", "coarse"])
    >>> found.images.select("item", "level", "given", "proposed").rows()
    [(3, 'coarse', '1', '0')]
    """
    options = options or AuditOptions()
    unit = prepare_embeddings(embeddings, "item").numpy()
    (table,), level_texts = read_label_sides([labels], [len(unit)], levels, ["item"])
    table = complete_labels(table)
    judged = np.flatnonzero(table[:, 0] >= 0)
    if len(judged) < _FEWEST_ITEMS:
        raise InputError(
            f"{len(judged)} of {len(table)} items have a known class at level {level_texts[0]!r}; an audit needs at "
            f"least {_FEWEST_ITEMS}. Choose other --levels, or other labels."
        )
    notes = []
    if len(judged) < len(table):
        notes.append(f"{len(table) - len(judged)} items without a known {level_texts[0]} are not judged.")
    _, first, classes = np.unique(table[judged, 0], return_index=True, return_inverse=True)
    ancestors, names = _number_classes(table[judged[first]], class_names(labels, levels))
    texts = tuple(map(str, range(len(table)) if keys is None else keys))
    of_splits = [""] * len(table) if splits is None else list(splits)
    items = _Items(level_texts, judged, unit, classes, ancestors, names, texts, of_splits)
    noise = find_wrong_labels(unit[judged], classes, ancestors, options.progress)
    options.progress("judge classes", 0, None)
    faults = list(find_class_faults(unit[judged], classes, ancestors))
    for level, name in enumerate(level_texts):
        kinds = {"one": "duplicate"} | ({"parent": "misplaced"} if level + 1 < len(level_texts) else {})
        lacking = [kinds[kind] for kind in kinds if not any((f.kind, f.level) == (kind, level) for f in faults)]
        if lacking:
            notes.append(f"{name}: too few classes to search for {' or '.join(lacking)} classes.")
    copies = []
    if splits is None or len(set(splits)) < 2:
        notes.append("copies across splits are not searched, because there is only one split.")
    elif images is None:
        notes.append("copies across splits are not searched, because this needs the images of a dataset (--data).")
    else:
        options.progress("look for copies", 0, None)
        for item, other, alike, probability in find_copies(unit, table[:, 0], splits, images):
            if probability >= options.probability:
                same = None if min(table[item, 0], table[other, 0]) < 0 else bool(table[item, 0] == table[other, 0])
                places = (place for i in (item, other) for place in (i, items.keys[i], items.splits[i]))
                copies.append((*places, probability, alike, same))
    wrong = np.flatnonzero(np.nanmax(noise.wrong, axis=1, initial=0.0) >= options.probability)
    found = filter(None, (_wrong_image(items, noise, row, options.probability) for row in wrong.tolist()))
    listed = filter(None, (_class_row(items, fault) for fault in faults if fault.probability >= options.probability))
    every = pl.DataFrame({"item": judged, "key": [items.keys[item] for item in judged]})
    return Audit(
        level_texts,
        items.keys,
        len(judged),
        pl.DataFrame(list(found), schema=_IMAGES).sort("probability", "item", descending=[True, False]),
        pl.DataFrame(list(listed), schema=_CLASSES).sort("probability", maintain_order=True, descending=True),
        pl.DataFrame(copies, schema=_COPIES, orient="row").sort(
            "probability", "alike", "item", descending=[True, True, False]
        ),
        every.with_columns(pl.Series(level, noise.wrong[:, column]) for column, level in enumerate(level_texts)),
        pl.DataFrame({"level": list(level_texts), "rate": noise.rates}),
        tuple(notes),
    )


def _number_classes(
    rows: np.ndarray, named: Sequence[tuple[str, ...] | None]
) -> tuple[np.ndarray, tuple[tuple[str, ...], ...]]:
    """Return (C, L) consecutive class numbers from 0 per level, and the class names per level.

    A class without a known parent gets a separate parent without a name.

    Args:
        rows: (C, L) class ids of each finest class at every level, -1 if unknown.
        named: names of the ids per level; None: the ids serve as names.
    """
    columns, names = [], []
    for ids, texts in zip(rows.T, named, strict=True):
        alone = np.where(ids < 0, ids.max() + 1 + np.arange(len(ids)), ids)
        kept, numbers = np.unique(alone, return_inverse=True)
        columns.append(numbers)
        known = kept[kept <= ids.max()].tolist() if ids.max() >= 0 else []
        names.append((*(str(i) if texts is None else texts[i] for i in known), *[""] * (len(kept) - len(known))))
    return np.stack(columns, axis=1), tuple(names)


@dataclass(frozen=True, eq=False)
class _Items:
    """The items of an audit: ``classes`` of the judged items, ``ancestors`` and ``names`` of these classes."""

    levels: tuple[str, ...]
    judged: np.ndarray
    unit: np.ndarray
    classes: np.ndarray
    ancestors: np.ndarray
    names: tuple[tuple[str, ...], ...]
    keys: tuple[str, ...]
    splits: Sequence[str]

    def nearest_items(self, item: int, label: int) -> list[int]:
        """Return the items of a finest class that are nearest to an item, without the item itself."""
        others = self.judged[self.classes == label]
        others = others[others != item]
        order = np.argsort(-(self.unit[others] @ self.unit[item]), kind="stable")
        return others[order[:_SHOWN_NEAREST]].tolist()


def _wrong_image(items: _Items, noise: LabelNoise, row: int, least: float) -> dict[str, Any] | None:
    """Return the finding at the coarsest level at which a label is probably wrong; None if there is no such level."""
    given = int(items.classes[row])
    path = items.ancestors[given]
    likely = [c for c in np.flatnonzero(noise.wrong[row] >= least).tolist() if items.names[c][path[c]]]
    if not likely:
        return None
    level = likely[-1]
    proposed = int(noise.proposed[row, level])
    here, there = int(path[level]), int(items.ancestors[proposed, level])
    near = items.ancestors[items.classes[noise.neighbors[row]], level]
    item = int(items.judged[row])
    return {
        "item": item,
        "key": items.keys[item],
        "split": items.splits[item],
        "level": items.levels[level],
        "given": items.names[level][here],
        "proposed": items.names[level][there],
        "given_finest": items.names[0][given],
        "proposed_finest": items.names[0][proposed],
        "probability": float(noise.wrong[row, level]),
        "neighbors": len(near),
        "neighbors_given": int((near == here).sum()),
        "neighbors_proposed": int((near == there).sum()),
        "near_given": items.nearest_items(item, given),
        "near_proposed": items.nearest_items(item, proposed),
    }


def _class_row(items: _Items, fault: ClassFault) -> dict[str, Any] | None:
    """Return the row of an error of the hierarchy; None if one of its classes has no name."""
    name = items.names[fault.level][fault.label]
    other = items.names[fault.level + (fault.kind == "parent")][fault.other]
    if not name or not other:
        return None
    some = [items.judged[part[:: max(1, len(part) // _SHOWN_ITEMS)][:_SHOWN_ITEMS]].tolist() for part in fault.parts]
    return {
        "kind": fault.kind,
        "level": items.levels[fault.level],
        "class": name,
        "other": other,
        "probability": fault.probability,
        "items": len(fault.parts[0]) + (len(fault.parts[1]) if fault.kind == "one" else 0),
        "evidence": ", ".join(f"{feature}: {value:.2f}" for feature, value in fault.evidence.items()),
        "first_items": some[0],
        "second_items": some[1],
    }


# -- inputs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Audited:
    """Items to audit.

    Attributes:
        embeddings: (N, D) embeddings.
        labels: labels in the form that :func:`audit` takes.
        levels: names of the levels.
        keys: keys of the items; None if they have no keys.
        splits: splits of the items; None if they have no splits.
        dataset: dataset of the same items in the same order, with their images; None if there are no images.
    """

    embeddings: Array
    labels: Labels
    levels: tuple[str, ...]
    keys: list[str] | None
    splits: list[str] | None
    dataset: "ShardDataset | None" = None

    @classmethod
    def of_dataset(cls, embeddings: Array, dataset: "ShardDataset") -> "Audited":
        """Return the items of a dataset with their embeddings, in its order."""
        splits = dataset.frame[SPLIT].cast(pl.String).to_list()
        names = zip(dataset.levels, dataset.hierarchy.names, dataset.labels.numpy().T, strict=True)
        labels = {level: [known[i] if i >= 0 else None for i in column.tolist()] for level, known, column in names}
        return cls(embeddings, labels, dataset.levels, dataset.keys.to_list(), splits, dataset)

    @classmethod
    def of_files(
        cls,
        embeddings: Path,
        labels: Path | None,
        levels: Sequence[str] | None = None,
        dataset: "ShardDataset | None" = None,
    ) -> "Audited":
        """Read embeddings with a table of labels, or embeddings with the keys of a dataset's items.

        Args:
            embeddings: .npy or .safetensors file. If ``dataset`` is given, the file may hold any of its items in any
                order.
            labels: parquet or CSV file with a column per level, and optionally key and split. If ``dataset`` is given,
                only the key is read. None: ``X.labels.parquet`` in the folder of ``X.npy``.
            levels: columns of the levels, finest first; None: all columns except key and split.
            dataset: the dataset that was embedded; None: labels are in the file.

        Raises:
            InputError: a file cannot be read, the files have different numbers of rows, or a key is repeated or not in
                the dataset.
        """
        file = labels or embeddings.with_suffix(".labels.parquet")
        if dataset is None:
            read, table = read_labelled(embeddings, file, levels)
            wanted = tuple(levels or [name for name in table.columns if name not in (KEY, SPLIT)])
            splits = table[SPLIT].to_list() if SPLIT in table.columns else None
            keys = table[KEY].cast(pl.String).to_list() if KEY in table.columns else None
            return cls(read, table.select(wanted), wanted, keys, splits)
        (read,), keys = read_keyed([embeddings], file)
        places = pl.DataFrame({KEY: dataset.keys.cast(pl.String), "at": np.arange(len(dataset))})
        at = pl.DataFrame({KEY: keys}).join(places, on=KEY, how="left", maintain_order="left")["at"]
        if at.null_count():
            unknown = keys.filter(at.is_null())
            raise InputError(
                f"{file}: {len(unknown):,} of its keys are not in {quoted(dataset)}, the first is "
                f"{quoted(unknown[0])}. Pass the dataset that was embedded as --data, or omit --data."
            )
        return cls.of_dataset(read, dataset.select(at.to_list()))

    def audit(self, options: AuditOptions) -> Audit:
        """Audit the items; compare their images across splits if there are images."""
        images = None
        if self.dataset is not None and self.splits is not None and len(set(self.splits)) > 1:
            images = ImageCopies(self.dataset.image, len(self.dataset), options.progress)
        found = audit(
            self.embeddings,
            self.labels,
            levels=self.levels,
            keys=self.keys,
            splits=self.splits,
            images=images,
            options=options,
        )
        if images is None or not images.unreadable:
            return found
        number, first = len(images.unreadable), images.unreadable[0]
        note = f"{number:,} images cannot be read and are not compared; the first: {first}"
        return replace(found, notes=(*found.notes, note))

"""What the items of all shards agree on: levels, class names, parents. Items that contradict the most are set aside."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from hgld import Hierarchy
from hgld.dataset_files import BOX, REJECTED, TABLES, check_levels, index_schema, with_runs
from hgld.errors import ConfigError, InputError
from pipelines.shard_scan import WRONG_SUFFIX, ShardScan

MOST_LEVELS = 64  # more than any taxonomy has ranks
_CLASSES, _CLASSES_AN_ITEM = 1 << 20, 100  # at most; so a single tar of a set of a million classes can be read


class ItemConsensus:
    """Items of scanned shards, narrowed down to those that agree with each other.

    Attributes:
        levels: names of the levels, finest first.
        items: the items that are left, in order of the shards.
    """

    def __init__(self, scans: Sequence[ShardScan], root: Path, levels: Sequence[str] | None) -> None:
        """Gather the sound items, settle their levels, splits, names and parents.

        Args:
            scans: in the order that the index is to have.
            root: for messages.
            levels: names for items that do not state them; else ``level_0``, ``level_1``, ...

        Raises:
            ConfigError: ``levels`` contradict the items.
            InputError: no sound item, too many levels, or labels so far beyond the number of items that the tables of
                their classes' names would fill the memory.
        """
        self._rejected = [_faults(scan) for scan in scans]
        rows = [scan.items.with_columns(pl.lit(scan.name).alias("shard")) for scan in scans]
        self.items = pl.concat(rows).filter("sound")
        if not len(self.items):
            raise InputError(
                f"{root}: no usable item in its tars; expected KEY.jpg beside KEY.json with labels, names and split. "
                + "; ".join(self.rejected()["detail"].head(3))
            )
        self._set_aside(~pl.col("key").is_first_distinct(), "duplicate-key", "stands in an earlier shard")
        self.levels = self._settle_levels(root, levels)
        split = pl.col("split").first().over("shard")
        self._set_aside(pl.col("split") != split, "other-split", "in a shard of split", split)
        self.items = self.items.with_columns(
            *(pl.col("labels").list.get(c).alias(_label(c)) for c in range(len(self.levels))),
            *(pl.col("names").list.get(c).alias(_name(c)) for c in range(len(self.levels))),
        )
        self._refuse_sparse(root)
        for c in range(len(self.levels)):
            self._settle(_label(c), _name(c), pl.col(_label(c)) >= 0, "other-name")
        for c in range(len(self.levels) - 1):
            both = (pl.col(_label(c)) >= 0) & (pl.col(_label(c + 1)) >= 0)
            self._settle(_label(c), _label(c + 1), both, "other-parent")

    def rejected(self) -> pl.DataFrame:
        """Members and items set aside, with the columns of ``rejected.parquet``."""
        return pl.concat(self._rejected)

    def hierarchy(self) -> Hierarchy:
        """The tree of the items' classes; a class that no item names is called by its number.

        Raises:
            HierarchyError: two classes of a level have the same name.
        """
        depth = range(len(self.levels))
        labels = self.items.select(_label(c) for c in depth).to_numpy()
        return Hierarchy.from_labels(labels, self.levels, [self._class_names(c) for c in depth])

    def index(self) -> pl.DataFrame:
        """The rows of ``index.parquet``."""
        boxed = bool(self.items["boxed"].any())
        table = self.items.select(
            *("key", "shard", "offset", "size", "split", "suffix", "width", "height", "orientation", "sha256"),
            *(pl.col(_label(c)).alias(level) for c, level in enumerate(self.levels)),
            *(pl.col("box").list.get(i).alias(side) for i, side in enumerate(BOX if boxed else ())),
        )
        return with_runs(table, self.levels[0]).select(index_schema(self.levels, boxes=boxed).names())

    def _settle_levels(self, root: Path, given: Sequence[str] | None) -> tuple[str, ...]:
        depth = int(self.items["labels"].list.len().mode().sort()[0])
        if depth > MOST_LEVELS:
            raise InputError(
                f"{root}: most items have {depth} labels; expected one a level, and at most {MOST_LEVELS} levels. "
                "Write the tars with fewer."
            )
        length = pl.col("labels").list.len()
        self._set_aside(length != depth, "other-levels", f"most items have {depth} labels, this one", length)
        stated = self.items.filter(pl.col("levels").list.len() > 0)["levels"]
        if not len(stated):
            names = check_levels(given or [f"level_{c}" for c in range(depth)], "--levels")
            if len(names) != depth:
                raise ConfigError(f"--levels: {len(names)} names; the items of {root} have {depth} labels.")
            return names
        usual = min(stated.value_counts().filter(pl.col("count") == pl.col("count").max())["levels"].to_list())
        names = check_levels(usual, str(root))
        if given is not None and tuple(given) != names:
            raise ConfigError(f"--levels {','.join(given)}: the tars say {','.join(names)}. Leave --levels out.")
        found = pl.col("levels").list.join(", ")
        differs = (pl.col("levels").list.len() > 0) & (found != ", ".join(names))
        self._set_aside(differs, "other-levels", f"most items have {', '.join(names)}, this one", found)
        return names

    def _refuse_sparse(self, root: Path) -> None:
        """Every class below the largest label has a name and a parent, so a single label can be a table of millions."""
        most = _CLASSES + _CLASSES_AN_ITEM * len(self.items)
        largest = [int(np.max(self.items[_label(c)].to_numpy(), initial=-1)) for c in range(len(self.levels))]
        if sum(largest) + len(largest) <= most:
            return
        c = int(np.argmax(largest))
        shard, key = self.items.select("shard", "key").row(self.items[_label(c)].arg_max() or 0)
        raise InputError(
            f"{root}: {shard} has {key!r} with label {largest[c]} at {self.levels[c]!r}; for {len(self.items)} items, "
            f"all levels together may have {most} classes. Write the tars with the classes of a level numbered from 0 "
            "without gaps, as hgld build-shards manifest does."
        )

    def _settle(self, label: str, of: str, known: pl.Expr, reason: str) -> None:
        """Set items aside whose value ``of`` is not the one that most items of their class have."""
        usual = (
            self.items.filter(known)
            .group_by(label, of)
            .len()
            .sort(label, "len", of, descending=[False, True, False])
            .unique(label, keep="first", maintain_order=True)
            .select(label, pl.col(of).alias("usual"))
        )
        self.items = self.items.join(usual, on=label, how="left", maintain_order="left")
        differs = known & (pl.col(of) != pl.col("usual"))
        said = [pl.col(label), pl.lit("has"), pl.col(of), pl.lit("here and in most items"), pl.col("usual")]
        self._set_aside(differs, reason, f"class {label.partition(' ')[2]}:", *said)
        self.items = self.items.drop("usual")

    def _set_aside(self, wrong: pl.Expr, reason: str, detail: str, *more: pl.Expr) -> None:
        marked = self.items.with_columns(wrong.fill_null(value=False).alias("wrong"))
        out = marked.filter("wrong").select(
            "key",
            "split",
            file=pl.concat_str("shard", pl.lit("/"), "key", pl.lit("."), "suffix"),
            reason=pl.lit(reason),
            detail=pl.concat_str(pl.lit(detail), *more, separator=" "),
        )
        self._rejected.append(out)
        self.items = marked.filter(~pl.col("wrong")).drop("wrong")

    def _class_names(self, c: int) -> list[str]:
        known = self.items.filter(pl.col(_label(c)) >= 0).select(_label(c), _name(c)).unique(_label(c))
        names = [str(label) for label in range(int(np.max(known[_label(c)].to_numpy(), initial=-1)) + 1)]
        for label, name in known.iter_rows():
            names[label] = name or names[label]
        return names


def _label(c: int) -> str:
    return f"label {c}"


def _name(c: int) -> str:
    return f"name {c}"


def _faults(scan: ShardScan) -> pl.DataFrame:
    """A shard's faults with the columns of ``rejected.parquet``; an image is usable whatever its suffix says."""
    splits = scan.items.select("key", "split")
    table = (
        scan.faults.filter(pl.col("reason") != WRONG_SUFFIX)
        .join(splits, on="key", how="left", maintain_order="left")
        .select(
            "key",
            "split",
            file=pl.concat_str(pl.lit(f"{scan.name}/"), "member"),
            reason="reason",
            detail=pl.concat_str("detail", pl.lit(" at offset "), "offset"),
        )
    )
    return table.cast(TABLES[REJECTED])

"""The tables of a dataset directory, read together and checked against each other."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from hgld.dataset_files import HIERARCHY, INDEX, MANIFEST, MAX_MANIFEST_BYTES, Manifest, read_index
from hgld.errors import InputError
from hgld.hierarchy import Hierarchy
from hgld.shard_storage import ShardStorage

_MOST_ITEM_BYTES = 1 << 30


def read_manifest(storage: ShardStorage) -> Manifest:
    """``dataset.json``.

    Raises:
        InputError: there is none, or it is damaged.
        SchemaError: it was written under another schema version.
    """
    if not storage.exists(MANIFEST):
        raise InputError(
            f"{storage.where}: no dataset is here, for there is no {MANIFEST}. `hgld build-shards` makes a dataset; "
            "`hgld index` writes the missing files of shards that have lost them."
        )
    return Manifest.from_json(storage.read_file(MANIFEST, MAX_MANIFEST_BYTES), f"{storage.where}/{MANIFEST}")


def read_rows(
    storage: ShardStorage, manifest: Manifest, split: str | None, leave_out: Sequence[str] = ()
) -> pl.DataFrame:
    """Rows of a split in ``index.parquet``; of all splits if None.

    Args:
        storage: of the dataset.
        manifest: which the whole index must fit.
        split: whose rows.
        leave_out: columns that are not needed.

    Raises:
        InputError: levels, counts or places are not those of the manifest, or the index is damaged.
        SchemaError: it was written under another schema version.
    """
    frame, levels = read_index(storage.table(INDEX), f"{storage.where}/{INDEX}", leave_out=leave_out)
    if levels != manifest.levels:
        raise _other_levels(storage, INDEX, levels, manifest)
    found = dict(frame.group_by("split").len().iter_rows())
    expected = {name: facts["items"] for name, facts in manifest.splits.items() if facts["items"]}
    if found != expected:
        raise InputError(
            f"{storage.where}: {INDEX} has {_counts(found)}; {MANIFEST} says {_counts(expected)}. They come from "
            "different builds: hgld index --force writes both again from the shards."
        )
    _check_places(storage, manifest, frame)
    return frame if split is None else frame.filter(pl.col("split") == split)


def read_hierarchy(storage: ShardStorage, manifest: Manifest) -> Hierarchy:
    """``hierarchy.parquet``.

    Raises:
        HierarchyError: it is no tree.
        InputError: it is missing, or its levels are not the manifest's.
        SchemaError: it is damaged or was written under another schema version.
    """
    hierarchy = _hierarchy(storage)
    if hierarchy.levels != manifest.levels:
        raise _other_levels(storage, HIERARCHY, hierarchy.levels, manifest)
    return hierarchy


def _hierarchy(storage: ShardStorage) -> Hierarchy:
    source = storage.table(HIERARCHY)
    if isinstance(source, Path):
        return Hierarchy.from_parquet(source)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, HIERARCHY)
        path.write_bytes(source)
        try:
            return Hierarchy.from_parquet(path)
        except InputError as error:
            raise type(error)(str(error).replace(str(path), f"{storage.where}/{HIERARCHY}")) from error


def check_labels(storage: ShardStorage, hierarchy: Hierarchy, labels: np.ndarray) -> None:
    """Refuse labels that are not classes, or that lie on no path of the tree.

    Raises:
        HierarchyError: names the first items.
    """
    try:
        hierarchy.counts(labels)  # refuses labels that are not classes
        hierarchy.check_labels(labels)
    except InputError as error:
        raise type(error)(f"{storage.where}/{INDEX}: {error}") from error


def _check_places(storage: ShardStorage, manifest: Manifest, index: pl.DataFrame) -> None:
    """Refuse an index whose items do not lie in the manifest's shards."""
    shards = pl.DataFrame(
        [(shard.name, shard.split, shard.bytes) for shard in manifest.shards],
        schema={"shard": pl.String, "of_split": pl.String, "bytes": pl.Int64},
        orient="row",
    )
    inside = (pl.col("of_split") == pl.col("split")) & (pl.col("offset") + pl.col("size") <= pl.col("bytes"))
    joined = index.lazy().select("key", "shard", "split", "offset", "size").join(shards.lazy(), on="shard", how="left")
    wrong = joined.filter(~inside.fill_null(value=False) | (pl.col("size") > _MOST_ITEM_BYTES)).head(1).collect()
    if len(wrong):
        row = wrong.row(0, named=True)
        raise InputError(
            f"{storage.where}/{INDEX}: key {row['key']!r} has {row['size']} bytes at offset {row['offset']} of "
            f"{row['shard']}; by {MANIFEST} that shard has {row['bytes'] or 0} bytes, of split {row['of_split']!r}. "
            "hgld index --force writes both again from the shards."
        )


def _counts(splits: Mapping[str, int]) -> str:
    return ", ".join(f"{splits[name]} items of {name}" for name in sorted(splits)) or "no items"


def _other_levels(storage: ShardStorage, name: str, levels: Sequence[str], manifest: Manifest) -> InputError:
    return InputError(
        f"{storage.where}/{name}: levels {', '.join(levels)}; {MANIFEST} says {', '.join(manifest.levels)}. They come "
        "from different builds: hgld index --force writes both again from the shards."
    )

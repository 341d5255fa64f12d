"""The files of a dataset beside its shards: index, hierarchy, tables, card, Croissant, and the manifest last."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from hgld.data.format import (
    BOX,
    CARD,
    CROISSANT,
    HIERARCHY,
    INDEX,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    REJECTED,
    FileFacts,
    Manifest,
    ShardFacts,
)
from hgld.data.index import split_facts, write_index
from hgld.errors import InputError, StorageError
from hgld.files import aside_of, file_lock, put_in_place
from hgld.hierarchy import Hierarchy
from hgld.tables import parquet_schema, read_parquet

from ..stage import json_text, sha256_of
from .cards import DataCard, dataset_card, known_card, published_differences
from .catalog import ABOUT_ITEMS, Catalog
from .croissant import croissant
from .output import ShardOutput
from .reading import opened_regular


@dataclass(frozen=True)
class PackedShard:
    """A written shard: its facts, and the table of its part of the index."""

    facts: ShardFacts
    record: Path


def fingerprint(path: Path) -> FileFacts:
    """Return the size and the SHA-256 of a file."""
    return FileFacts(bytes=path.stat().st_size, sha256=sha256_of(path))


def described(manifest: Manifest, card: DataCard | None, *, boxes: bool) -> tuple[dict[str, bytes], Manifest]:
    """Return ``README.md`` and ``croissant.json`` of a dataset, and its manifest with their checksums.

    Args:
        manifest: of the dataset, with all other files.
        card: of the dataset; None where hgld has none.
        boxes: True if the index has boxes to crop to.
    """
    made = {
        CARD: dataset_card(card, manifest).encode(),
        CROISSANT: json_text(croissant(manifest, card, boxes=boxes)).encode(),
    }
    facts = {name: FileFacts(bytes=len(d), sha256=hashlib.sha256(d).hexdigest()) for name, d in made.items()}
    return made, replace(manifest, files=dict(sorted({**manifest.files, **facts}.items())))


def tables_about_items(catalog: Catalog, keys: pl.Series) -> tuple[dict[str, pl.DataFrame], dict[str, int]]:
    """Return lists and judgements without the rows about items that are not in the shards.

    Returns:
        the tables by file name; the number of rows left out of each, where any were.
    """
    tables, left_out = {}, {}
    for name in ABOUT_ITEMS:
        whole: pl.DataFrame | None = getattr(catalog, name)
        kept = catalog.about(name, keys)
        if whole is not None and kept is not None:
            file = f"{name}.parquet"
            tables[file] = kept.unique().sort(pl.all())
            if removed := whole.n_unique() - len(tables[file]):
                left_out[file] = removed
    return tables, left_out


def finish(
    catalog: Catalog,
    card: DataCard | None,
    hierarchy: Hierarchy,
    shards: Sequence[PackedShard],
    rejected: pl.DataFrame,
    group_size: int,
    provenance: Mapping[str, Any],
    folder: Path,
    output: ShardOutput,
) -> Manifest:
    """Write all files except the shards and put them in place, the manifest last.

    Args:
        catalog: of the release.
        card: of the dataset; None for the user's own data.
        hierarchy: of the items that are in the shards.
        shards: in order.
        rejected: the content of ``rejected.parquet``.
        group_size: of the build.
        provenance: for the manifest.
        folder: scratch folder in which they are written first.
        output: where the dataset goes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index = pl.concat([read_parquet(shard.record) for shard in shards])
    tables, _ = tables_about_items(catalog, index["key"])
    write_index(index, folder / INDEX, catalog.levels)
    hierarchy.to_parquet(folder / HIERARCHY)
    for name, table in {**tables, REJECTED: rejected}.items():
        table.write_parquet(folder / name)
    manifest = Manifest(
        name=catalog.name,
        levels=catalog.levels,
        group_size=group_size,
        splits=split_facts(index, catalog.levels),
        shards=tuple(shard.facts for shard in shards),
        files={name: fingerprint(folder / name) for name in (INDEX, HIERARCHY, REJECTED, *tables)},
        rejected=dict(rejected["reason"].value_counts().sort("reason").iter_rows()),
        provenance=provenance,
        protocol=catalog.protocol,
    )
    made, manifest = described(manifest, card, boxes=BOX[0] in index.columns)
    for name, data in {**made, MANIFEST: manifest.to_json().encode()}.items():
        (folder / name).write_bytes(data)
    for stale in sorted(path for path in folder.iterdir() if path.name not in (*manifest.files, MANIFEST)):
        output.remove(stale.name)  # left by a run with other lists that was stopped after it had written them
        stale.unlink()
    for name in (*manifest.files, MANIFEST):
        if name == MANIFEST:
            output.settle()
        aside = output.aside(name, folder)
        try:
            aside.write_bytes((folder / name).read_bytes())
            output.publish(aside, name)
        finally:
            aside.unlink(missing_ok=True)
    output.settle()
    return manifest


# -- the card of a dataset directory made anew ------------------------------------------------------------------------


@contextmanager
def dataset_lock(root: Path) -> Iterator[None]:
    """Hold a dataset directory against other processes that change its files.

    Raises:
        StorageError: another process holds it, or the folder is not writable.
    """
    busy = f"another process is changing the dataset in {root}; wait for it, or stop it."
    with file_lock(root / ".dataset.lock", busy, keep=False):
        yield


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a folder.

    Raises:
        InputError: it cannot be read, or is no manifest.
    """
    with opened_regular(path) as file:
        return Manifest.from_json(file.read(MAX_MANIFEST_BYTES + 1), str(path))


def remake_card(root: Path) -> pl.DataFrame | None:
    """Rewrite ``README.md`` and ``croissant.json`` of a dataset directory and enter them in its manifest.

    The files are written aside and renamed, the manifest last; if stopped in between, the same call repairs it.

    Args:
        root: the directory; its manifest and the columns of its index are read.

    Returns:
        differences from the published counts (:func:`hgld.pipelines.shards.cards.published_differences`); None where
        hgld has no card of the dataset.

    Raises:
        InputError: it is no dataset directory, or its manifest cannot be read.
        StorageError: the disk is full or not writable.
    """
    if not (root / MANIFEST).is_file():
        raise InputError(
            f"{root} has no {MANIFEST}; expected a dataset directory. If it holds shards: hgld index {root}"
        )
    with dataset_lock(root):
        manifest = read_manifest(root / MANIFEST)
        if missing := [name for name in (INDEX, HIERARCHY) if name not in manifest.files]:
            raise InputError(f"{root / MANIFEST} does not list {missing[0]}. Make it anew: hgld index {root} --force")
        boxes = BOX[0] in parquet_schema(root / INDEX, fix=f"Make it anew: hgld index {root}")
        card = known_card(manifest)
        made, manifest = described(manifest, card, boxes=boxes)
        asides = {name: aside_of(root / name) for name in (*made, MANIFEST)}
        try:
            for name, data in {**made, MANIFEST: manifest.to_json().encode()}.items():
                asides[name].write_bytes(data)
            for name, aside in asides.items():
                put_in_place(aside, root / name)
        except OSError as error:
            raise StorageError(
                f"{root} cannot be written ({error.strerror or error}). Free space there, then run again."
            ) from error
        finally:
            for aside in asides.values():
                aside.unlink(missing_ok=True)
    return None if card is None else published_differences(card, manifest)

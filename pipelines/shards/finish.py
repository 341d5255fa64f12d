"""The files of a dataset beside its shards: index, hierarchy, tables, manifest, card, Croissant."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hgld.data.format import (
    BOX,
    CARD,
    CROISSANT,
    HIERARCHY,
    INDEX,
    JUDGEMENTS,
    LISTS,
    MANIFEST,
    REJECTED,
    FileFacts,
    Manifest,
    ShardFacts,
)
from hgld.data.index import split_facts, write_index
from hgld.hierarchy import Hierarchy
from hgld.tables import read_parquet

from ..stage import sha256_of, write_json
from .cards import dataset_card
from .catalog import Catalog
from .croissant import card_facts, croissant
from .output import ShardOutput

if TYPE_CHECKING:
    from .cards import DataCard

ABOUT_ITEMS = {LISTS: ("key",), JUDGEMENTS: ("query", "item")}  # tables that name items, and their columns of keys


@dataclass(frozen=True)
class PackedShard:
    """A written shard: its facts, and the table of its part of the index."""

    facts: ShardFacts
    record: Path


@dataclass(frozen=True)
class DatasetParts:
    """Everything that the files beside the shards are made from.

    Attributes:
        catalog: of the release.
        card: of the dataset; None for the user's own data.
        hierarchy: of the items that are in the shards.
        shards: in order.
        rejected: the content of ``rejected.parquet``.
        group_size: of the build.
        provenance: for the manifest.
        notes: for the card.
    """

    catalog: Catalog
    card: "DataCard | None"
    hierarchy: Hierarchy
    shards: Sequence[PackedShard]
    rejected: pl.DataFrame
    group_size: int
    provenance: Mapping[str, Any]
    notes: Sequence[str]


def tables_about_items(catalog: Catalog, keys: pl.Series) -> tuple[dict[str, pl.DataFrame], dict[str, int]]:
    """Return lists and judgements without the rows about items that are not in the shards.

    Returns:
        the tables by file name; the number of rows left out of each, where any were.
    """
    tables, left_out = {}, {}
    for name, table in ((LISTS, catalog.lists), (JUDGEMENTS, catalog.judgements)):
        if table is None:
            continue
        known = pl.all_horizontal(pl.col(column).is_in(keys.implode()) for column in ABOUT_ITEMS[name])
        tables[name] = table.filter(known).unique().sort(pl.all())
        if removed := table.n_unique() - len(tables[name]):
            left_out[name] = removed
    return tables, left_out


def finish(parts: DatasetParts, folder: Path, output: ShardOutput) -> Manifest:
    """Write all files except the shards and put them in place, the manifest last.

    Args:
        parts: the content of the files.
        folder: scratch folder in which they are written first.
        output: where the dataset goes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    levels = parts.catalog.levels
    index = pl.concat([read_parquet(shard.record) for shard in parts.shards])
    tables, _ = tables_about_items(parts.catalog, index["key"])
    write_index(index, folder / INDEX, levels)
    parts.hierarchy.to_parquet(folder / HIERARCHY)
    for name, table in {**tables, REJECTED: parts.rejected}.items():
        table.write_parquet(folder / name)
    written = [INDEX, HIERARCHY, REJECTED, *tables]
    manifest = Manifest(
        name=parts.catalog.name,
        levels=levels,
        group_size=parts.group_size,
        splits=split_facts(index, levels),
        shards=tuple(shard.facts for shard in parts.shards),
        files={name: _facts(folder / name) for name in sorted(written)},
        rejected=dict(parts.rejected["reason"].value_counts().sort("reason").iter_rows()),
        provenance=parts.provenance,
        protocol=parts.catalog.protocol,
    )
    (folder / CARD).write_text(dataset_card(parts.card, manifest, notes=parts.notes), encoding="utf-8")
    described = croissant(manifest, card_facts(parts.card, manifest), boxes=BOX[0] in index.columns)
    write_json(folder / CROISSANT, described)
    written += [CARD, CROISSANT]
    manifest = replace(manifest, files={name: _facts(folder / name) for name in sorted(written)})
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    for stale in sorted(path for path in folder.iterdir() if path.name not in (*written, MANIFEST)):
        output.remove(stale.name)  # left by a run with other lists that was stopped after it had written them
        stale.unlink()
    for name in written:
        _publish(folder / name, output)
    output.settle()
    _publish(folder / MANIFEST, output)
    output.settle()
    return manifest


def _publish(path: Path, output: ShardOutput) -> None:
    aside = output.aside(path.name, path.parent)
    try:
        aside.write_bytes(path.read_bytes())
        output.publish(aside, path.name)
    finally:
        aside.unlink(missing_ok=True)


def _facts(path: Path) -> FileFacts:
    return FileFacts(bytes=path.stat().st_size, sha256=sha256_of(path))

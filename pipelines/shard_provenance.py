"""What a dataset was made of and how, for its manifest; and the key by which a build knows its own work."""

import hashlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import polars as pl

import hgld
from pipelines import examine, pack
from pipelines.catalog import Catalog
from pipelines.config import key_fields
from pipelines.shard_config import ShardConfig, SourceConfig
from pipelines.stage import plain, sha256_of
from pipelines.unit_records import key_of

if TYPE_CHECKING:
    from pipelines.data_card import DataCard

VERSION = 1  # raise it when the same images give another order of shards, or other tables
_ROWS_AT_ONCE = 100_000
_CODECS = ("opencv-python-headless", "pillow", "simplejpeg")  # whose versions change the bytes of resized images


def build_key(catalog: Catalog, options: SourceConfig, config: ShardConfig) -> str:
    """Of all that determines a dataset but the bytes of the images, which each unit looks after."""
    tables = [_digest(table) for table in (catalog.items, catalog.lists, catalog.judgements, catalog.dropped)]
    versions = [VERSION, examine.VERSION, pack.VERSION]
    return key_of(versions, catalog.name, catalog.levels, tables, _config(options, config))


def provenance(
    catalog: Catalog,
    card: "DataCard | None",
    options: SourceConfig,
    config: ShardConfig,
    tars: tuple[dict[str, str | int], ...],
) -> dict[str, Any]:
    """The manifest's provenance; the same input and options give the same, wherever the files lie.

    Args:
        catalog: of the release.
        card: of the dataset; None for data of one's own.
        options: how the release was read.
        config: how the shards were written.
        tars: of the release: file, role, bytes, md5.
    """
    stated = _config(options, config)
    facts = {
        "hgld": hgld.__version__,
        "config": stated,
        "config_hash": key_of(stated),
        "build_key": build_key(catalog, options, config),
        "seeds": {"seed": options.seed},
        "sources": [
            {"file": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
            for path in sorted(catalog.sources, key=lambda path: path.name)
        ],
        "licence": card.licence if card else "not stated",
        "disjoint": catalog.disjoint,
        "notes": list(catalog.notes),
    }
    if tars:
        facts["tars"] = sorted(tars, key=lambda tar: (tar["role"], tar["file"]))
    if config.resize:
        facts["versions"] = {package: version(package) for package in _CODECS}
    return facts


def _config(options: SourceConfig, config: ShardConfig) -> dict[str, Any]:
    stated = {"source": plain(key_fields(options)), "shards": plain(key_fields(config))}
    if not config.resize:
        del stated["shards"]["quality"]  # of no effect
    return stated


def _digest(table: pl.DataFrame | None) -> str | None:
    """Of a table's columns and rows, which may stand in any order."""
    if table is None:
        return None
    columns = sorted(table.columns)
    ordered = table.select(columns).sort(columns)
    digest = hashlib.sha256("\n".join(columns).encode())
    for part in ordered.iter_slices(_ROWS_AT_ONCE):
        digest.update(part.write_csv().encode())
    return digest.hexdigest()

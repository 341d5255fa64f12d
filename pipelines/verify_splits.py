"""Checks between splits: classes, images and near-duplicates of training that the others hold too."""

import polars as pl

from hgld import Hierarchy
from hgld.dataset_files import Manifest
from pipelines.findings import Findings
from pipelines.near_duplicates import nearest

TRAIN = "train"
EVALUATED = ("test", "query", "gallery")


def check_classes(index: pl.DataFrame, manifest: Manifest, tree: Hierarchy | None, findings: Findings) -> str | None:
    """Classes of the finest level that training and evaluation share.

    Findings where the manifest's provenance says ``disjoint``; else a note for people is returned, or None.
    """
    finest = manifest.levels[0]
    known = index.filter(pl.col(finest) >= 0)
    counts = known.group_by(finest, "split").len().sort(finest, "split")
    trained = counts.filter(split=TRAIN).select(finest, pl.col("len").alias("in train"))
    shared = counts.filter(pl.col("split").is_in(EVALUATED)).join(trained, on=finest, maintain_order="left")
    if not len(shared):
        return None
    if manifest.provenance.get("disjoint") is not True:
        number = shared[finest].n_unique()
        return f"{number} classes of {finest} are in {TRAIN} and in {', '.join(sorted(set(shared['split'])))}."
    names = dict(enumerate(tree.names[0])) if tree else {}
    rows = shared.with_columns(member=pl.col(finest).replace_strict(names, default=pl.col(finest).cast(pl.String)))
    found = pl.concat_str(
        pl.lit(f"a class of {finest} with "), "in train", pl.lit(f" items in {TRAIN}, "), "len", pl.lit(" here")
    )
    findings.add_rows(rows, "disjoint", found, f"no class of {TRAIN}", "member")
    return None


def check_bytes(index: pl.DataFrame, findings: Findings) -> None:
    """Images of other splits whose bytes are those of a training image."""
    trained = index.filter(split=TRAIN).unique("sha256", keep="first", maintain_order=True)
    shared = index.filter(pl.col("split") != TRAIN).join(
        trained.select("sha256", pl.col("key").alias("trained")), on="sha256", maintain_order="left"
    )
    findings.add_rows(shared, "leakage", _said("the bytes of"), f"no image of {TRAIN}")


def check_near_duplicates(index: pl.DataFrame, stored: pl.DataFrame, findings: Findings) -> str | None:
    """Images of other splits that look like a training image of other bytes.

    Args:
        index: the dataset's index.
        stored: what the shards hold, with perceptual hashes.
        findings: to add to.

    Returns:
        a note for people on images without a hash, or None.
    """
    known = index.select("key", "shard", "split", "sha256").join(
        stored.select("key", "shard", "hash"), on=("key", "shard"), maintain_order="left"
    )
    hashed = known.filter(pl.col("hash").is_not_null())
    trained, others = hashed.filter(split=TRAIN), hashed.filter(pl.col("split") != TRAIN)
    others = others.join(trained, on="sha256", how="anti", maintain_order="left")  # those are leakage
    if len(trained) and len(others):
        places, distances = nearest(others["hash"].to_numpy(), trained["hash"].to_numpy())
        near = others.with_columns(place=pl.Series(places), distance=pl.Series(distances)).filter(pl.col("place") >= 0)
        near = near.with_columns(trained=trained["key"].gather(near["place"]))
        found = pl.concat_str(pl.lit("differs in "), "distance", pl.lit(" of 64 bits from "), _said(""))
        findings.add_rows(near, "near-duplicate", found, f"no image that looks like one of {TRAIN}")
    plain = len(known) - len(hashed)
    return f"{plain} images are too plain to be compared by their looks." if plain else None


def _said(what: str) -> pl.Expr:
    return pl.concat_str(pl.lit(f"{what} ".lstrip()), "trained", pl.lit(f" of {TRAIN}"))

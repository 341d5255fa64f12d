"""Checks of an index: against the tars, against the hierarchy, and of what its rows imply about each other."""

from collections.abc import Sequence

import polars as pl

from hgld import Hierarchy
from hgld.dataset_files import BOX, Manifest, SplitFacts, split_facts, with_runs
from pipelines.findings import Findings

_COMPARED = {  # columns that the index and a scan of the tars share, and what a difference is called
    "offset": "place",
    "size": "place",
    "sha256": "item-sha256",
    "suffix": "suffix",
    "width": "header",
    "height": "header",
    "orientation": "header",
    "split": "split",
}
_STORED = " in the tar"


def without_set_aside(stored: pl.DataFrame, index: pl.DataFrame, rejected: pl.DataFrame) -> pl.DataFrame:
    """What the shards hold without the items that ``rejected.parquet`` names and the index leaves out."""
    file = pl.concat_str("shard", pl.lit("/"), "key", pl.lit("."), "suffix")
    aside = stored.select("shard", "key", file=file).join(rejected.select("file").unique(), on="file", how="semi")
    aside = aside.join(index, on=("shard", "key"), how="anti")
    return stored.join(aside, on=("shard", "key"), how="anti", maintain_order="left")


def check_against_tars(index: pl.DataFrame, levels: Sequence[str], stored: pl.DataFrame, findings: Findings) -> None:
    """Every item of the index in its tar, every item of the tars in the index, and both saying the same of it.

    Args:
        index: rows of the shards that were read.
        levels: finest first.
        stored: what the shards hold, :data:`pipelines.shard_scan.ITEMS` and the column shard.
        findings: to add to.
    """
    joined = index.join(stored, on=("shard", "key"), how="left", suffix=_STORED, maintain_order="left")
    there = pl.col(f"sha256{_STORED}").is_not_null()
    at = _said("an image at offset", "offset")
    findings.add_rows(joined.filter(~there), "missing-member", pl.lit("no such image in the tar"), at)
    extra = stored.filter(pl.col("sha256").is_not_null()).join(
        index, on=("shard", "key"), how="anti", maintain_order="left"
    )
    findings.add_rows(extra, "unindexed-member", at, "every image of the tar in the index")
    held = joined.filter(there)
    for name, kind in _COMPARED.items():
        differs = held.filter(pl.col(f"{name}{_STORED}") != pl.col(name))
        findings.add_rows(differs, kind, _said(name, f"{name}{_STORED}"), _said(name, name))
    known = held.filter(pl.col("labels").is_not_null())
    _compare_texts(known, "labels", _listed("labels"), _texts_of(levels), findings)
    stated = known.filter(pl.col("levels").list.len() > 0)
    _compare_texts(stated, "levels", _listed("levels"), pl.lit(", ".join(levels)), findings)
    boxes = _texts_of(BOX) if BOX[0] in index.columns else pl.lit(None, pl.String)
    none = pl.lit("none")
    _compare_texts(known, "box", _listed("box").fill_null(none), boxes.fill_null(none), findings)


def _compare_texts(rows: pl.DataFrame, kind: str, found: pl.Expr, expected: pl.Expr, findings: Findings) -> None:
    said = pl.concat_str(pl.lit(f"{kind} "), found), pl.concat_str(pl.lit(f"{kind} "), expected)
    findings.add_rows(rows.filter(found != expected), kind, *said)


def _said(what: str, column: str) -> pl.Expr:
    return pl.concat_str(pl.lit(f"{what} "), pl.col(column))


def _listed(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.List(pl.String)).list.join(", ")


def _texts_of(columns: Sequence[str]) -> pl.Expr:
    return pl.concat_str(columns, separator=", ")


def check_names(stored: pl.DataFrame, tree: Hierarchy, findings: Findings) -> None:
    """Labels and class names in the items' JSON, against the hierarchy."""
    usable = stored.filter(pl.col("labels").list.len() == len(tree.levels))
    for c, level in enumerate(tree.levels):
        classes = pl.DataFrame(
            {"label": range(-1, len(tree.names[c])), "own": ["", *tree.names[c]]},
            schema={"label": pl.Int32, "own": pl.String},
        )
        named = usable.select(
            *("key", "split", "shard"), label=pl.col("labels").list.get(c), name=pl.col("names").list.get(c)
        ).join(classes, on="label", how="left", maintain_order="left")
        wrong = named.filter(pl.col("name") != pl.col("own"))
        found = pl.concat_str(pl.lit(f"{level} "), "label", pl.lit(" is called "), "name")
        findings.add_rows(wrong, "names", found, pl.concat_str(pl.lit("called "), "own"))


def check_labels(index: pl.DataFrame, tree: Hierarchy, findings: Findings) -> None:
    """Labels of the index are classes of the hierarchy, and lie on one path of it."""
    for c, level in enumerate(tree.levels):
        size = len(tree.names[c])
        findings.add_rows(
            index.filter(pl.col(level) >= size), "hierarchy", _said(level, level), f"{level} below {size}"
        )
        if c + 1 == len(tree.levels):
            return
        above = tree.levels[c + 1]
        parents = pl.DataFrame({level: range(size), "parent": tree.parents[c]}, schema_overrides={level: pl.Int32})
        held = index.join(parents, on=level, how="left", maintain_order="left")
        wrong = held.filter((pl.col(above) >= 0) & (pl.col("parent") >= 0) & (pl.col(above) != pl.col("parent")))
        found = pl.concat_str(pl.lit(f"{level} "), level, pl.lit(f" under {above} "), above)
        findings.add_rows(wrong, "hierarchy", found, pl.concat_str(pl.lit(f"under {above} "), "parent"))


def check_runs(index: pl.DataFrame, finest: str, group_size: int, findings: Findings) -> None:
    """The columns group and duplicate_of are what the rows imply, and groups are as large as the manifest promises."""
    implied = with_runs(index, finest)
    for name in ("group", "duplicate_of"):
        rows = index.with_columns(implied[name].alias("implied")).filter(pl.col(name).ne_missing(pl.col("implied")))
        found, expected = (
            pl.concat_str(pl.lit(f"{name} "), pl.col(column).cast(pl.String).fill_null("none"))
            for column in (name, "implied")
        )
        findings.add_rows(rows, name, found, expected)
    short = short_runs(implied, finest, group_size)
    found = pl.concat_str(pl.lit("a group of "), "len")
    findings.add_rows(short, "group-size", found, f"at least {group_size} items of the class together", "first")


def short_runs(index: pl.DataFrame, finest: str, group_size: int) -> pl.DataFrame:
    """Runs of fewer than ``group_size`` items of a class that has as many in its split.

    Returns:
        split, the class, shard, group, len (items of the run) and first (the key of its first item).
    """
    runs = (
        index.filter(pl.col(finest) >= 0)
        .group_by("split", finest, "shard", "group", maintain_order=True)
        .agg(pl.len(), pl.col("key").first().alias("first"))
    )
    whole = pl.col("len").sum().over("split", finest)
    return runs.filter((pl.col("len") < group_size) & (whole >= group_size))


def check_counts(index: pl.DataFrame, manifest: Manifest, findings: Findings) -> None:
    """Counts of the manifest, against the index."""
    found = split_facts(index, manifest.levels)
    for split in sorted(found.keys() | manifest.splits.keys()):
        ours, stated = (_flat(facts.get(split)) for facts in (found, manifest.splits))
        for what in sorted(ours.keys() | stated.keys()):
            if ours.get(what, 0) != stated.get(what, 0):
                findings.add(
                    "counts", f"{ours.get(what, 0)} {what} in the index", f"{stated.get(what, 0)} {what}", split=split
                )
    held = dict(index.group_by("shard").len().iter_rows())
    for shard in manifest.shards:
        count = held.pop(shard.name, 0)
        if count != shard.items:
            findings.add(
                "counts", f"{count} items in the index", f"{shard.items} items", split=shard.split, shard=shard.name
            )
    for shard, count in sorted(held.items()):
        findings.add("counts", f"{count} items in the index", "a shard of the manifest", shard=shard)


def _flat(facts: SplitFacts | None) -> dict[str, int]:
    if facts is None:
        return {}
    classes = {f"classes of {level}": count for level, count in facts["classes"].items()}
    return {"items": facts["items"], "shards": facts["shards"], "unlabelled": facts["unlabelled"], **classes}

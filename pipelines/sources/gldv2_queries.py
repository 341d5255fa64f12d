"""The queries of GLDv2's retrieval task: test images, their labels and their relevant index images."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from hgld.protocols.gldv2 import read_retrieval_solution


@dataclass(frozen=True)
class Queries:
    """What the retrieval solution makes of the test set.

    Attributes:
        items: rows of the catalog: key, split, file and the levels.
        judgements: query, item, verdict ``relevant``; only index images that are in the gallery.
        lists: ``public`` and ``private``, the halves that are scored apart.
        dropped: file, split, reason, detail of the test images that are not scored.
    """

    items: pl.DataFrame
    judgements: pl.DataFrame
    lists: pl.DataFrame
    dropped: pl.DataFrame


def read_queries(solution: Path, gallery: pl.DataFrame) -> Queries:
    """The scored test images, with the labels that their relevant gallery images agree on.

    Args:
        solution: ``retrieval_solution_v2.1.csv``.
        gallery: rows of the catalog of the index images: key, then the levels.

    Raises:
        TableError: the solution cannot be read.
    """
    found = read_retrieval_solution(solution)
    halves = {"public": found.public, "private": found.private}
    pairs = [(q, i) for half in halves.values() for q, items in half.items() for i in items]
    wanted = pl.DataFrame(pairs, schema={"query": pl.String, "item": pl.String}, orient="row")
    levels = [column for column in gallery.columns if column not in ("key", "split", "file")]
    judged = wanted.join(gallery.select("key", *levels), left_on="item", right_on="key", how="inner")
    agreed = [
        pl.when(pl.col(level).n_unique() == 1).then(pl.col(level).first()).otherwise(None).alias(level)
        for level in levels
    ]
    labels = judged.group_by("query").agg(agreed)
    lists = pl.DataFrame(
        [(half, key) for half, queries in halves.items() for key in sorted(queries)],
        schema={"list": pl.String, "key": pl.String},
        orient="row",
    )
    items = lists.sort("key").join(labels, left_on="key", right_on="query", how="left", maintain_order="left")
    ignored = pl.DataFrame({"id": sorted(found.ignored)}, schema={"id": pl.String})
    return Queries(
        items=items.select("key", pl.lit("query").alias("split"), pl.format("test/{}", "key").alias("file"), *levels),
        judgements=judged.select("query", "item", verdict=pl.lit("relevant")).sort("query", "item"),
        lists=lists,
        dropped=ignored.select(
            file=pl.format("test/{}", "id"),
            split=pl.lit("query"),
            reason=pl.lit("ignored by the retrieval solution"),
            detail=pl.lit(""),
        ),
    )

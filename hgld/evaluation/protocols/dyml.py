"""Dynamic Metric Learning: queries and a gallery a level, and the averages over the levels.

Sun, Zhu, Zhang, Zheng, Qiu, Zhang, Wei: "Dynamic Metric Learning: Towards a Scalable Metric Space to Accommodate
Multiple Semantic Scales", CVPR 2021. DyML-Vehicle and DyML-Animal have queries and a gallery for each level, in which
the items are labelled at that level alone; DyML-Product has one set with labels at all three.

The authors' evaluator drops the first hit of every query, because their galleries hold the queries. Here a query that
is in the gallery is left out by identity, and the report says how many there were.
"""

from dataclasses import replace

import numpy as np
import polars as pl

from hgld.errors import InputError
from hgld.evaluation.evaluate import evaluate_labelled
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.protocols.benchmark import Benchmark, EmbeddedSplit
from hgld.evaluation.protocols.labelled import rank_by_labels
from hgld.evaluation.protocols.levels import average_over_levels
from hgld.evaluation.report import RetrievalReport

LEVELS = ("fine", "middle", "coarse")
_CASES = {
    "all": "every query is in the gallery and left out by identity, as the authors' evaluator drops the first hit",
    "none": "no query is in the gallery, so nothing is left out; the authors' evaluator would drop a true hit here",
    "some": "some queries are in the gallery and left out by identity",
}


def evaluate_dyml(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate ``query_LEVEL`` against ``gallery_LEVEL`` at each level, and average over the levels.

    A query is in the gallery where an item there has its path and its content, or at least its content.

    Returns:
        a report of every level's metrics, their averages (``AP/average``) and the mean ASI of the three sets; its
        settings say by level how many queries were found in the gallery, and which case that is.

    Raises:
        InputError: a split without labels at its level.
    """
    reports, found = {}, {}
    for level in LEVELS:
        query, gallery = benchmark[f"query_{level}"], benchmark[f"gallery_{level}"]
        column = benchmark.levels.index(level)
        self_index, found[level] = find_queries(query, gallery, f"query_{level}", f"gallery_{level}")
        sides = [(side.vectors, side.labels[:, [column]]) for side in (query, gallery)]
        if any(not (labels >= 0).any() for _, labels in sides):
            raise InputError(
                f"dataset {benchmark.name}: query_{level} or gallery_{level} has no label at the level {level}; "
                f"expected the labels of bmk_{level}. Build the dataset anew."
            )
        reports[level] = evaluate_labelled(*sides, levels=(level,), self_index=self_index, options=options)
    counts = {level: facts["left out"] for level, facts in found.items()}
    queries = sum(len(benchmark[f"query_{level}"]) for level in LEVELS)
    case = "none" if not any(counts.values()) else "all" if sum(counts.values()) == queries else "some"
    report = average_over_levels(*reports.values())
    stated = {"queries_in_gallery": found, "overlap": f"{case}: {_CASES[case]}"}
    return replace(report, settings=report.settings | stated)


def find_queries(
    query: EmbeddedSplit, gallery: EmbeddedSplit, query_split: str, gallery_split: str
) -> tuple[np.ndarray, dict[str, int]]:
    """Find the queries in the gallery: by their path below the split's folder and their content, or by content alone.

    Args:
        query: Q items.
        gallery: G items.
        query_split: beginning of the queries' keys.
        gallery_split: beginning of the gallery's keys.

    Returns:
        (Q,) gallery index of the query itself, -1 for none; counts of ``left out``, of those found ``by path``, ``by
        content alone``, and of paths that both have with ``other content``, which are different images.
    """
    sides = []
    for side, split in ((query, query_split), (gallery, gallery_split)):
        contents = side.contents() if side.contents is not None else pl.Series([""] * len(side), dtype=pl.String)
        sides.append(
            pl.DataFrame(
                {"path": side.keys.str.strip_prefix(f"{split}/"), "content": contents, "at": np.arange(len(side))}
            )
        )
    asked, there = sides
    paths = asked.join(there, on="path", how="inner")
    same = paths.filter(pl.col("content") == pl.col("content_right"))
    others = asked.filter(~pl.col("at").is_in(same["at"].implode()) & (pl.col("content") != ""))
    copies = others.join(there.unique("content", keep="first", maintain_order=True), on="content", how="inner")
    index = np.full(len(query), -1)
    for table in (same, copies):
        index[table["at"].to_numpy()] = table["at_right"].to_numpy()
    facts = {"left out": len(same) + len(copies), "by path": len(same), "by content alone": len(copies)}
    return index, facts | {"other content": len(paths) - len(same)}


def evaluate_dyml_product(benchmark: Benchmark, options: EvaluationOptions) -> RetrievalReport:
    """Evaluate the split ``test``, in which every image queries the others, at all levels, and average over them."""
    report = rank_by_labels(benchmark, benchmark["test"], None, options)
    return average_over_levels(report)

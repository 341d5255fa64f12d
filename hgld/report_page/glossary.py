"""What the metrics of a report mean, in a sentence each."""

from collections.abc import Iterable

from hgld.metrics import Metric

_MEANINGS = {
    "AP": "Average precision over the whole ranking; positives are the items of the query's class at that level.",
    "mAP@R": "Precision at the ranks of the positives among the first R, summed, over R: the number of positives.",
    "mAP@k": "Average precision of the first k, over min(k, R): the rule of Google Landmarks v2.",
    "R@k": "Share of queries with a positive among the first k.",
    "TR@k": "Positives among the first k, over min(k, R).",
    "P@k": "Share of positives among the first k.",
    "H-AP": "Hierarchical average precision: AP in which an item counts by how fine a level it shares with the query.",
    "H-R@k": "Relevance found among the first k, over all there is to find.",
    "H-P@k": "Hierarchical precision of the first k.",
    "NDCG": "Discounted gain (2^grade - 1) over the whole ranking, over that of the ideal one.",
    "NDCG@k": "The same over the first k.",
    "ASI": "Average set intersection of the ranking's beginnings with those of an ideal ranking.",
    "wAP": "The weighted sum of the levels' APs.",
    "AP#g": "AP of the items of one grade against those that share nothing with the query.",
}
_WORDS = (
    ("level", "One depth of the class hierarchy; the finest is named first."),
    ("grade", "How much an item shares with a query: 0 nothing, 1 the coarsest level, L the finest class."),
    ("mistake severity", "Levels to climb from the query's finest class to one that the first item shares."),
    ("undefined", "A query without a positive at a level has no value there and is left out of that mean."),
)


def glossary(metrics: Iterable[str]) -> list[tuple[str, str]]:
    """Terms and meanings: the metrics that a page shows, in their order, then the words of the page."""
    kinds = dict.fromkeys(Metric.parse(metric).kind for metric in metrics)
    return [*((kind, _MEANINGS[kind]) for kind in kinds), *_WORDS]

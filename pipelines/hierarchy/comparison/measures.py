"""Agreement of two hierarchies of the same items, as numbers.

B is the reference wherever a measure has a direction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import min_weight_full_bipartite_matching
from sklearn.metrics import adjusted_rand_score, homogeneity_completeness_v_measure, normalized_mutual_info_score


@dataclass(frozen=True)
class Partitions:
    """The agreement of two partitions of the same items.

    Attributes:
        items: number of items or names.
        groups_a, groups_b: number of groups that they are in.
        ari: adjusted Rand index (Hubert and Arabie 1985); 1 equal, 0 as by chance.
        nmi: mutual information over the arithmetic mean of the entropies; equals ``v_measure`` by definition.
        homogeneity, completeness, v_measure: Rosenberg and Hirschberg 2007, with B as the reference.
    """

    items: int
    groups_a: int
    groups_b: int
    ari: float
    nmi: float
    homogeneity: float
    completeness: float
    v_measure: float


def partitions(a: pl.Series, b: pl.Series) -> Partitions:
    """Measure two partitions, given as the groups of the same items, none of them null."""
    codes_a, codes_b = a.rank("dense").to_numpy(), b.rank("dense").to_numpy()
    homogeneity, completeness, v_measure = homogeneity_completeness_v_measure(codes_b, codes_a)
    ari, nmi = adjusted_rand_score(codes_b, codes_a), normalized_mutual_info_score(codes_b, codes_a)
    figures = map(float, (ari, nmi, homogeneity, completeness, v_measure))
    return Partitions(len(a), a.n_unique(), b.n_unique(), *figures)


@dataclass(frozen=True)
class AncestorAgreement:
    """Hierarchical precision, recall and F1 over the items' ancestors.

    An item's ancestors are its labels at the levels that are compared, the item itself and the root not among them.
    With A's set P and B's set T of an item, precision is ``sum(len(P & T)) / sum(len(P))``, recall
    ``sum(len(P & T)) / sum(len(T))`` over all items, F1 their harmonic mean (Kiritchenko, Matwin and Famili 2005; Silla
    and Freitas 2011; among the set-based measures of Kosmopoulos et al. 2015). None where neither side has a label.

    Attributes:
        items: items with a label on either side.
        precision, recall, f1: with labels as they are written: equal at a level only if their text is.
        matched_precision, matched_recall, matched_f1: after the labels of each level were matched one to one so that
            most items agree, for hierarchies whose groups are named differently.
    """

    items: int
    precision: float | None
    recall: float | None
    f1: float | None
    matched_precision: float | None
    matched_recall: float | None
    matched_f1: float | None


def ancestor_agreement(a: Sequence[pl.Series], b: Sequence[pl.Series]) -> AncestorAgreement:
    """Measure the ancestors of the same items.

    Args:
        a: the labels of A, one series a level, null where an item has none.
        b: the labels of B at the same levels.
    """
    has_label = pl.select(pl.any_horizontal([*(s.is_not_null() for s in a), *(s.is_not_null() for s in b)]))
    items = int(has_label.to_series().sum())
    size_a, size_b = (sum(len(s) - s.null_count() for s in side) for side in (a, b))
    same = sum(int((one == other).sum() or 0) for one, other in zip(a, b, strict=True))
    matched = sum(_most_in_common(one, other) for one, other in zip(a, b, strict=True))
    return AncestorAgreement(items, *_scores(same, size_a, size_b), *_scores(matched, size_a, size_b))


def _scores(common: int, size_a: int, size_b: int) -> tuple[float | None, float | None, float | None]:
    precision, recall = (common / size if size else None for size in (size_a, size_b))
    return precision, recall, 2 * common / (size_a + size_b) if size_a + size_b else None


def _most_in_common(a: pl.Series, b: pl.Series) -> int:
    """Return the number of items in matched groups, of the one-to-one matching that has most of them."""
    pairs = pl.DataFrame({"a": a, "b": b}).drop_nulls().group_by("a", "b").len().sort("a", "b")
    if pairs.is_empty():
        return 0
    rows = pairs["a"].rank("dense").to_numpy().astype(np.int64) - 1
    columns = pairs["b"].rank("dense").to_numpy().astype(np.int64) - 1
    shared = pairs["len"].to_numpy().astype(np.float64)
    # Every row gets a column of its own besides, for being left without a match: then a full matching exists, and the
    # sparse solver takes hierarchies of many thousand groups. It seeks the least weight, and 0 would be no edge.
    count, most = int(rows.max()) + 1, shared.max() + 1
    alone = np.arange(count)
    weights = csr_matrix(
        (
            np.concatenate([most - shared, np.full(count, most)]),
            (np.concatenate([rows, alone]), np.concatenate([columns, columns.max() + 1 + alone])),
        )
    )
    matched_rows, matched_columns = min_weight_full_bipartite_matching(weights)
    taken = np.asarray(weights[matched_rows, matched_columns]).reshape(-1)
    return round(float((most - taken).sum()))


def dendrogram_purity(levels: Sequence[pl.Series], classes: pl.Series) -> float | None:
    """Return the dendrogram purity of a tree for the classes of its leaves (Heller and Ghahramani 2005).

    For two leaves of one class, the purity of their least common ancestor is the share of that class among the leaves
    below it; dendrogram purity is the mean over all such pairs. It is counted exactly, node by node: below a node lie
    the pairs of its leaves less those of each child.

    Args:
        levels: the tree above N leaves as their nodes a level, finest first; null where a leaf has none there. A node
            is a label below the coarser ones of the same leaf, so that levels that are not nested are a tree too.
        classes: the N leaves' classes; null: of none, in every share's denominator alone.

    Returns:
        a number in 0..1; None where no class has two leaves.
    """
    kind = _codes(classes)
    node = np.zeros(len(kind), dtype=np.int64)
    others, purity = _others_and_purity(node, kind)
    pairs = float(others.sum())  # each pair twice, as everywhere below
    if not pairs:
        return None
    total = float((others * purity).sum())
    for level in reversed(levels):
        label = _codes(level)
        below = label >= 0  # the others stay at the node above
        children = (node * (label.max(initial=0) + 1) + label)[below]
        node[below] = len(kind) + np.unique(children, return_inverse=True)[1]
        node = np.unique(node, return_inverse=True)[1]
        others, nearer = _others_and_purity(node, kind)
        # the pairs below the new node were counted with the purity of the node above it
        total += float((others * (nearer - purity))[below].sum())
        purity = np.where(below, nearer, purity)
    return total / pairs


def _others_and_purity(node: np.ndarray, kind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each leaf how many others of its class lie below its node, and the share of its class there.

    Both are 0 for a leaf without a class.
    """
    of_class = node * (kind.max(initial=0) + 2) + kind + 1
    _, place, counts = np.unique(of_class, return_inverse=True, return_counts=True)
    same = np.where(kind >= 0, counts[place], 0).astype(np.float64)
    return np.maximum(same - 1, 0), same / np.bincount(node)[node]


def _codes(values: pl.Series) -> np.ndarray:
    """Return equal integers from 0 for equal values, -1 for null."""
    return values.rank("dense").cast(pl.Int64).fill_null(0).to_numpy() - 1

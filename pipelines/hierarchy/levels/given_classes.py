"""A classifier of names between classes that are given by texts alone, which abstains where it is not sure.

A class is given by one or more texts: its name, descriptions, names that belong to it. It needs no labelled names:

1. A name's score for a class is its highest cosine with the class's texts. Half of a class's mean score over all names
   is taken off, because some texts lie near to everything; the other half stays, since classes need not be equally
   frequent.
2. Scores become shares by a softmax whose scale is a third of the scores' standard deviation, for encoders differ in
   how far they spread cosines.
   A name that is as near to one class as to the other has equal shares.
3. Shares spread over the 10 nearest neighbours of each name: every round a name takes seven tenths of its neighbours'
   mean share and three tenths of its own (label spreading, Zhou et al., "Learning with local and global consistency",
   NIPS 2003). A name whose own words say little is so placed by the company it keeps.
4. The class of the largest share is taken if it leads the next one by the margin.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits

from ..encoders.registry import Encoder
from ..evidence.neighbours import neighbours
from ..groups.kmeans import unit

PROMPTS = ("{}", "a kind of {}", "this is {}")
MARGIN = 0.2
COMMON = 0.5
SAME = 0.05
LEAST_COSINE = 0.05  # of a neighbour; below, names have nothing to do with each other
SCALE = 0.35
NEIGHBOURS, FROM_NEIGHBOURS, ROUNDS = 10, 0.7, 30


@dataclass(frozen=True, eq=False)
class ClassShares:
    """The shares of every class in every name.

    Attributes:
        shares: (N, C) float64, each row sums to 1.
    """

    shares: np.ndarray

    @property
    def lead(self) -> np.ndarray:
        """(N,) the largest share less the next one."""
        ordered = np.sort(self.shares, axis=1)
        return ordered[:, -1] - ordered[:, -2]

    def decided(self, margin: float = MARGIN) -> np.ndarray:
        """Return (N,) the classes of the names, -1 where the largest share leads by less than the margin."""
        return np.where(self.lead >= margin, self.shares.argmax(axis=1), -1)

    def of_group(self, members: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the (C,) mean share of some names.

        Args:
            members: (n,) their places.
            weights: (n,) positive weights.
        """
        return np.average(self.shares[members], axis=0, weights=weights)


def class_shares(rows: np.ndarray, texts: Sequence[np.ndarray], around: np.ndarray | None = None) -> ClassShares:
    """Return the shares of classes in names.

    Args:
        rows: (N, D) unit rows of the names.
        texts: of every class, two at least, the (T, D) unit rows of its texts in the same space.
        around: (N, E) unit rows that say which names are neighbours, such as the joint evidence; ``rows`` if None.
    """
    with threadpool_limits(limits=1):
        scores = np.stack([(rows @ known.T).max(axis=1) for known in texts], axis=1).astype(np.float64)
        spread = float(scores.std()) or 1.0
        silent = np.ptp(scores, axis=1) < SAME * spread  # names that no text says anything about
        scores = (scores - COMMON * scores.mean(axis=0)) / (SCALE * spread)
        own = np.exp(scores - scores.max(axis=1, keepdims=True))
        own[silent] = 1
        own /= own.sum(axis=1, keepdims=True)
        links = _links(rows if around is None else around)
        shares = own
        for _ in range(ROUNDS):
            shares = FROM_NEIGHBOURS * (links @ shares) + (1 - FROM_NEIGHBOURS) * own
    return ClassShares(shares / shares.sum(axis=1, keepdims=True))


def text_rows(encoder: Encoder, texts: Sequence[str]) -> np.ndarray:
    """Return (T, D) unit rows of texts that name a class, each the mean of three ways to say that something is it."""
    prompts = PROMPTS if encoder.templates else ("{}",)  # an encoder without templates reads names as they are
    rows = [encoder.encode([prompt.replace("{}", text) for text in texts]) for prompt in prompts]
    return unit(np.mean(np.stack(rows), axis=0)).astype(np.float32)


def _links(rows: np.ndarray) -> csr_array:
    """Return (N, N) sparse weights of neighbours: squared cosines both ways, summing to 1; of a name alone, itself."""
    places, cosines = neighbours(rows, NEIGHBOURS)
    count = len(rows)
    starts = np.repeat(np.arange(count), places.shape[1])
    near = np.where(cosines.ravel() >= LEAST_COSINE, cosines.ravel().astype(np.float64), 0) ** 2
    one_way = csr_array((near, (starts, places.ravel())), shape=(count, count))
    links = one_way.maximum(one_way.T)
    total = np.asarray(links.sum(axis=1)).ravel()
    alone = csr_array((np.where(total > 0, 0.0, 1.0), (np.arange(count), np.arange(count))), shape=(count, count))
    scale = csr_array((1 / np.where(total > 0, total, 1), (np.arange(count), np.arange(count))), shape=(count, count))
    return csr_array(scale @ links + alone)

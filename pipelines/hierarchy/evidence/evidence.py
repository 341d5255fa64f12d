"""Evidence about names: blocks of unit rows, one a kind of evidence, and how much each of them counts.

A block has a row for every name that it knows. Blocks are joined side by side, each scaled by the root of its weight,
so that the cosine of two names is the weighted mean of their cosines by each block.

Weights are found without labels, by agreement: names are grouped by each block alone, on resamples of the names that
two blocks both know, and the adjusted Rand index of the two groupings says how far they agree beyond chance.

* The first block is what names are embedded with; it always takes part.
* A block of meaning (descriptions, classes, images, a table) takes part where it agrees with the other blocks of
  meaning by more than chance. Such blocks count in proportion to that agreement.
* A block of form (the wording) takes part where it agrees with the first block by a quarter. Names of like wording are
  of one kind where groups are small ("arch bridge", "toll bridge"); where they are few and large, wording says nothing
  about them, and there it agrees with no meaning.

How stable the groupings of a block are is no measure: wording falls into groups that come back on every resample and
yet are wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from ..groups.kmeans import leading_axes, unit
from .neighbours import nearest

RESAMPLES = 6
SAMPLE = 1000  # names of a resample at most
SHARE = 0.8  # of the names of a smaller list
LEAST_NAMES = 10  # known to both blocks, below which their agreement is not measured
LEAST_OF_FORM = 0.25
LEAST_OF_MEANING = 0.05  # groupings that have nothing to do with each other agree by 0, and hardly ever by so much
FORM = 0.4  # share of the blocks of form together, where any takes part
BORROWED = 5


@dataclass(frozen=True, eq=False)
class Block:
    """One kind of evidence about N names.

    Attributes:
        name: what it is.
        rows: (N, D) float32 unit rows, zero where nothing is known.
        known: (N,) bool, True where there is a row.
        is_form: True if it is about a name's wording and not about what is named.
    """

    name: str
    rows: np.ndarray
    known: np.ndarray
    is_form: bool = False

    @classmethod
    def of(cls, name: str, rows: np.ndarray, *, is_form: bool = False) -> "Block":
        """Return the block of any finite rows, brought to unit length; zero rows are names it does not know."""
        rows = unit(np.asarray(rows, dtype=np.float32))
        return cls(name, rows, np.linalg.norm(rows, axis=1) > 0, is_form)


@dataclass(frozen=True)
class Neighbour:
    """A name that a block puts near to another one, and their cosine."""

    name: str
    cosine: float


@dataclass(frozen=True)
class BlockSays:
    """A block's statement about a name.

    Attributes:
        block: its name.
        weight: its share of the joint evidence.
        known: False if the block knows nothing about the name.
        neighbours: the nearest names by the block, nearest first.
    """

    block: str
    weight: float
    known: bool
    neighbours: tuple[Neighbour, ...]


@dataclass(frozen=True, eq=False)
class Evidence:
    """Blocks about the same N names with their weights, which sum to 1.

    Attributes:
        blocks: the first is what names are embedded with.
        weights: one a block; 0: it takes no part.
        agreement: (B, B) mean adjusted Rand index of the groupings by two blocks; NaN where it was not measured.
    """

    blocks: tuple[Block, ...]
    weights: tuple[float, ...]
    agreement: np.ndarray

    def joint(self, form: float | None = None) -> np.ndarray:
        """Return (N, D) float32 unit rows of all blocks that take part.

        A name that a block does not know borrows the mean place of the 5 names that the block knows and that are
        nearest to it by the other blocks, by their cosines; so that what is missing neither joins nor parts names.

        Args:
            form: another share of the blocks of form together, where any takes part.
        """
        weights = self.weights if form is None else self._with_form(form)
        parts = [(block, weight) for block, weight in zip(self.blocks, weights, strict=True) if weight > 0]
        if len(parts) == 1 and parts[0][0].known.all():
            return parts[0][0].rows
        scaled = [np.where(block.known[:, None], block.rows, 0) * np.float32(weight) ** 0.5 for block, weight in parts]
        with threadpool_limits(limits=1):
            for place, (block, weight) in enumerate(parts):
                unknown = np.flatnonzero(~block.known)
                if unknown.size and block.known.any():
                    others = unit(np.hstack([rows for other, rows in enumerate(scaled) if other != place]))
                    known = np.flatnonzero(block.known)
                    lent = _borrowed(others[unknown], others[known], block.rows[known])
                    scaled[place][unknown] = lent * np.float32(weight) ** 0.5
        return unit(np.hstack(scaled)).astype(np.float32)

    def _with_form(self, share: float) -> tuple[float, ...]:
        is_form = [bool(place) and block.is_form for place, block in enumerate(self.blocks)]
        now = sum(weight for weight, flag in zip(self.weights, is_form, strict=True) if flag)
        scale = {True: share / now if now else 0.0, False: (1 - share) / (1 - now) if now else 1.0}
        return tuple(weight * scale[flag] for weight, flag in zip(self.weights, is_form, strict=True))

    def explain(self, place: int, names: Sequence[str], count: int = 5) -> list[BlockSays]:
        """Return what every block says about a name: its weight and the nearest names.

        Args:
            place: of the name in ``names``.
            names: the N names.
            count: neighbours a block.
        """
        says = []
        for block, weight in zip(self.blocks, self.weights, strict=True):
            others = np.flatnonzero(block.known & (np.arange(len(names)) != place))
            near: tuple[Neighbour, ...] = ()
            if block.known[place]:
                found, cosines = nearest(block.rows[place : place + 1], block.rows[others], count)
                pairs = zip(others[found[0]], cosines[0], strict=True)
                near = tuple(Neighbour(names[int(other)], round(float(cosine), 3)) for other, cosine in pairs)
            says.append(BlockSays(block.name, weight, bool(block.known[place]), near))
        return says


def weigh(blocks: Sequence[Block], *, groups: int, seed: int = 0) -> Evidence:
    """Return blocks with weights found by their agreement.

    Args:
        blocks: about the same names, in the names' sorted order, so that resamples do not depend on the order given.
        groups: the number of groups at which they are compared.
        seed: of the resamples.
    """
    agreement = agreements(blocks, groups=groups, seed=seed)
    return Evidence(tuple(blocks), weights_of([block.is_form for block in blocks], agreement), agreement)


def agreements(blocks: Sequence[Block], *, groups: int, seed: int = 0) -> np.ndarray:
    """Return the (B, B) mean adjusted Rand index of groupings by two blocks on resamples; NaN where not measured."""
    found = np.full((len(blocks), len(blocks)), np.nan)
    with threadpool_limits(limits=1):
        low = [leading_axes(block.rows) for block in blocks]
        for i in range(len(blocks)):
            for j in range(i):
                both = np.flatnonzero(blocks[i].known & blocks[j].known)
                if len(both) >= LEAST_NAMES:
                    found[i, j] = found[j, i] = _agreement(low[i][both], low[j][both], groups, seed)
    return found


def _agreement(first: np.ndarray, second: np.ndarray, groups: int, seed: int) -> float:
    random = np.random.default_rng(seed)
    size = min(SAMPLE, round(SHARE * len(first)))
    wanted = max(2, min(groups, size // 2))
    values = []
    for _ in range(RESAMPLES):
        drawn = np.sort(random.permutation(len(first))[:size])
        parts = [fcluster(linkage(rows[drawn], "ward"), wanted, "maxclust") for rows in (first, second)]
        values.append(adjusted_rand_score(*parts))
    return float(np.mean(values))


def weights_of(is_form: Sequence[bool], agreement: np.ndarray) -> tuple[float, ...]:
    """Return the blocks' weights by their agreement (:mod:`hgld.pipelines.hierarchy.evidence.evidence`).

    Args:
        is_form: which blocks are of form; the first block counts as one of meaning.
        agreement: (B, B), NaN where it is not known, which counts as 0.

    Returns:
        weights that sum to 1.

    >>> import numpy as np
    >>> weights_of([False, True], np.array([[np.nan, 0.5], [0.5, np.nan]]))
    (0.6, 0.4)
    >>> weights_of([False, True], np.array([[np.nan, 0.1], [0.1, np.nan]]))
    (1.0, 0.0)
    """
    known = np.nan_to_num(agreement, nan=0.0)
    np.fill_diagonal(known, 0)
    form = np.array([bool(place) and flag for place, flag in enumerate(is_form)])
    meaning = np.flatnonzero(~form)
    among = known[np.ix_(meaning, meaning)]
    part = (among.max(axis=1, initial=0) >= LEAST_OF_MEANING) | (meaning == 0)
    mean = np.where(part, among[:, part].sum(axis=1), 0)
    mean = mean / mean.sum() if mean.sum() > 0 else part / part.sum()
    forms = np.flatnonzero(form & (known[0] >= LEAST_OF_FORM))
    weights = np.zeros(len(form))
    weights[meaning] = mean * (1 - FORM if forms.size else 1)
    if forms.size:
        weights[forms] = FORM / forms.size
    return tuple(round(float(weight), 6) for weight in weights)


def _borrowed(text: np.ndarray, known_text: np.ndarray, places: np.ndarray) -> np.ndarray:
    found, cosines = nearest(text, known_text, BORROWED)
    near = np.maximum(cosines, np.float32(1e-6))
    return unit((places[found] * near[:, :, None]).sum(axis=1))

"""Probability that an item's label is wrong, at every level, and the rate of wrong labels.

Every item has candidate classes: its own class, the classes of its nearest neighbours, and the likeliest classes in the
Gaussian model (:mod:`hgld.label_audit.class_model`). The item itself is excluded from every class. A softmax over the
candidates gives p(z | x), the probability of the true finest class z. Its logits are a weighted sum of the evidence:

- the score in the Gaussian model
- the logarithm of the class's size
- the class's log probability by a cross-validated regression
- per level, the logarithm of the share of neighbours in z's class of that level

A noisy channel turns z into the label y. With probability e_0, y is z. With probability e_l, for l = 1 ... L, y is
drawn uniformly from the classes whose finest common level with z is l. Levels count from 0, the finest; at level L,
above the coarsest, all classes meet. The weights and e maximise the likelihood of the labels::

    p(y | x) = sum over z of p(z | x) p(y | z)

The label is wrong at level c with the posterior probability that z and y differ at c.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hgld.evaluation.neighbors import nearest_neighbors
from hgld.evaluation.options import Progress
from hgld.label_audit.class_model import ClassModel, ClassRegression, minimized, reduced

NEIGHBORS = 20
_MOST_EVIDENCE = 120_000_000  # maximum number of 4-byte values; if more were needed, items get fewer candidates
_LEAST_CANDIDATES = 32
# maximum of items x classes (minutes on a core); if it is exceeded, the regression uses a coarser level
_MOST_REGRESSED = 100_000_000
# temperature of the neighbours' votes, which have the weights exp((similarity - highest similarity) / scale)
_SIMILARITY_SCALE = 0.1
_PRIOR_SHARE = 0.1  # additive smoothing: weight of the class frequency that is added to the neighbours' votes
_LEAST_SIZE = 0.5  # size assumed for a class without another item, because log 0 is infinite
_SIZE = 1  # evidence column with the log of the class size
_LEAST_SIZE_SPREAD = 0.25
_BLOCK = 1024
_STEPS = 60


@dataclass(frozen=True, eq=False)
class LabelNoise:
    """Estimated errors of the labels of N items.

    Attributes:
        wrong: (N, L) probability that the label is wrong at each level; NaN if the label cannot be judged.
        proposed: (N, L) likeliest finest class of the item if its label is wrong at each level.
        rates: (L,) estimated share of wrong labels.
        neighbors: (N, K) indices of the nearest items.
    """

    wrong: np.ndarray
    proposed: np.ndarray
    rates: np.ndarray
    neighbors: np.ndarray


def find_wrong_labels(
    embeddings: np.ndarray, classes: np.ndarray, ancestors: np.ndarray, progress: Progress
) -> LabelNoise:
    """Find wrong labels.

    Args:
        embeddings: (N, D) float32 unit rows.
        classes: (N,) finest class of every item, from 0.
        ancestors: (C, L) class of each finest class at every level, finest first; column 0 is 0 ... C - 1.
        progress: function that is called with a task name, the number of finished units and the total.
    """
    count = min(NEIGHBORS, len(classes) - 1)
    own = np.arange(len(classes))
    near, alike = nearest_neighbors(embeddings, embeddings, count, self_index=own, progress=progress)
    progress("judge labels", 0, None)
    sizes = ancestors.max(axis=0) + 1
    level = next((c for c in range(len(sizes)) if len(classes) * sizes[c] <= _MOST_REGRESSED), len(sizes) - 1)
    items = reduced(embeddings)
    regression = ClassRegression.fit(items, ancestors[classes, level])
    candidates, evidence = _candidates(
        ClassModel.fit(items, classes), regression, level, near, alike, classes, ancestors
    )
    wrong, proposed = _fit(candidates, evidence, ancestors)
    rates = wrong.mean(axis=0)
    alone = np.bincount(classes)[classes] == 1  # the only item of a class cannot be compared within its class
    wrong[alone, 0] = wrong[alone, 1] if wrong.shape[1] > 1 else np.nan
    return LabelNoise(wrong, proposed, rates, near)


# -- candidates and their evidence ------------------------------------------------------------------------------------


def _candidates(
    model: ClassModel,
    regression: ClassRegression,
    regressed: int,
    near: np.ndarray,
    alike: np.ndarray,
    classes: np.ndarray,
    ancestors: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return candidate classes of every item, its own class first, and their evidence.

    Returns:
        (N, M) finest classes, padded with -1; and (N, M, F) float32 evidence: score in the model, log size, log
        probability in the regression, log share of neighbours at each level.
    """
    sizes = np.bincount(classes, minlength=len(ancestors))
    shares = [np.bincount(ancestors[classes, level]) / len(classes) for level in range(ancestors.shape[1])]
    most = max(_LEAST_CANDIDATES, _MOST_EVIDENCE // (len(classes) * (3 + len(shares))))
    parts = []
    for start in range(0, len(classes), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(classes)))
        scores = model.scores(rows)
        likeliest = min(most, scores.shape[1])
        top = np.argpartition(-scores, likeliest - 1, axis=1)[:, :likeliest]
        found = distinct(np.concatenate([classes[rows, None], classes[near[rows]], top], axis=1))
        known = np.maximum(found, 0)
        votes = np.exp((alike[rows] - alike[rows, :1]) / _SIMILARITY_SCALE)
        others = sizes[known] - (found == classes[rows, None])
        evidence = [np.take_along_axis(scores, known, axis=1), np.log(np.maximum(others, _LEAST_SIZE))]
        evidence.append(np.take_along_axis(regression.scores(rows), ancestors[known, regressed], axis=1))
        for level, share in enumerate(shares):
            theirs = ancestors[classes[near[rows]], level]
            same = ancestors[known, level][:, :, None] == theirs[:, None, :]
            part = (same * votes[:, None, :]).sum(axis=2) / np.maximum(votes.sum(axis=1), 1e-12)[:, None]
            evidence.append(np.log(part + _PRIOR_SHARE * share[ancestors[known, level]]))
        parts.append((found, np.stack(evidence, axis=2).astype(np.float32)))
    most = max(found.shape[1] for found, _ in parts)
    fill = [np.pad(found, ((0, 0), (0, most - found.shape[1])), constant_values=-1) for found, _ in parts]
    wide = [np.pad(values, ((0, 0), (0, most - values.shape[1]), (0, 0))) for _, values in parts]
    return np.concatenate(fill), np.concatenate(wide)


def distinct(table: np.ndarray) -> np.ndarray:
    """Keep the first of equal entries of every row, in order; pad rows with -1 to the length of the longest."""
    order = np.argsort(table, axis=1, kind="stable")
    sorted_ = np.take_along_axis(table, order, axis=1)
    again = np.zeros(table.shape, bool)
    np.put_along_axis(again, order[:, 1:], sorted_[:, 1:] == sorted_[:, :-1], axis=1)
    width = int((~again).sum(axis=1).max())
    front = np.argsort(again, axis=1, kind="stable")[:, :width]
    return np.where(np.take_along_axis(again, front, axis=1), -1, np.take_along_axis(table, front, axis=1))


# -- the noise channel: the probability of a label given the true class -----------------------------------------------


def meeting_levels(own: np.ndarray, others: np.ndarray, ancestors: np.ndarray) -> np.ndarray:
    """Return 0 for equal classes, else 1 + the coarsest level at which two classes differ.

    Args:
        own: (N,) finest classes.
        others: (N, M) finest classes.
        ancestors: (C, L) class of each level, per finest class.
    """
    differ = ancestors[own][:, None, :] != ancestors[others]
    steps = np.arange(1, ancestors.shape[1] + 1)
    return (differ * steps).max(axis=2)


def choices(ancestors: np.ndarray) -> np.ndarray:
    """Return (C, L + 1) numbers of classes that the channel can turn each class into.

    Column 0 is 1: the class itself. Column c counts the classes whose finest common level with the class is c.
    """
    num, levels = ancestors.shape
    made = np.ones((num, levels + 1))
    under = [np.bincount(ancestors[:, level])[ancestors[:, level]] for level in range(levels)] + [np.full(num, num)]
    for level in range(levels):
        made[:, level + 1] = under[level + 1] - under[level]
    return made


def log_joint(values: Tensor, evidence: Tensor, filled: Tensor, met: Tensor, chance: Tensor) -> Tensor:
    """Return (N, M) log p(z | x) p(y | z) of every candidate z and the label y.

    Args:
        values: (F + L,) weights before softplus, then the logits of e_1 ... e_L; the logit of e_0 is 0.
        evidence: (N, M, F) features of each item's M candidates.
        filled: (N, M) bool, True for padding, which holds no candidate.
        met: (N, M) result of :func:`meeting_levels` for y and z.
        chance: (N, M) log probability of y among the classes that the channel can turn z into at that level.
    """
    weights = evidence.shape[2]
    logits = evidence @ torch.nn.functional.softplus(values[:weights])
    channel = torch.log_softmax(torch.cat([torch.zeros(1).to(values), values[weights:]]), 0)
    return torch.log_softmax(logits.masked_fill(filled, -torch.inf), dim=1) + channel[met] + chance


def _fit(candidates: np.ndarray, features: np.ndarray, ancestors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit weights and channel by the likelihood of the labels.

    Returns:
        (N, L) probability that the label is wrong at each level, and (N, L) likeliest finest class if it is wrong.
    """
    levels, known = ancestors.shape[1], np.maximum(candidates, 0)
    met = meeting_levels(candidates[:, 0], known, ancestors)
    number = np.take_along_axis(choices(ancestors)[known], met[:, :, None], axis=2)[:, :, 0]
    evidence, filled = torch.from_numpy(features), torch.from_numpy(candidates < 0)
    spread = evidence[~filled].std(dim=0).clamp_min(1e-6)
    # If all classes have one size, only the item's own class has one item less, and scaling would reveal the label.
    spread[_SIZE] = spread[_SIZE].clamp_min(_LEAST_SIZE_SPREAD)
    chance = torch.from_numpy(-np.log(np.maximum(number, 1))).float()
    fixed = (evidence / spread, filled, torch.from_numpy(met), chance)
    weights = evidence.shape[2]

    def backward(values: Tensor) -> float:
        prior = 0.5 * ((values[weights:] + 4) ** 2).sum() / 4
        value = (prior - log_joint(values, *fixed).logsumexp(dim=1).sum()) / len(candidates)
        value.backward()
        return value.item()

    start = torch.cat([torch.full((weights,), 1.5), torch.full((levels,), -4.0)])
    fitted = minimized(backward, start, _STEPS)
    with torch.no_grad():
        shares = torch.softmax(log_joint(fitted, *fixed), dim=1).double().numpy()
    shares /= shares.sum(axis=1, keepdims=True)
    wrong = np.stack([(shares * (met > level)).sum(axis=1) for level in range(levels)], axis=1)
    best = [np.where(met > level, shares, -1.0).argmax(axis=1) for level in range(levels)]
    rows = np.arange(len(candidates))
    return wrong, np.stack([known[rows, place] for place in best], axis=1)

"""Votes of a language model for the groups of names, and the reliability of the votes, learned from decisions.

A wrong vote is assumed to name a group that is probable by the evidence too. Then a vote for a name without evidence
makes its group as probable as the model is reliable; against clear evidence, the vote counts less.
"""

import numpy as np
from scipy.special import softmax

_RATES = np.linspace(0.025, 0.975, 39)  # reliabilities to compare
_PRIOR = 7 * np.log(_RATES) + 3 * np.log1p(-_RATES)  # before any decision: as after 7 right and 3 wrong votes
_OF_ALL = 10.0  # for one group's reliability, all groups' reliability counts as this many votes
_LEAST = 1e-3  # smallest probability by the evidence


def weigh(shares: np.ndarray, votes: np.ndarray, reliability: np.ndarray) -> np.ndarray:
    """Return the (N, K) probabilities of groups after votes.

    Args:
        shares: (N, K) probabilities before.
        votes: (N,) group per name; -1: no vote.
        reliability: (K,) probability that a vote for a group is right.
    """
    told = np.flatnonzero(votes >= 0)
    each, chosen = np.arange(len(told)), votes[told]
    before, right = np.clip(shares[told], _LEAST, 1 - _LEAST), reliability[chosen]
    likelihood = ((1 - right) * before[each, chosen])[:, None] / (1 - before)  # of the vote, per true group
    likelihood[each, chosen] = right
    after = shares.copy()
    after[told] = before * likelihood
    return after / after.sum(axis=1, keepdims=True)


def learn_reliability(shares: np.ndarray, votes: np.ndarray, answers: np.ndarray, count: int) -> np.ndarray:
    """Return (K,) probabilities that a vote for a group is right.

    The queue asks for names that are probably wrong, so the plain share of right votes would be too low. Therefore the
    likelihood compares each answer with the probability that :func:`weigh` gives it.

    Args:
        shares: (M, K) probabilities of the decided names before their decisions and votes.
        votes: (M,) group per name; -1: no vote.
        answers: (M,) groups that people gave.
        count: number of groups K.
    """
    told = np.flatnonzero(votes >= 0)
    chosen, before = votes[told], np.clip(shares[told], _LEAST, 1 - _LEAST)
    others = before / (1 - before)
    others[np.arange(len(told)), chosen] = 0
    right = _RATES / (_RATES + (1 - _RATES) * others.sum(axis=1)[:, None])
    seen = np.log(np.where((chosen == answers[told])[:, None], right, 1 - right))
    overall = softmax(_PRIOR + seen.sum(axis=0)) @ _RATES
    by_group = np.zeros((count, len(_RATES)))
    np.add.at(by_group, chosen, seen)
    prior = _OF_ALL * (overall * np.log(_RATES) + (1 - overall) * np.log1p(-_RATES))
    return softmax(prior + by_group, axis=1) @ _RATES

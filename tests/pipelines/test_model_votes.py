"""Votes of language models, against slow references: weights, reliability, and what the learner makes of them."""

import math
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld.pipelines.hierarchy.review.decisions import Entry, Move
from hgld.pipelines.hierarchy.review.grouping import Grouping
from hgld.pipelines.hierarchy.review.learner import Learner
from hgld.pipelines.hierarchy.review.model_votes import learn_reliability, weigh
from tests.rows import each_row

START = datetime(2026, 1, 1, tzinfo=UTC)


def drawn(seed, n=12, k=4):
    """Return probabilities, votes (some missing) and answers."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(k), n).clip(0.01)
    return shares / shares.sum(axis=1, keepdims=True), rng.integers(-1, k, n), rng.integers(0, k, n)


def slow_likelihood(shares, vote, truth, reliability):
    """Return the probability of a vote if the group ``truth`` is right."""
    if vote == truth:
        return reliability
    return (1 - reliability) * shares[vote] / sum(share for k, share in enumerate(shares) if k != truth)


@given(seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_weights_match_the_slow_reference(seed):
    shares, votes, _ = drawn(seed)
    rates = np.random.default_rng(seed).uniform(0.1, 0.9, 4)
    for row, vote, after in zip(shares, votes.tolist(), weigh(shares, votes, rates), strict=True):
        slow = [p * (slow_likelihood(row, vote, k, rates[vote]) if vote >= 0 else 1) for k, p in enumerate(row)]
        assert after == pytest.approx(np.array(slow) / sum(slow), abs=1e-9)


def slow_reliability(shares, votes, answers, count):
    """Return the reliability per group by sums over a grid, in float64."""
    grid = [0.025 + 0.025 * i for i in range(39)]

    def likelihood(rate, chosen):
        total = 0.0
        for row, vote, answer in zip(shares.tolist(), votes.tolist(), answers.tolist(), strict=True):
            if vote >= 0 and chosen in (None, vote):
                each = [p * slow_likelihood(row, vote, k, rate) for k, p in enumerate(row)]
                right = each[vote] / sum(each)
                total += math.log(right if vote == answer else 1 - right)
        return total

    def mean(start, chosen):
        logs = [start(rate) + likelihood(rate, chosen) for rate in grid]
        weights = [math.exp(value - max(logs)) for value in logs]
        return sum(w * rate for w, rate in zip(weights, grid, strict=True)) / sum(weights)

    overall = mean(lambda rate: 7 * math.log(rate) + 3 * math.log(1 - rate), None)
    prior = lambda rate: 10 * (overall * math.log(rate) + (1 - overall) * math.log(1 - rate))  # noqa: E731
    return [mean(prior, group) for group in range(count)]


@each_row("seed", range(2))
def test_reliability_matches_the_slow_reference(seed):
    shares, votes, answers = drawn(seed)
    assert learn_reliability(shares, votes, answers, 4) == pytest.approx(slow_reliability(shares, votes, answers, 4))


# -- the learner ---------------------------------------------------------------------------------------------------

NAMES = [f"n{i:02}" for i in range(40)]
PLACE = {name: i % 2 for i, name in enumerate(NAMES)}


def grouping_of(moves, who="ada"):
    made = Grouping.of(PLACE, {0: "castle", 1: "lake", 2: "tower"}, {})
    for i, (name, to) in enumerate(moves.items(), 1):
        decision = Move(who=who, when=START, names=(name,), to=to)
        made.apply(Entry(decision, Path(f"{who}.yaml"), i))
    assert not made.unmatched
    return made


def learner():
    """Return a learner without evidence: all names are equally far from each other."""
    rows = np.eye(43, dtype=np.float32)
    return Learner(NAMES, rows[:40], np.ones(40), PLACE, (np.arange(3), rows[40:]), np.full(40, 0.6))


def test_votes_move_undecided_names_and_decide_nothing():
    votes = grouping_of(dict.fromkeys(NAMES[:10], "tower"), "model:m")
    now = learner().fit(grouping_of({}), [votes])
    assert {name for name, group in now.place.items() if group == 2} == {*NAMES[:10]}
    assert now.undecided.all()
    assert (now.errors[:10] > 0.1).all()
    decided = learner().fit(grouping_of({NAMES[0]: "lake"}), [votes])
    assert decided.place[NAMES[0]] == 1


def test_wrong_votes_count_less_and_per_group():
    votes = grouping_of({name: ("tower", "lake")[i % 2] for i, name in enumerate(NAMES)}, "model:m")
    start = learner().fit(grouping_of({}), [votes])
    said = {name: "castle" if i % 2 == 0 else "lake" for i, name in enumerate(NAMES[:30])}
    after = learner().fit(grouping_of(said), [votes])
    tower, lake = slice(30, None, 2), slice(31, None, 2)
    assert (after.shares[tower, 2] < start.shares[tower, 2] - 0.2).all()
    assert (after.shares[lake, 1] > after.shares[tower, 2] + 0.3).all()


def test_contradicted_votes_have_a_reliability_of_their_own():
    kept, contradicted = (
        grouping_of(dict.fromkeys(names, "tower"), who)
        for names, who in ((NAMES[:20], "model:m"), (NAMES[20:], "model:m contradicted"))
    )
    said = {name: "tower" if i < 10 else ("castle", "lake")[i % 2] for i, name in enumerate(NAMES[:30]) if i % 20 < 10}
    after = learner().fit(grouping_of(said), [kept, contradicted])
    assert after.shares[10:20, 2].min() > after.shares[30:, 2].max() + 0.3


def test_second_model_is_heard_too():
    one, other = (grouping_of({NAMES[1]: "tower", NAMES[3]: to}, f"model:{to}") for to in ("tower", "castle"))
    shares = [learner().fit(grouping_of({}), models).shares for models in ([one], [one, other])]
    assert shares[1][1, 2] > shares[0][1, 2] + 0.02  # both say tower
    assert shares[1][3, 2] < shares[0][3, 2] - 0.1  # they differ

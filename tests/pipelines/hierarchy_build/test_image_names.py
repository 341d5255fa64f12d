import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.pipelines.hierarchy.assign import NEIGHBOURS, unit, vote, zero_shot


def vectors(rng, rows, dim=6):
    return unit(rng.normal(size=(rows, dim)))


def slow_zero_shot(image, names, groups):
    weights = np.exp(100.0 * (names.astype(np.float64) @ image))
    share = weights / weights.sum()
    by_group = {g: share[groups == g].sum() for g in set(groups.tolist())}
    best = max(by_group, key=lambda g: by_group[g])
    return max((share[i], i) for i in range(len(names)) if groups[i] == best)[1], by_group[best]


@given(st.integers(0, 1000))
def test_zero_shot_sums_the_softmax_by_group(seed):
    rng = np.random.default_rng(seed)
    images, names, groups = vectors(rng, 5), vectors(rng, 9), np.arange(9) % 3
    choice = zero_shot(images, names, groups)
    for i, image in enumerate(images):
        name, score = slow_zero_shot(image, names, groups)
        assert choice.name[i] == name
        assert choice.score[i] == pytest.approx(score, abs=1e-3)


def test_two_names_of_one_group_do_not_split_its_score():
    image = unit(np.array([[1.0, 0.0]]))
    names = unit(np.array([[1.0, 0.1], [1.0, -0.1], [0.0, 1.0]]))
    choice = zero_shot(image, names, np.array([0, 0, 1]))
    assert choice.score[0] > 0.99


@given(st.integers(0, 1000), st.integers(1, 30))
def test_votes_are_shares_and_the_name_is_of_the_winning_group(seed, known):
    rng = np.random.default_rng(seed)
    names, groups = rng.integers(0, 6, known), np.arange(6) % 3
    reference, asked = vectors(rng, known), vectors(rng, 4)
    choice = vote(asked, reference, names, groups)
    assert ((choice.score >= 0) & (choice.score <= 1)).all()
    for i, image in enumerate(asked):
        similarity = reference @ image
        nearest = np.argsort(-similarity, kind="stable")[:NEIGHBOURS]
        tally = np.zeros(3)
        for j in nearest:
            tally[groups[names[j]]] += max(similarity[j], 0)
        if tally.sum() > 0:
            assert choice.score[i] == pytest.approx(tally.max() / tally.sum(), abs=1e-5)
            assert tally[groups[choice.name[i]]] == pytest.approx(tally.max(), abs=1e-5)
            assert choice.name[i] in names[nearest]
        else:
            assert choice.score[i] == 0


def test_nobody_asked_is_nobody_named():
    nothing = np.zeros((0, 3), dtype=np.float32)
    assert len(zero_shot(nothing, np.eye(3, dtype=np.float32), np.arange(3)).name) == 0

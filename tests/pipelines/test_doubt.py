"""Uncertainty: probabilities of wrong placements and their expected number."""

import numpy as np
import pytest
from scipy.special import expit, logit

from hgld.pipelines.hierarchy.groups import doubt

SPREADS = doubt.Spreads(between_sets=0.8, between_groups=0.6)
COARSE = (
    ("lake", "alpine lake", "salt lake", "glacial lake"),
    ("stone bridge", "bridge", "toll bridge", "road bridge"),
)


def rows_of(names, groups):
    """Return rows near one axis per group, with small differences that depend on the letters of the names."""
    rows = np.eye(8, dtype=np.float32)[groups] + 0.2 * np.array(
        [[ord(n[i % len(n)]) % 7 / 7 for i in range(8)] for n in names]
    )
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def into(labels, confidence, right=()):
    """Return predefined groups, with predictions of one seed per group; names with confidence 1 are seeds."""
    sure = np.array(confidence)
    return doubt.Given(labels, sure, sure == 1, np.arange(len(right)), np.array(right, dtype=bool))


@pytest.fixture
def tidy():
    names = [name for group in COARSE for name in group]
    groups = np.repeat([0, 1], 4)
    return rows_of(names, groups), groups, names


def test_misplaced_name_has_the_highest_error_probability(tidy):
    rows, groups, names = tidy
    placed = groups.copy()
    placed[0] = 1  # "lake" is placed among the bridges
    wrong = doubt.wrong_probabilities(rows, placed, names)
    assert wrong.argmax() == 0
    assert wrong[0] > 0.5 > wrong[1:].max()


@pytest.mark.parametrize(("names", "groups"), [(["a"], [0]), (["", "...", "озеро", "湖"], [0, 1, 0, 1])])
def test_probabilities_of_unusual_names_are_in_range(names, groups):
    groups, labels = np.array(groups), ["lake", ""][: max(groups) + 1]
    for rows in (rows_of([n or " " for n in names], groups), np.zeros((len(names), 8), dtype=np.float32)):
        for given_groups in (None, into(labels, np.zeros(len(names)))):
            wrong = doubt.wrong_probabilities(rows, groups, names, given=given_groups)
            assert wrong.dtype == np.float32
            assert ((wrong >= np.float32(doubt.LEAST)) & (wrong <= np.float32(doubt.MOST))).all()


def test_name_that_shares_a_word_with_its_predefined_group_is_less_doubtful(tidy):
    rows, groups, names = tidy
    said = [into(labels, [0.5] * 8) for labels in (["lake", "bridge"], ["water", "way"])]
    named, unnamed = (doubt.wrong_probabilities(rows, groups, names, given=stated) for stated in said)
    assert (named < unnamed).all()


def test_predicted_seeds_change_the_error_probabilities_of_all_names(tidy):
    rows, groups, names = tidy
    seeds = [], [True] * 6 + [False] * 6, [True] * 12, [False] * 12
    said = [into(["lake", "bridge"], [0.5] * 7 + [1], right) for right in seeds]
    none, half, right, wrong = (doubt.wrong_probabilities(rows, groups, names, given=stated) for stated in said)
    assert (right < none)[:7].all()
    assert (right < half)[:7].all()
    assert (half < wrong)[:7].all()
    assert half[:7].mean() == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("right", [[], [False] * 12])
def test_name_that_equals_a_group_or_a_seed_is_not_doubtful(tidy, right):
    rows, groups, names = tidy
    for confidence in ([0.5] * 7 + [1.0], [1.0] * 8):
        wrong = doubt.wrong_probabilities(rows, groups, names, given=into(["lake", "bridge"], confidence, right))
        assert (wrong == np.float32(doubt.LEAST)).tolist() == [sure == 1 for sure in confidence]


def test_neighbours_are_other_names_even_if_rows_are_equal():
    rows, groups = np.eye(4, dtype=np.float32)[np.zeros(8, int)], np.arange(8)
    assert doubt.features(rows, groups, ["x"] * 8, given=into([""] * 8, [0.5] * 8))["together"].tolist() == [0.0] * 8
    same = doubt.features(rows, groups * 0, ["x"] * 8, given=into([""], [0.5] * 8))
    assert same["together"].tolist() == [1.0] * 8


# -- number of wrong names --------------------------------------------------------------------------------------------


def checked(kept=(), groups=None):
    """Return even odds for names of decided groups, which were accepted if they were kept."""
    kept = np.array(kept, dtype=bool)
    return np.zeros(len(kept)), kept, kept, np.arange(len(kept)) if groups is None else groups, (0, 0)


def test_interval_of_the_number_of_wrong_names_matches_a_simulation():
    """The reference draws an offset for the whole set, an offset per group, and an outcome per name."""
    rng = np.random.default_rng(0)
    wrong, groups = rng.uniform(0.05, 0.8, 300), rng.integers(0, 12, 300)
    draws = []
    for _ in range(4000):
        level = rng.normal(0, 1.25 * SPREADS.between_sets)
        odds = logit(wrong) + level + rng.normal(0, SPREADS.between_groups, 12)[groups]
        draws.append((rng.random(300) < expit(odds)).sum())
    belief = doubt.believe(*checked(), SPREADS)
    found = doubt.Expected.of(doubt.still_wrong(logit(wrong), np.ones(300), groups, belief, np.zeros(0)))
    assert found.mean == pytest.approx(np.mean(draws), abs=6)
    assert [found.low, found.high] == pytest.approx(np.quantile(draws, [0.1, 0.9]), abs=15)


def test_decided_names_of_one_group_count_as_four_names():
    def level(count, group):
        told = checked([False] * count, np.arange(count) // group)
        belief = doubt.believe(*told, SPREADS)
        return float(belief.states @ belief.levels)

    assert level(60, 60) == pytest.approx(level(4, 4))
    assert level(60, 20) == pytest.approx(level(12, 1))
    assert 0 < level(4, 4) < level(12, 4) < level(30, 1) == pytest.approx(level(60, 1))


def test_many_kept_groups_mean_a_good_build_or_a_person_who_does_not_read():
    answers = [True] * 30, [True, False] * 15, [False] * 30
    kept, mixed, moved = (doubt.believe(*checked(is_kept), SPREADS) for is_kept in answers)
    assert kept.unread > 0.5
    assert max(mixed.unread, moved.unread) < 0.1
    chance = [belief.errors(np.zeros(1))[0] for belief in (mixed, moved)]
    assert chance[1] > chance[0] == pytest.approx(0.5, abs=0.05)

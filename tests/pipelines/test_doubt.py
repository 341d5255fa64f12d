"""Uncertainty: probabilities of wrong placements and their expected number."""

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
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
    assert wrong[0] > doubt.DOUBTFUL > wrong[1:].max()


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (["a"], [0]),
        (["lake", "bridge"], [0, 1]),
        (["lake", "bridge", "tower"], [0, 0, 0]),
        (["...", "???", "!!", "--"], [0, 0, 1, 2]),
        (["", "lake", "alpine lake"], [0, 1, 1]),
        (["озеро", "湖", "بحيرة", "θάλασσα"], [0, 0, 1, 1]),
    ],
    ids=["one name", "groups of one", "one group", "no letters", "no text", "four scripts"],
)
@pytest.mark.parametrize("empty", [False, True], ids=["rows", "zero rows"])
def test_probabilities_of_unusual_names_are_in_range(names, groups, empty):
    groups = np.array(groups)
    rows = np.zeros((len(names), 8), dtype=np.float32) if empty else rows_of([n or " " for n in names], groups)
    labels = ["" if g else "lake" for g in range(groups.max() + 1)]
    for into in (None, doubt.Given(labels, np.zeros(len(names)))):
        wrong = doubt.wrong_probabilities(rows, groups, names, given=into)
        assert wrong.dtype == np.float32
        assert ((wrong >= np.float32(doubt.LEAST)) & (wrong <= np.float32(doubt.MOST))).all()


def test_name_that_shares_a_word_with_its_predefined_group_is_less_doubtful(tidy):
    rows, groups, names = tidy
    said = [doubt.Given(labels, np.full(8, 0.5)) for labels in (["lake", "bridge"], ["water", "way"], ["lake", ""])]
    named, unnamed, outside = (doubt.wrong_probabilities(rows, groups, names, given=into) for into in said)
    assert (named < unnamed).all()
    assert (outside[4:] != unnamed[4:]).all(), "names that fit no group have a separate error level"


def test_uncertainty_model_file_states_its_training_data():
    stated = yaml.safe_load(doubt.MODEL.read_text())
    assert stated["schema_version"] == 1
    assert {"sets", "encoders", "versions", "penalty"} <= set(stated["about"])
    for kind in ("found", "given"):
        model = doubt.Model.read(kind)
        assert min(model.spreads) > 0
        assert model.features["margins"][2] < 0, "a smaller margin must mean a higher error probability"


# -- number of wrong names --------------------------------------------------------------------------------------------

CHANCES = st.lists(st.floats(0.001, 0.999), min_size=1, max_size=40).map(np.array)


@given(CHANCES, st.randoms(use_true_random=False))
def test_interval_of_the_number_of_wrong_names_contains_the_mean(wrong, random):
    weights = np.array([random.randint(1, 9) for _ in wrong], dtype=float)
    groups = np.array([random.randint(0, 3) for _ in wrong])
    found = doubt.still_wrong(wrong, SPREADS, weights=weights, groups=groups)
    assert 0 <= found.low <= found.mean <= found.high <= weights.sum()


def test_interval_of_the_number_of_wrong_names_matches_a_simulation():
    """The reference draws an offset for the whole set, an offset per group, and an outcome per name."""
    rng = np.random.default_rng(0)
    wrong, groups = rng.uniform(0.05, 0.8, 300), rng.integers(0, 12, 300)
    draws = []
    for _ in range(4000):
        levels = logit(wrong) + rng.normal(0, SPREADS.between_sets) + rng.normal(0, SPREADS.between_groups, 12)[groups]
        draws.append((rng.random(300) < expit(levels)).sum())
    found = doubt.still_wrong(wrong, SPREADS, groups=groups)
    assert found.mean == pytest.approx(np.mean(draws), abs=4)
    assert [found.low, found.high] == pytest.approx(np.quantile(draws, [0.1, 0.9]), abs=9)

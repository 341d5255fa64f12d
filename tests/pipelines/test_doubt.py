"""Doubt: probabilities of wrong placements, what decisions make of them, and how many placements are wrong in all."""

from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit

from hgld.pipelines.hierarchy.groups import doubt

MODEL = doubt.Model({}, 0.0, between_sets=0.8, between_slopes=0.5, between_groups=0.6, unlearnt=0.3)
COARSE = (
    ("lake", "alpine lake", "salt lake", "glacial lake"),
    ("stone bridge", "bridge", "toll bridge", "road bridge"),
)


def rows_of(names: list[str], groups: np.ndarray) -> np.ndarray:
    """Rows near to one axis a group, a little apart by the names' letters."""
    rows = np.eye(8, dtype=np.float32)[groups] + 0.2 * np.array(
        [[ord(n[i % len(n)]) % 7 / 7 for i in range(8)] for n in names]
    )
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def tidy() -> tuple[np.ndarray, np.ndarray, list[str]]:
    names = [name for group in COARSE for name in group]
    groups = np.repeat([0, 1], 4)
    return rows_of(names, groups), groups, names


def test_a_name_among_strangers_is_doubted_most(tidy):
    rows, groups, names = tidy
    placed = groups.copy()
    placed[0] = 1  # "lake" among the bridges
    wrong = doubt.wrong_probabilities(rows, placed, names)
    assert wrong.argmax() == 0
    assert wrong[0] > doubt.DOUBTFUL > wrong[1:].max()


@pytest.mark.parametrize("kind", ["found", "given"])
def test_the_order_of_names_does_not_matter(tidy, kind):
    rows, groups, names = tidy
    order = np.random.default_rng(0).permutation(len(names))
    confidence = np.linspace(0, 1, len(names))
    into = [doubt.Given(["lake", "bridge"], c) if kind == "given" else None for c in (confidence, confidence[order])]
    one = doubt.wrong_probabilities(rows, groups, names, given=into[0])
    other = doubt.wrong_probabilities(rows[order], groups[order], [names[i] for i in order], given=into[1])
    np.testing.assert_array_equal(one[order], other)


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
def test_odd_names_have_honest_values(names, groups, empty):
    groups = np.array(groups)
    rows = np.zeros((len(names), 8), dtype=np.float32) if empty else rows_of([n or " " for n in names], groups)
    labels = ["" if g else "lake" for g in range(groups.max() + 1)]
    for into in (None, doubt.Given(labels, np.zeros(len(names)))):
        wrong = doubt.wrong_probabilities(rows, groups, names, given=into)
        assert wrong.dtype == np.float32
        assert ((wrong >= np.float32(doubt.LEAST)) & (wrong <= np.float32(doubt.MOST))).all()


def test_a_group_of_one_is_not_certain(tidy):
    rows, groups, names = tidy
    alone = doubt.wrong_probabilities(rows, np.where(np.arange(8) == 7, 2, groups), names)[7]
    assert 0.02 < alone < 0.5


def test_a_name_in_its_own_words_is_less_doubted_in_given_groups(tidy):
    rows, groups, names = tidy
    said = [doubt.Given(labels, np.full(8, 0.5)) for labels in (["lake", "bridge"], ["water", "way"], ["lake", ""])]
    named, unnamed, outside = (doubt.wrong_probabilities(rows, groups, names, given=into) for into in said)
    assert (named < unnamed).all()
    assert (outside[4:] != unnamed[4:]).all(), "what fits no group has a level of its own"


def test_the_coefficients_say_what_they_were_fitted_on():
    stated = yaml.safe_load(doubt.MODEL.read_text())
    assert stated["schema_version"] == 1
    assert {"sets", "encoders", "versions", "penalty"} <= set(stated["about"])
    for kind in ("found", "given"):
        model = doubt.Model.read(kind)
        assert min(model.between_sets, model.between_slopes, model.between_groups, model.unlearnt) > 0
        assert model.marks["margins"][2] < 0, "the nearer to another group, the likelier wrong"


# -- how many are wrong -----------------------------------------------------------------------------------------------

CHANCES = st.lists(st.floats(0.001, 0.999), min_size=1, max_size=40).map(np.array)


@given(CHANCES, st.randoms(use_true_random=False))
def test_the_interval_holds_the_mean_and_what_is_possible(wrong, random):
    decided = np.array([random.random() < 0.3 for _ in wrong])
    weights = np.array([random.randint(1, 9) for _ in wrong], dtype=float)
    groups = np.array([random.randint(0, 3) for _ in wrong])
    found = doubt.still_wrong(wrong, decided, weights=weights, groups=groups, model=MODEL)
    assert 0 <= found.low <= found.mean <= found.high <= weights[~decided].sum()


def test_nothing_is_wrong_where_all_is_decided():
    found = doubt.still_wrong(np.array([0.9, 0.4]), np.array([True, True]), model=MODEL)
    assert (found.mean, found.low, found.high) == (0, 0, 0)


def test_the_interval_is_that_of_draws():
    """A slow twin: levels of the set and of its groups are drawn, then every name."""
    rng = np.random.default_rng(0)
    wrong, groups = rng.uniform(0.05, 0.8, 300), rng.integers(0, 12, 300)
    draws = []
    for _ in range(4000):
        levels = logit(wrong) + rng.normal(0, MODEL.between_sets) + rng.normal(0, MODEL.between_groups, 12)[groups]
        draws.append((rng.random(300) < expit(levels)).sum())
    found = doubt.still_wrong(wrong, groups=groups, model=MODEL)
    assert found.mean == pytest.approx(np.mean(draws), abs=4)
    assert [found.low, found.high] == pytest.approx(np.quantile(draws, [0.1, 0.9]), abs=9)


def test_levels_and_groups_widen_the_interval_and_decisions_narrow_it():
    wrong, groups = np.full(200, 0.3), np.repeat(np.arange(10), 20)
    decided = np.arange(200) % 4 == 0

    def width(**options) -> float:
        found = doubt.still_wrong(wrong, **{"model": MODEL, **options})
        return found.high - found.low

    independent = 2 * 1.2816 * np.sqrt(200 * 0.3 * 0.7)
    assert width(model=replace(MODEL, between_sets=1e-6)) == pytest.approx(independent, rel=0.02)
    assert independent < width() < width(groups=groups)
    assert width(decided=decided) / 150 < width() / 200


# -- after decisions --------------------------------------------------------------------------------------------------


@given(CHANCES)
def test_without_decisions_nothing_moves(wrong):
    same = doubt.recalibrated(wrong, np.zeros(len(wrong), dtype=bool), np.zeros(len(wrong), dtype=bool), model=MODEL)
    np.testing.assert_array_equal(same, np.clip(wrong, doubt.LEAST, doubt.MOST))


@settings(deadline=None)
@given(CHANCES, st.randoms(use_true_random=False))
def test_levels_are_of_the_highest_posterior(wrong, random):
    """The gradient of the stated posterior, by differences in float64, vanishes where Newton's method ends."""
    odds = logit(wrong)
    found = np.array([float(random.random() < 0.5) for _ in wrong])
    labels = np.array([random.randint(0, 2) for _ in wrong])
    level, slope, of_group = doubt._posterior(odds, found, labels, 3, MODEL)

    def posterior(at: np.ndarray) -> float:
        p = expit(at[0] + at[1] * odds + at[2:][labels])
        likelihood = np.log(np.where(found > 0, p, 1 - p)).sum()
        prior = (at[0] / 0.8) ** 2 + ((at[1] - 1) / 0.5) ** 2 + ((at[2:] / 0.6) ** 2).sum()
        return float(likelihood - prior / 2)

    at = np.array([level, slope, *of_group])
    if slope > 0:  # a slope below 0, by which doubt would be turned round, is cut off
        for step in np.eye(5) * 1e-5:
            assert abs(posterior(at + step) - posterior(at - step)) / 2e-5 < 1e-3


def test_only_surprise_counts():
    """Found as expected, among doubtful names alone, says nothing new; all found right lowers what is left."""
    wrong = np.concatenate([np.full(50, 0.8), np.full(50, 0.2)])
    decided = np.arange(100) < 50
    as_expected = doubt.recalibrated(wrong, decided, np.arange(100) < 40, model=MODEL)
    assert as_expected[50:] == pytest.approx(np.full(50, 0.2), abs=0.01)
    assert (as_expected[:50] == 0).all()
    all_right = doubt.recalibrated(wrong, decided, np.zeros(100, dtype=bool), model=MODEL)
    assert (all_right[50:] < 0.1).all()


def test_a_group_found_wrong_raises_its_own_most():
    wrong, groups = np.full(60, 0.3), np.repeat([0, 1, 2], 20)
    decided = np.arange(60) % 20 < 8
    after = doubt.recalibrated(wrong, decided, groups == 1, groups=groups, model=MODEL)
    assert after[39] > 0.5 > after[59]
    assert after[59] == pytest.approx(after[19])

"""Joint evidence: weights from agreement, and names without features in a source."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld.pipelines.hierarchy.groups.evidence import FORM, Block, Evidence, add_words, weigh, weights_of
from hgld.pipelines.hierarchy.unit_rows import unit


def view(labels, spread, seed, dim=20):
    random = np.random.default_rng(seed)
    return random.normal(size=(int(labels.max()) + 1, dim))[labels] + spread * random.normal(size=(len(labels), dim))


LABELS = np.repeat(np.arange(10), 15)


def test_noise_and_evidence_that_contradicts_the_meaning_get_no_weight():
    text, images = view(LABELS, 0.8, 1), view(LABELS, 0.8, 2)
    noise = np.random.default_rng(3).normal(size=(150, 20))
    other = view(np.tile(np.arange(15), 10), 0.1, 4)  # these features group stably, but independently of the labels
    blocks = [
        Block.of("text", text),
        Block.of("wording", other, is_form=True),
        Block.of("images", images),
        Block.of("noise", noise),
    ]
    evidence = weigh(blocks, groups=10)
    assert evidence.weights[1] == evidence.weights[3] == 0
    assert evidence.weights[0] == pytest.approx(evidence.weights[2]) == pytest.approx(0.5)
    near = weigh([blocks[0], Block.of("wording", view(LABELS, 0.8, 5), is_form=True)], groups=10)
    assert near.weights == (1 - FORM, FORM)


@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_weights_sum_to_one_and_the_first_source_has_positive_weight(count, seed):
    random = np.random.default_rng(seed)
    agreement = random.uniform(-0.1, 1, (count, count))
    agreement = np.where(random.random((count, count)) < 0.2, np.nan, agreement)
    agreement = np.tril(agreement) + np.tril(agreement, -1).T
    flags = random.random((count, 2)) < 0.5
    blocks = [Block.of(str(i), np.ones((1, 1)), is_form=bool(f), is_asked=bool(a)) for i, (f, a) in enumerate(flags)]
    weights = weights_of(blocks, agreement)
    assert sum(weights) == pytest.approx(1, abs=1e-5)
    assert min(weights) >= 0 < weights[0]
    assert all(weight > 0 for weight, block in zip(weights, blocks, strict=True) if block.is_asked)


@settings(max_examples=10)
@given(st.lists(st.floats(0.05, 1), min_size=3, max_size=3), st.integers(0, 2**32 - 1))
def test_joint_cosines_are_weighted_means_of_the_cosines_per_source(weights, seed):
    random = np.random.default_rng(seed)
    shares = np.array(weights) / sum(weights)
    blocks = tuple(Block.of(str(i), random.normal(size=(12, 6))) for i in range(3))
    joint = Evidence(blocks, tuple(shares), np.full((3, 3), np.nan)).joint()
    expected = sum(share * block.rows @ block.rows.T for share, block in zip(shares, blocks, strict=True))
    assert np.allclose(joint @ joint.T, expected, atol=1e-5)


def test_name_without_evidence_gets_the_mean_of_its_neighbours():
    text, images = view(LABELS, 0.2, 1), view(LABELS, 0.2, 2)
    images[::7] = 0
    evidence = Evidence((Block.of("text", text), Block.of("images", images)), (0.5, 0.5), np.full((2, 2), np.nan))
    joint = evidence.joint()
    assert np.allclose(np.linalg.norm(joint, axis=1), 1, atol=1e-5)
    assert set(np.argsort(-(joint @ joint.T)[0])[:15]) == set(range(15))
    lent = joint[0, 20:] / 0.5**0.5
    near = evidence.blocks[1].rows[[i for i in range(15) if i % 7]].mean(axis=0)
    assert lent @ unit(near[None])[0] > 0.9


def test_words_that_names_share_join_them():
    cosines = (rows := np.vstack(add_words(np.eye(2, 3), np.eye(1, 3, 2), ["old mill", "new mill", "church"]))) @ rows.T
    assert cosines[0, 1] > cosines[0, 2] == pytest.approx(0)
    assert np.diag(cosines) == pytest.approx(1)

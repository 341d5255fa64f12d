"""Joint evidence: weights by agreement, names that a block does not know, and what each block says about a name."""

import numpy as np
import pytest
from hgld.pipelines.hierarchy.evidence.neighbours import nearest, neighbours
from hgld.pipelines.hierarchy.groups.kmeans import unit
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from hgld.pipelines.hierarchy.config import ClusterConfig
from hgld.pipelines.hierarchy.evidence.evidence import FORM, Block, Evidence, weigh, weights_of
from hgld.pipelines.hierarchy.groups.clustering import cluster_names


def view(labels: np.ndarray, spread: float, seed: int, dim: int = 20) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.normal(size=(int(labels.max()) + 1, dim))[labels] + spread * random.normal(size=(len(labels), dim))


LABELS = np.repeat(np.arange(10), 15)
NAMES = [f"{i:03}" for i in range(150)]


def test_evidence_together_groups_better_than_each_block_alone():
    blocks = [Block.of(str(seed), view(LABELS, 1.3, seed)) for seed in range(3)]
    evidence = weigh(blocks, groups=10)
    config = ClusterConfig(groups=10)
    alone = [adjusted_rand_score(LABELS, cluster_names(b.rows, NAMES, config=config).groups) for b in blocks]
    together = adjusted_rand_score(LABELS, cluster_names(evidence.joint(), NAMES, config=config).groups)
    assert together > max(alone) + 0.1, (alone, together)


def test_noise_and_disagreeing_wording_take_no_part():
    text, images = view(LABELS, 0.8, 1), view(LABELS, 0.8, 2)
    noise = np.random.default_rng(3).normal(size=(150, 20))
    other = view(np.tile(np.arange(15), 10), 0.1, 4)  # as stable as can be, of something else
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


def test_of_three_blocks_the_one_that_agrees_less_counts_less():
    blocks = [Block.of(str(spread), view(LABELS, spread, seed)) for seed, spread in enumerate((0.9, 0.9, 2.2))]
    weights = weigh(blocks, groups=10).weights
    assert 0 < weights[2] < 0.8 * min(weights[:2])


def test_weights_follow_the_seed_alone():
    blocks = [Block.of("text", view(LABELS, 1.5, 1)), Block.of("images", view(LABELS, 1.5, 2))]
    first, again, other = (weigh(blocks, groups=10, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first.agreement, again.agreement, equal_nan=True)
    assert not np.array_equal(first.agreement, other.agreement, equal_nan=True)


@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_weights_are_shares_and_the_first_block_always_counts(count, seed):
    random = np.random.default_rng(seed)
    agreement = random.uniform(-0.1, 1, (count, count))
    agreement = np.where(random.random((count, count)) < 0.2, np.nan, agreement)
    agreement = np.tril(agreement) + np.tril(agreement, -1).T
    is_form = [False, *(random.random(count - 1) < 0.5).tolist()]
    weights = weights_of(is_form, agreement)
    assert sum(weights) == pytest.approx(1, abs=1e-5)
    assert min(weights) >= 0 < weights[0]


@settings(max_examples=30)
@given(st.lists(st.floats(0.05, 1), min_size=3, max_size=3), st.integers(0, 2**32 - 1))
def test_joint_cosines_are_the_weighted_means_of_the_blocks(weights, seed):
    random = np.random.default_rng(seed)
    shares = np.array(weights) / sum(weights)
    blocks = tuple(Block.of(str(i), random.normal(size=(12, 6))) for i in range(3))
    joint = Evidence(blocks, tuple(shares), np.full((3, 3), np.nan)).joint()
    expected = sum(share * block.rows @ block.rows.T for share, block in zip(shares, blocks, strict=True))
    assert np.allclose(joint @ joint.T, expected, atol=1e-5)


def test_a_name_without_a_row_borrows_the_place_of_its_neighbours():
    text, images = view(LABELS, 0.2, 1), view(LABELS, 0.2, 2)
    images[::7] = 0
    evidence = Evidence((Block.of("text", text), Block.of("images", images)), (0.5, 0.5), np.full((2, 2), np.nan))
    joint = evidence.joint()
    assert np.allclose(np.linalg.norm(joint, axis=1), 1, atol=1e-5)
    assert set(np.argsort(-(joint @ joint.T)[0])[:15]) == set(range(15))
    lent = joint[0, 20:] / 0.5**0.5
    near = evidence.blocks[1].rows[[i for i in range(15) if i % 7]].mean(axis=0)
    assert lent @ unit(near[None])[0] > 0.9


def test_what_each_block_says_about_a_name():
    rows = unit(np.array([[1, 0], [0.9, 0.1], [0, 1], [0.5, 0.5]], dtype=np.float32))
    pictures = unit(np.array([[1, 0], [0, 0], [1, 0.1], [0, 1]], dtype=np.float32))
    evidence = Evidence((Block.of("text", rows), Block.of("images", pictures)), (0.7, 0.3), np.zeros((2, 2)))
    text, images = evidence.explain(0, ["a", "b", "c", "d"], count=2)
    assert (text.block, text.weight, text.known) == ("text", 0.7, True)
    assert [near.name for near in text.neighbours] == ["b", "d"]
    assert [near.name for near in images.neighbours] == ["c", "d"], "b has no picture, and none is its own neighbour"
    assert text.neighbours[0].cosine == pytest.approx(rows[0] @ rows[1], abs=1e-3)
    assert evidence.explain(1, ["a", "b", "c", "d"])[1] == type(images)("images", 0.3, False, ())


@settings(max_examples=50)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_neighbours_are_those_of_a_full_sort_with_ties_by_place(count, wanted, seed):
    rows = np.random.default_rng(seed).integers(-2, 3, (count, 3)).astype(np.float32)
    cosine = rows @ rows.T
    places, found = nearest(rows, rows, wanted)
    order = np.argsort(-cosine, axis=1, kind="stable")[:, :wanted]
    assert np.array_equal(places, order)
    assert np.array_equal(found, np.take_along_axis(cosine, order, axis=1))
    np.fill_diagonal(cosine, -np.inf)
    others, _ = neighbours(rows, wanted)
    assert np.array_equal(others, np.argsort(-cosine, axis=1, kind="stable")[:, : min(wanted, count - 1)])

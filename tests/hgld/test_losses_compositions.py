"""Losses made of losses, and the adapter of another library's."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hgld import Hierarchy
from hgld.errors import ConfigError, InputError
from hgld.losses.binned import FastAP
from hgld.losses.compositions import HAPPIER, ROADMAP, RODNDCG, Composition, RODRecall, SumOverLevels
from hgld.losses.memory import CrossBatchMemory
from hgld.losses.pairs import CalibrationLoss
from hgld.losses.proxies import CSL, NormSoftmax
from hgld.losses.surrogate_losses import SmoothAP, SmoothRecall, SupAP, SupHAP, SupNDCG, SupRecall
from hgld.losses.wrappers import ClassWeighted, MatryoshkaLoss, MetricLearningLoss, SiMix, mix_positives
from tests import reference_losses

LABELS = torch.tensor([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1], [3, 1], [-1, 1]])
TREE = Hierarchy.from_labels(LABELS[:7].numpy(), ("fine", "coarse"))
RANKS = {
    ROADMAP: SupAP(0.01, 100, 0.05),
    RODRecall: SupRecall((1, 2, 4, 8, 16), 1.0),
    HAPPIER: SupHAP(1.0, 0.01, 100, 0.05),
    RODNDCG: SupNDCG(0.01, 100, 0.05),
}


def batch() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(8, 5)


@pytest.mark.parametrize("kind", list(RANKS))
@pytest.mark.parametrize("decomposability", ["pair", "proxy"])
def test_compositions_are_the_weighted_sums_of_the_papers(kind, decomposability):
    loss = kind(4, 5, decomposability=decomposability)
    proxy = NormSoftmax(4, 5, 0.05)
    if decomposability == "proxy":
        proxy.load_state_dict(loss.decomposability.state_dict())
    second = CalibrationLoss(0.9, 0.6) if decomposability == "pair" else proxy
    embeddings = batch()
    expected = 0.9 * RANKS[kind](embeddings, LABELS) + 0.1 * second(embeddings, LABELS)
    torch.testing.assert_close(loss(embeddings, LABELS), expected)
    terms = loss.terms(embeddings, LABELS)
    torch.testing.assert_close(0.9 * terms["rank"] + 0.1 * terms["decomposability"], expected)
    assert len(list(loss.parameters())) == (decomposability == "proxy")


@pytest.mark.parametrize("kind", list(RANKS))
def test_compositions_hand_on_the_options_of_the_rank_term(kind):
    embeddings = batch()
    loss = kind(decomposability="pair", tau=0.05, rho=10.0, delta=0.1, exclude_self=True, method="eager")
    rank = type(RANKS[kind])(tau=0.05, rho=10.0, delta=0.1, exclude_self=True)
    terms = loss.terms(embeddings, LABELS)
    torch.testing.assert_close(terms["rank"], rank(embeddings, LABELS))
    torch.testing.assert_close(terms["decomposability"], CalibrationLoss(exclude_self=True)(embeddings, LABELS))


def test_compositions_take_references():
    embeddings, references = batch(), torch.randn(6, 5)
    ref_labels = LABELS[:6]
    loss = ROADMAP()
    expected = 0.9 * SupAP()(embeddings, LABELS, references, ref_labels)
    expected += 0.1 * CalibrationLoss()(embeddings, LABELS, references, ref_labels)
    torch.testing.assert_close(loss(embeddings, LABELS, references, ref_labels), expected)


def test_wrong_compositions_are_refused():
    with pytest.raises(ConfigError, match="num_classes and dim"):
        HAPPIER()
    with pytest.raises(ConfigError, match="decomposability 'none'"):
        ROADMAP(decomposability="none")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="lambda_ is 2"):
        ROADMAP(lambda_=2)
    with pytest.raises(ConfigError, match="reduction='none'"):
        Composition(SupAP(reduction="none"), CalibrationLoss())


@pytest.mark.parametrize("decomposability", ["pair", "proxy"])
def test_every_querys_part_is_the_weighted_sum_of_its_terms(decomposability):
    embeddings, labels = batch()[:7], LABELS[:7]
    whole = HAPPIER(4, 5, decomposability=decomposability)
    each = HAPPIER(4, 5, decomposability=decomposability, reduction="none")
    each.load_state_dict(whole.state_dict())
    values, valid = each(embeddings, labels)
    assert valid.all()
    torch.testing.assert_close(values.mean(), whole(embeddings, labels))
    values, valid = each(batch(), LABELS)  # the last item is known at the coarse level alone: it has no proxy
    assert valid.tolist() == [True] * 8
    with pytest.raises(ConfigError, match="reduction='none'"):
        each.terms(embeddings, labels)


def test_sum_over_levels_adds_one_loss_a_level():
    embeddings = batch()
    expected = SmoothAP(level=0)(embeddings, LABELS) + SmoothAP(level=1)(embeddings, LABELS)
    torch.testing.assert_close(SumOverLevels(SmoothAP())(embeddings, LABELS), expected)
    torch.testing.assert_close(SumOverLevels(SmoothAP())(embeddings, LABELS[:, 0]), SmoothAP()(embeddings, LABELS))
    fine, coarse = NormSoftmax(4, 5), NormSoftmax(2, 5)
    expected = fine(embeddings, LABELS[:, 0]) + coarse(embeddings, LABELS[:, 1])
    torch.testing.assert_close(SumOverLevels(fine, coarse)(embeddings, LABELS), expected)
    references = torch.randn(8, 5)
    expected = sum(FastAP(level=c)(embeddings, LABELS, references, LABELS) for c in range(2))
    torch.testing.assert_close(SumOverLevels(FastAP())(embeddings, LABELS, references, LABELS), expected)


def test_sum_over_levels_refuses_what_it_cannot_sum():
    graded = [HAPPIER(decomposability="pair"), SiMix(SupHAP(normalize=False)), CSL(TREE, 5), torch.compile(SupHAP())]
    other_levels = [ROADMAP(level=1), ClassWeighted(SmoothAP(level=1, reduction="none"), "balanced")]
    each_query = [SmoothAP(reduction="none"), SiMix(SmoothAP(normalize=False, reduction="none"))]
    for wrong in ([], [SupHAP()], [SmoothAP(level=1)], *([loss] for loss in graded + other_levels + each_query)):
        with pytest.raises(ConfigError):
            SumOverLevels(*wrong)
    assert SumOverLevels(ClassWeighted(SmoothAP(reduction="none"), "balanced"))(batch(), LABELS).shape == ()
    with pytest.raises(ConfigError, match="3 losses and the labels have 2 levels"):
        SumOverLevels(SmoothAP(), SmoothAP(), SmoothAP())(batch(), LABELS)


def test_mixing_pairs_of_a_class():
    torch.manual_seed(0)
    embeddings, labels = batch(), torch.tensor([[5, 1], [5, 1], [5, 1], [7, 1], [-1, 1], [-1, 1], [8, 0], [7, 1]])
    virtual, virtual_labels = mix_positives(embeddings, labels)
    assert virtual_labels.tolist() == [[5, 1], [5, 1], [5, 1], [7, 1]]
    for item, (i, j) in zip(virtual, [(0, 1), (0, 2), (1, 2), (3, 7)], strict=True):
        share = (item - embeddings[j]) @ (embeddings[i] - embeddings[j]) / (embeddings[i] - embeddings[j]).norm() ** 2
        assert 0 <= share <= 1
        torch.testing.assert_close(item, share * embeddings[i] + (1 - share) * embeddings[j])


def test_simix_adds_virtual_items_in_training_alone():
    embeddings = batch()
    plain = SmoothRecall(normalize=False)
    loss = SiMix(plain)
    unit = nn.functional.normalize(embeddings)
    torch.manual_seed(3)
    virtual, virtual_labels = mix_positives(unit, LABELS)
    expected = plain(torch.cat([unit, virtual]), torch.cat([LABELS, virtual_labels]))
    torch.manual_seed(3)
    torch.testing.assert_close(loss(embeddings, LABELS), expected)
    loss.eval()
    torch.testing.assert_close(loss(embeddings, LABELS), plain(unit, LABELS))


def test_simix_with_references_equals_the_loss_of_mixed_queries():
    embeddings = batch()
    plain = SmoothRecall(normalize=False, exclude_self=True)
    references = torch.cat([embeddings, torch.randn(4, 5)])
    ref_labels = torch.cat([LABELS, LABELS[:4]])
    unit = nn.functional.normalize(embeddings)
    torch.manual_seed(3)
    virtual, virtual_labels = mix_positives(unit, LABELS)
    self_index = torch.arange(8)
    expected = plain(
        torch.cat([unit, virtual]),
        torch.cat([LABELS, virtual_labels]),
        nn.functional.normalize(references),
        ref_labels,
        torch.cat([self_index, self_index.new_full((len(virtual),), -1)]),
    )
    torch.manual_seed(3)
    torch.testing.assert_close(SiMix(plain)(embeddings, LABELS, references, ref_labels, self_index), expected)


def test_simix_refuses_a_loss_that_normalises():
    with pytest.raises(ConfigError, match="normalize=False"):
        SiMix(SmoothRecall())


class Recorder(nn.Module):
    """Stands for another library's loss: same call, keeps what it was given."""

    def __init__(self):
        super().__init__()
        self.given: tuple[Any, ...] = ()

    def forward(self, embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None):
        self.given = (embeddings, labels, indices_tuple, ref_emb, ref_labels)
        return embeddings.sum()


def test_adapter_hands_over_known_items_of_the_level():
    embeddings = batch()
    recorder = Recorder()
    miner = lambda e, y, ref_emb, ref_labels: (len(e), ref_emb is None)  # noqa: E731
    MetricLearningLoss(recorder, miner)(embeddings, LABELS)
    assert torch.equal(recorder.given[0], embeddings[:7])
    assert recorder.given[1].tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert recorder.given[2:] == ((7, True), None, None)
    MetricLearningLoss(recorder, level=1)(embeddings, LABELS)
    assert recorder.given[1].tolist() == LABELS[:, 1].tolist()


def test_adapter_leaves_the_batch_out_of_its_references():
    embeddings, recorder = batch(), Recorder()
    references, ref_labels = torch.randn(5, 5), torch.tensor([0, 1, -1, 2, 3])
    self_index = torch.tensor([1, -1, -1, -1, -1, -1, -1, 4])
    MetricLearningLoss(recorder)(embeddings, LABELS, references, ref_labels, self_index)
    assert torch.equal(recorder.given[3], references[[0, 3]])
    assert recorder.given[4].tolist() == [0, 2]


def test_adapter_with_nothing_known_is_zero_with_a_gradient_path():
    embeddings = batch().requires_grad_()
    value = MetricLearningLoss(Recorder())(embeddings, torch.full((8,), -1))
    value.backward()
    assert value == 0
    with pytest.raises(InputError, match="reads level 3"):
        MetricLearningLoss(Recorder(), level=3)(embeddings, LABELS)


def test_adapter_runs_the_real_library():
    library = pytest.importorskip("pytorch_metric_learning.losses")
    miners = pytest.importorskip("pytorch_metric_learning.miners")
    embeddings = batch().requires_grad_()
    for inner in (library.MultiSimilarityLoss(), library.ContrastiveLoss(), library.TripletMarginLoss()):
        value = MetricLearningLoss(inner, miners.MultiSimilarityMiner())(embeddings, LABELS)
        value = value + MetricLearningLoss(inner)(embeddings, LABELS, torch.randn(6, 5), LABELS[:6])
        assert value.isfinite()
        value.backward()


# -- prefixes ---------------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 99),
    st.sampled_from([(5,), (2, 5), (1, 3, 4), (2, 3, 5)]),
    st.lists(st.integers(1, 8), min_size=3, max_size=3),
)
def test_a_loss_of_prefixes_is_the_mean_of_the_loss_of_each(seed, dims, weights):
    generator = torch.Generator().manual_seed(seed)
    embeddings, references = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (8, 6))
    used = [weight / 4 for weight in weights[: len(dims)]]
    loss = SupHAP()
    found = MatryoshkaLoss(loss, dims, used)
    own = torch.arange(8).where(torch.arange(8) < 6, -1)
    for others in ((), (references, LABELS[:6], own)):
        expected = reference_losses.matryoshka_loss(loss, embeddings, LABELS, dims, used, *others)
        torch.testing.assert_close(found(embeddings, LABELS, *others), expected)


def test_a_prefix_moves_its_own_numbers_alone_and_the_whole_vector_is_the_loss_itself():
    embeddings = batch().requires_grad_()
    MatryoshkaLoss(SupAP(), (2,))(embeddings, LABELS).backward()
    assert embeddings.grad is not None
    assert embeddings.grad[:, :2].abs().sum() > 0
    assert (embeddings.grad[:, 2:] == 0).all()
    torch.testing.assert_close(MatryoshkaLoss(SupHAP(), (5,))(embeddings, LABELS), SupHAP()(embeddings, LABELS))


def test_prefixes_have_proxies_of_their_own_size_and_go_into_a_memory():
    loss = MatryoshkaLoss([NormSoftmax(4, 2), NormSoftmax(4, 5)], (2, 5))
    assert [tuple(p.shape) for p in loss.parameters()] == [(4, 2), (4, 5)]
    assert torch.isfinite(loss(batch(), LABELS))
    memory = CrossBatchMemory(MatryoshkaLoss(SupHAP(), (2, 5)), size=20, dim=5, num_levels=2)
    assert torch.isfinite(memory(batch(), LABELS))
    assert torch.isfinite(memory(batch(), LABELS))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dims": (5, 2)}, "ascending"),
        ({"dims": ()}, "ascending"),
        ({"dims": (0, 2)}, "ascending"),
        ({"weights": (1.0,)}, "1 weights"),
        ({"weights": (1.0, 0.0)}, "above 0"),
        ({"losses": [SupAP()] * 3}, "3 losses"),
        ({"losses": SupAP(reduction="none")}, "needs scalars"),
    ],
)
def test_prefixes_that_cannot_be_are_refused(changed, said):
    with pytest.raises(ConfigError, match=said):
        MatryoshkaLoss(**{"losses": SupAP(), "dims": (2, 5), **changed})
    with pytest.raises(InputError, match="have 5 dimensions"):
        MatryoshkaLoss(SupAP(), (2, 6))(batch(), LABELS)

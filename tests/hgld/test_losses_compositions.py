"""Compositions and wrappers of losses, and the adapter for losses of pytorch-metric-learning."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hgld import Hierarchy
from hgld.losses.binned import FastAP
from hgld.losses.compositions import HAPPIER, ROADMAP, RODNDCG, RODRecall, SumOverLevels
from hgld.losses.pairs import CalibrationLoss
from hgld.losses.proxies import NormSoftmax
from hgld.losses.surrogate_losses import SmoothAP, SmoothRecall, SupAP, SupHAP, SupNDCG, SupRecall
from hgld.losses.wrappers import MatryoshkaLoss, MetricLearningLoss, SiMix, mix_positives
from tests.rows import each_row

LABELS = torch.tensor([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1], [3, 1], [-1, 1]])
TREE = Hierarchy.from_labels(LABELS[:7].numpy(), ("fine", "coarse"))
RANKS = {
    ROADMAP: SupAP(0.01, 100, 0.05),
    RODRecall: SupRecall((1, 2, 4, 8, 16), 1.0),
    HAPPIER: SupHAP(1.0, 0.01, 100, 0.05),
    RODNDCG: SupNDCG(0.01, 100, 0.05),
}


def batch():
    torch.manual_seed(0)
    return torch.randn(8, 5)


@each_row("kind", list(RANKS))
def test_compositions_equal_the_weighted_sums_of_their_terms(kind):
    embeddings, proxy = batch(), NormSoftmax(4, 5, 0.05)
    options = {"tau": 0.05, "rho": 10.0, "delta": 0.1, "exclude_self": True}
    by_proxies = kind(4, 5, decomposability="proxy")
    proxy.load_state_dict(by_proxies.decomposability.state_dict())
    for loss, first, second in (
        (kind(decomposability="pair"), RANKS[kind], CalibrationLoss(0.9, 0.6)),
        (by_proxies, RANKS[kind], proxy),
        (kind(decomposability="pair", **options), type(RANKS[kind])(**options), CalibrationLoss(exclude_self=True)),
    ):
        terms = {"rank": first(embeddings, LABELS), "decomposability": second(embeddings, LABELS)}
        torch.testing.assert_close(loss.terms(embeddings, LABELS), terms)
        expected = 0.9 * terms["rank"] + 0.1 * terms["decomposability"]
        torch.testing.assert_close(loss(embeddings, LABELS), expected)
        assert len(list(loss.parameters())) == (loss is by_proxies)


@each_row("decomposability", ["pair", "proxy"])
def test_reduction_none_gives_the_weighted_sum_per_query(decomposability):
    embeddings, labels = batch()[:7], LABELS[:7]
    whole = HAPPIER(4, 5, decomposability=decomposability)
    each = HAPPIER(4, 5, decomposability=decomposability, reduction="none")
    each.load_state_dict(whole.state_dict())
    torch.testing.assert_close(each(embeddings, labels)[0].mean(), whole(embeddings, labels))
    assert each(batch(), LABELS)[1].all()  # the last item has only a coarse label, so it has no proxy


def test_sum_over_levels_adds_one_loss_per_level():
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


def test_virtual_items_are_mixtures_of_two_items_of_a_class():
    torch.manual_seed(0)
    embeddings, labels = batch(), torch.tensor([[5, 1], [5, 1], [5, 1], [7, 1], [-1, 1], [-1, 1], [8, 0], [7, 1]])
    virtual, virtual_labels = mix_positives(embeddings, labels)
    assert virtual_labels.tolist() == [[5, 1], [5, 1], [5, 1], [7, 1]]
    for item, (i, j) in zip(virtual, [(0, 1), (0, 2), (1, 2), (3, 7)], strict=True):
        share = (item - embeddings[j]) @ (embeddings[i] - embeddings[j]) / (embeddings[i] - embeddings[j]).norm() ** 2
        assert 0 <= share <= 1
        torch.testing.assert_close(item, share * embeddings[i] + (1 - share) * embeddings[j])


def test_simix_loss_in_training_includes_virtual_items():
    embeddings, self_index = batch(), torch.arange(8)
    plain = SmoothRecall(normalize=False, exclude_self=True)
    references, ref_labels = torch.cat([embeddings, torch.randn(4, 5)]), torch.cat([LABELS, LABELS[:4]])
    unit, loss = nn.functional.normalize(embeddings), SiMix(plain)
    torch.manual_seed(3)
    virtual, virtual_labels = mix_positives(unit, LABELS)
    mixed = torch.cat([unit, virtual]), torch.cat([LABELS, virtual_labels])
    unit_references = nn.functional.normalize(references)
    index_of_mixed = torch.cat([self_index, self_index.new_full((len(virtual),), -1)])
    torch.manual_seed(3)
    torch.testing.assert_close(loss(embeddings, LABELS), plain(*mixed))
    torch.manual_seed(3)
    found = loss(embeddings, LABELS, references, ref_labels, self_index)
    torch.testing.assert_close(found, plain(*mixed, unit_references, ref_labels, index_of_mixed))
    torch.testing.assert_close(loss.eval()(embeddings, LABELS), plain(unit, LABELS))


class Recorder(nn.Module):
    """Fake loss of another library that records its arguments."""

    def __init__(self):
        super().__init__()
        self.given: tuple[Any, ...] = ()

    def forward(self, embeddings, labels, indices_tuple=None, ref_emb=None, ref_labels=None):
        self.given = (embeddings, labels, indices_tuple, ref_emb, ref_labels)
        return embeddings.sum()


def test_adapter_passes_only_items_with_known_labels_and_no_copies_of_queries():
    embeddings = batch()
    recorder = Recorder()
    miner = lambda e, y, ref_emb, ref_labels: (len(e), ref_emb is None)  # noqa: E731
    MetricLearningLoss(recorder, miner)(embeddings, LABELS)
    assert torch.equal(recorder.given[0], embeddings[:7])
    assert recorder.given[1].tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert recorder.given[2:] == ((7, True), None, None)
    MetricLearningLoss(recorder, level=1)(embeddings, LABELS)
    assert recorder.given[1].tolist() == LABELS[:, 1].tolist()
    references, ref_labels = torch.randn(5, 5), torch.tensor([0, 1, -1, 2, 3])
    self_index = torch.tensor([1, -1, -1, -1, -1, -1, -1, 4])  # the library would count these copies as positives
    MetricLearningLoss(recorder)(embeddings, LABELS, references, ref_labels, self_index)
    assert torch.equal(recorder.given[3], references[[0, 3]])
    assert recorder.given[4].tolist() == [0, 2]
    nothing = MetricLearningLoss(recorder)(embeddings.requires_grad_(), torch.full((8,), -1))
    nothing.backward()
    assert nothing == 0


# -- truncated embeddings ------------------------------------------------------------------------------------------


@given(
    st.integers(0, 99),
    st.sampled_from([(5,), (2, 5), (1, 3, 4), (2, 3, 5)]),
    st.lists(st.integers(1, 8), min_size=3, max_size=3),
)
def test_matryoshka_loss_is_the_weighted_mean_over_truncated_embeddings(seed, dims, weights):
    generator = torch.Generator().manual_seed(seed)
    embeddings, references = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (8, 6))
    used = [weight / 4 for weight in weights[: len(dims)]]
    loss = SupHAP()
    found = MatryoshkaLoss(loss, dims, used)
    own = torch.arange(8).where(torch.arange(8) < 6, -1)
    for others in ([], [references, LABELS[:6], own]):
        cut = [[embeddings[:, :d], LABELS, *(x[:, :d] if x is references else x for x in others)] for d in dims]
        expected = sum(weight * loss(*args) for weight, args in zip(used, cut, strict=True)) / sum(used)
        torch.testing.assert_close(found(embeddings, LABELS, *others), expected)

"""The hyperbolic losses against their slow twins, what their distances are, and which triplets HIER draws."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld import losses
from hgld.errors import ConfigError, InputError
from hgld.losses.hyperbolic import HIER, HyperbolicPairs, draw_triplets, reciprocal_neighbors
from hgld.relevance import shared_levels
from tests import reference_losses

DIM = 4
labels_of = st.lists(st.integers(-1, 3), min_size=1, max_size=7)


@given(labels=labels_of, seed=st.integers(0, 2**16), curvature=st.sampled_from([0.01, 0.1, 1.0]))
@settings(max_examples=15)
def test_values_and_gradients_equal_their_twins(labels, seed, curvature):
    torch.manual_seed(seed)
    embeddings = torch.randn(len(labels), DIM, dtype=torch.float64, requires_grad=True)
    values, valid = HyperbolicPairs(0.5, curvature, 1.5, reduction="none")(embeddings, torch.tensor(labels))
    slow, total = embeddings.detach().clone().requires_grad_(), torch.zeros((), dtype=torch.float64)
    for query, label in enumerate(labels):
        positive = [int(label >= 0 and other == label) for other in labels]
        found = reference_losses.hyperbolic_losses(slow, query, positive, 0.5, curvature, 1.5)
        expected = sum(found, torch.zeros((), dtype=torch.float64)) / max(1, len(found))
        assert bool(valid[query]) == (len(found) > 0 and 0 in positive)
        assert float(values[query].detach()) == pytest.approx(float(expected.detach()) * bool(valid[query]), rel=1e-9)
        total = total + expected * valid[query]
    values.sum().backward()
    if total.requires_grad:
        total.backward()
        torch.testing.assert_close(embeddings.grad, slow.grad, rtol=1e-7, atol=1e-9)


def test_gradcheck():
    torch.manual_seed(0)
    embeddings = torch.randn(6, DIM, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 0, 0, 1, 1, -1])
    assert torch.autograd.gradcheck(lambda e: HyperbolicPairs()(e, labels), (embeddings,))


@given(cosines=st.lists(st.floats(-1, 1), min_size=2, max_size=5))
@settings(max_examples=20)
def test_the_order_by_distance_is_that_by_cosine(cosines):
    scores = torch.tensor([sorted(cosines)], dtype=torch.float64)
    distances = HyperbolicPairs().distances(scores)
    assert (distances.diff() <= 0).all()
    assert (distances <= 2 * 2 * 2.3 + 1e-9).all()  # opposite points are joined through the centre


def test_a_small_ball_is_flat():
    """With a small curvature the distance is twice the Euclidean one, as the metric at the centre has it."""
    scores = torch.tensor([[-1.0, 0.0, 0.5]], dtype=torch.float64)
    found = HyperbolicPairs(curvature=1e-8, radius=1.0).distances(scores)
    torch.testing.assert_close(found, 2 * (2 - 2 * scores).sqrt(), rtol=1e-6, atol=0)


def test_equal_embeddings_give_finite_gradients():
    embeddings = torch.ones(4, DIM, requires_grad=True)
    value = HyperbolicPairs()(embeddings, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert float(value.detach()) == pytest.approx(math.log(3))  # one positive among three that are equally near
    assert embeddings.grad is not None
    assert embeddings.grad.isfinite().all()


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"curvature": -1.0}, {"radius": math.inf}, {"level": -1}])
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        HyperbolicPairs(**wrong)


# -- HIER -------------------------------------------------------------------------------------------------------------


def hier(**options) -> HIER:
    given = {"num_proxies": 6, "neighbors": 3, "draws": 2, "curvature": 0.3, "radius": 1.5, **options}
    return HIER(losses.ROADMAP(), DIM, **given)


def drawn(seed: int, shape: tuple[int, int, int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The random numbers of the triplets and Gumbel's noise, of the items and of the ancestors."""
    torch.manual_seed(seed)
    items, ancestors, draws = shape
    found = []
    for size in (items, ancestors):
        uniform = torch.rand(2, size, draws)
        noise = -torch.empty(2, size, draws, ancestors, dtype=torch.float64).exponential_().log()
        found.append((uniform, noise))
    return found


@pytest.mark.parametrize("triplets", ["neighbors", "levels"])
@given(fine=st.lists(st.integers(-1, 3), min_size=4, max_size=6), seed=st.integers(0, 2**16))
@settings(max_examples=3)
def test_the_regularizer_and_its_gradients_equal_their_twins(triplets, fine, seed):
    torch.manual_seed(seed)
    loss = hier(triplets=triplets).double()
    loss.ancestors.data[0] *= 0.2
    labels = torch.tensor([[f, f // 2 if f >= 0 else 0] for f in fine])
    embeddings = torch.randn(len(fine), DIM, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(seed)
    value = loss.regularizer(embeddings, labels)
    value.backward()

    items, rows = (leaf.detach().clone().requires_grad_() for leaf in (embeddings, loss.ancestors))
    lengths = [row.norm() for row in rows]
    clipped = [row * torch.clamp(1.5 / length, max=1.0) for row, length in zip(rows, lengths, strict=True)]
    nodes = [reference_losses.into_ball(row, 0.3) for row in clipped]
    points = [reference_losses.into_ball(1.5 * item / item.norm(), 0.3) for item in items]
    distance = reference_losses.poincare_distance
    cosines = torch.nn.functional.cosine_similarity(items[:, None], items, dim=2).tolist()
    same = [[2 * int(f == g >= 0) for g in fine] for f in fine]
    near = [[c + s for c, s in zip(*both, strict=True)] for both in zip(cosines, same, strict=True)]
    grades = {
        "levels": shared_levels(labels, labels).tolist(),
        "neighbors": reference_losses.reciprocal(near, 3),
    }[triplets]
    itself = torch.tensor(1e-12, dtype=torch.float64).sqrt().asinh() * 2 / math.sqrt(0.3)  # where the root has no slope
    among = [[itself if a is b else distance(a, b, 0.3) for b in nodes] for a in nodes]
    related = reference_losses.reciprocal([[-float(d.detach()) for d in row] for row in among], 3)
    expected = 0 * items.sum() + 0 * rows.sum()
    tables = (([[distance(p, n, 0.3) for n in nodes] for p in points], grades), (among, related))
    for (table, known), (uniform, noise) in zip(tables, drawn(seed, (len(fine), 6, 2)), strict=True):
        chosen = reference_losses.hier_triplets(known, uniform)
        expected = expected + reference_losses.hier_mean(table, chosen, noise, 0.1, 0.1)
    expected.backward()
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-7, abs=1e-9)
    for fast, slow in ((embeddings.grad, items.grad), (loss.ancestors.grad, rows.grad)):
        torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-6)


@given(labels=st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 1)), max_size=7))
@settings(max_examples=20)
def test_every_related_and_less_related_point_is_drawn_and_no_other(labels):
    table = torch.tensor([[2 * c + f % 2 if f >= 0 else -1, c] for f, c in labels], dtype=torch.int64).reshape(-1, 2)
    grades = shared_levels(table, table, dtype=torch.uint8)
    size = len(labels)
    steps = (torch.arange(size * size) + 0.5) / max(1, size * size)  # every pair of candidates comes up
    uniform = torch.stack([steps, (steps * size) % 1])[:, None].expand(2, size, size * size)
    second, third, valid = draw_triplets(grades, uniform)
    for i in range(size):
        others = {j: int(grades[i, j]) for j in range(size) if j != i}
        wanted = {(j, k) for j in others for k in others if others[j] > others[k]}
        found = set(zip(second[i].tolist(), third[i].tolist(), strict=True))
        assert bool(valid[i]) == bool(wanted)
        if wanted:
            assert found <= wanted
            assert {j for j, _ in found} == {j for j, _ in wanted}


@given(seed=st.integers(0, 2**16), size=st.integers(0, 8), count=st.integers(1, 9))
@settings(max_examples=15)
def test_reciprocal_neighbours_are_mutual_and_few(seed, size, count):
    nearness = torch.rand(size, size, generator=torch.Generator().manual_seed(seed))
    found = reciprocal_neighbors(nearness, count)
    assert found.tolist() == reference_losses.reciprocal(nearness.tolist(), count)
    assert torch.equal(found, found.T)
    assert (found.sum(1) <= count).all()


def test_a_triplet_whose_ancestors_lie_as_they_should_pays_nothing_and_one_the_wrong_way_round_its_gaps():
    near, far = 0.5, 3.0
    tables = torch.tensor([[[near, 1.0], [near, 1.0], [far, 1.0]], [[1.0, near], [1.0, near], [1.0, far]]])
    noise = torch.zeros(2, 3, 1, 2)
    noise[0, ..., 0] = noise[1, ..., 1] = 1e3  # the first ancestor is drawn for two, the second for three
    second, third = torch.tensor([[1], [0], [0]]), torch.tensor([[2], [2], [1]])
    right, wrong = (hier(neighbors=2).hinges(table, second, third, noise)[0, 0] for table in tables)
    assert right == 0
    assert float(wrong) == pytest.approx(2 * (1.0 - near + 0.1) + (far - 1.0 + 0.1))
    noise[1] = noise[0]
    assert not hier(neighbors=2).hinges(tables[1], second, third, noise).any()  # one for two and for three says nothing


def regularized(loss: HIER, embeddings: torch.Tensor, labels: torch.Tensor, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return loss.regularizer(embeddings, labels).detach()


def test_rotations_and_what_the_classes_are_called_do_not_matter_and_draws_are_the_generators():
    torch.manual_seed(0)
    loss, embeddings = hier().double(), torch.randn(8, DIM, dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1, 2, 2, -1, -1])
    value = regularized(loss, embeddings, labels)
    rotation = torch.linalg.qr(torch.randn(DIM, DIM, dtype=torch.float64))[0]
    assert regularized(loss, embeddings, torch.tensor([5, 5, 9, 9, 1, 1, -1, -3])) == value
    assert regularized(loss, embeddings, labels, seed=1) != value
    assert regularized(loss, embeddings, torch.full((8,), -1)) != value  # a class is nearer than any neighbour
    loss.ancestors.data = loss.ancestors.data @ rotation
    torch.testing.assert_close(regularized(loss, embeddings @ rotation, labels), value)


def test_items_learn_without_labels_and_a_batch_of_neighbours_alone_teaches_them_nothing():
    for size, learns in ((8, True), (3, False)):
        torch.manual_seed(0)
        embeddings, loss = torch.randn(size, DIM, requires_grad=True), hier(margin=1.0, draws=20)
        loss.regularizer(embeddings, torch.full((size,), -1)).backward()
        assert embeddings.grad is not None
        assert bool(embeddings.grad.any()) == learns
        assert loss.ancestors.grad is not None
        assert loss.ancestors.grad.any()


def test_it_stands_beside_any_loss_by_its_terms():
    torch.manual_seed(0)
    labels = torch.tensor([[i // 2, i // 4] for i in range(8)])
    embeddings, happier = torch.randn(8, DIM, dtype=torch.float64), losses.HAPPIER(4, DIM)
    inner = {
        "metric": losses.SupAP(),
        "rank decomposability": happier,
        "batch memory": losses.CrossBatchMemory(losses.SupAP(), 16, DIM, num_levels=2),
    }
    for names, loss in inner.items():
        whole = HIER(loss, DIM, 0.3, num_proxies=6, neighbors=3)
        torch.manual_seed(1)
        terms = whole.terms(embeddings, labels)
        assert list(terms) == [*names.split(), "hierarchy"]
        if not isinstance(loss, losses.CrossBatchMemory):
            torch.manual_seed(1)
            torch.testing.assert_close(whole(embeddings, labels), loss(embeddings, labels) + 0.3 * terms["hierarchy"])
    other = torch.randn(5, DIM, dtype=torch.float64), labels[:5]
    torch.manual_seed(1)
    against = HIER(happier, DIM, 0.0, num_proxies=6, neighbors=3)(embeddings, labels, *other)
    torch.testing.assert_close(against, happier(embeddings, labels, *other))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"neighbors": 6}, "neighbors 6"),
        ({"neighbors": 1}, "neighbors 1"),
        ({"draws": 0}, "draws 0"),
        ({"weight": math.inf}, "weight is inf"),
        ({"margin": 0.0}, "margin 0.0"),
        ({"temperature": -1.0}, "temperature -1.0"),
        ({"triplets": "random"}, "neighbors, levels"),
        ({"level": -1}, "level is -1"),
    ],
)
def test_wrong_options_of_hier_are_refused(wrong, words):
    with pytest.raises(ConfigError, match=words):
        hier(**wrong)


def test_hier_refuses_what_does_not_fit():
    with pytest.raises(ConfigError, match="reduction='none'"):
        HIER(losses.SupAP(reduction="none"), DIM)
    with pytest.raises(InputError, match=r"was made for \(B, 4\)"):
        hier().regularizer(torch.randn(4, 5), torch.arange(4))
    with pytest.raises(InputError, match="reads level 1"):
        hier(level=1).regularizer(torch.randn(4, DIM), torch.arange(4))
    with pytest.raises(ConfigError, match="one binary loss"):
        losses.SumOverLevels(hier())

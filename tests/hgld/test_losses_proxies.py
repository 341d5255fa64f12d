"""Proxy losses against reference implementations, including unknown labels and degenerate hierarchies."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld import Hierarchy
from hgld.losses.compositions import MultiGrain
from hgld.losses.proxies import CSL, NormSoftmax, ProxyNCApp
from tests import reference_losses
from tests.rows import each_row

TREE = Hierarchy.from_columns(
    {
        "species": ["fox", "wolf", "cat", "lynx", "oak"],
        "family": ["dog", "dog", "feline", "feline", "tree"],
        "kingdom": ["animal", "animal", "animal", "animal", "plant"],
    }
)
DIM = 6


def cosines(embeddings, proxies):
    unit = torch.nn.functional.normalize
    return unit(embeddings, dim=1) @ unit(proxies, dim=1).T


def reference_of(loss, row, label):
    if isinstance(loss, CSL):
        return reference_losses.cross_level_loss(row, label, loss.classes.tolist(), loss.margins, loss.scale)
    slow = reference_losses.proxy_nca_loss if isinstance(loss, ProxyNCApp) else reference_losses.proxy_loss
    return slow(row, label, loss.temperature)


def make(name, reduction="mean"):
    if name == "CSL":
        return CSL(TREE, DIM, reduction=reduction)
    kind = {"NormSoftmax": NormSoftmax, "ProxyNCApp": ProxyNCApp}[name]
    return kind(TREE.num_classes[0], DIM, reduction=reduction)


NAMES = ["NormSoftmax", "ProxyNCApp", "CSL"]


@pytest.mark.parametrize("name", NAMES)
@given(
    labels=st.lists(st.integers(-1, 4), min_size=1, max_size=8),
    seed=st.integers(0, 2**16),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
@settings(max_examples=15)
def test_values_and_gradients_equal_the_reference(name, labels, seed, dtype):
    value_error, slope_error = (1e-9, 1e-9) if dtype == torch.float64 else (1e-5, 1e-4)
    torch.manual_seed(seed)
    loss = make(name, "none").to(dtype)
    embeddings = torch.randn(len(labels), DIM, dtype=dtype, requires_grad=True)
    values, valid = loss(embeddings, torch.tensor(labels))
    values.sum().backward()
    slow = embeddings.detach().double().requires_grad_()
    proxies = loss.proxies.detach().double().requires_grad_()
    table = cosines(slow, proxies)
    assert valid.tolist() == [label >= 0 for label in labels]
    expected = [
        reference_of(loss, row, label) if label >= 0 else 0 * row[0] for row, label in zip(table, labels, strict=True)
    ]
    for value, right in zip(values.tolist(), expected, strict=True):
        assert abs(value - right.item()) <= value_error * max(1.0, abs(right.item()))
    torch.stack(expected).sum().backward()
    for fast, right in ((embeddings.grad, slow.grad), (loss.proxies.grad, proxies.grad)):
        assert (fast.double() - right).abs().max() <= slope_error * max(1.0, right.abs().max().item())


@each_row("name", NAMES)
def test_mean_is_over_items_with_known_labels(name):
    loss, tables = make(name), make(name, "none")
    tables.load_state_dict(loss.state_dict())
    embeddings = torch.randn(4, DIM)
    values, valid = tables(embeddings, torch.tensor([1, -1, 3, -1]))
    torch.testing.assert_close(loss(embeddings, torch.tensor([1, -1, 3, -1])), values[valid].mean())


def test_a_level_of_one_class_has_no_negatives_and_no_loss():
    tree = Hierarchy.from_columns({"fine": ["a", "b"], "coarse": ["all", "all"]})
    loss = CSL(tree, 3)
    one = CSL(tree.restrict(["fine"]), 3, margins=(0.25,))
    one.proxies = loss.proxies
    embeddings, labels = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 1, 0])
    found = loss(embeddings, labels)
    torch.testing.assert_close(found, one(embeddings, labels))
    found.backward()
    assert embeddings.grad.isfinite().all()


def test_csl_reads_only_the_finest_column():
    loss = CSL(TREE, DIM)
    embeddings, labels = torch.randn(5, DIM), torch.arange(5)
    full = torch.from_numpy(TREE.expand(labels.numpy()))
    assert loss(embeddings, labels) == loss(embeddings, full)


def test_csl_has_the_published_margins_by_default():
    assert CSL(TREE, DIM).margins == (0.25, 0.35, 0.45)
    assert CSL(TREE.restrict(["species", "family"]), DIM).margins == (0.25, 0.45)


@each_row("labels", [[], [1], [-1, -1], [0, 1, 2]])
def test_multigrain_of_degenerate_batches_is_finite(labels):
    loss = MultiGrain(3, DIM)
    embeddings = torch.randn(len(labels), DIM, requires_grad=True)
    value = loss(embeddings, torch.tensor(labels, dtype=torch.int64), instances=torch.arange(len(labels)))
    value.backward()
    assert value.isfinite()
    assert embeddings.grad.isfinite().all()


def test_multigrain_equals_the_weighted_sum_of_its_terms():
    torch.manual_seed(0)
    loss = MultiGrain(3, DIM, lambda_=0.3)
    embeddings, labels = torch.randn(8, DIM, requires_grad=True), torch.tensor([0, 0, 1, 1, 2, 2, -1, 0])
    instances = torch.arange(8) // 2
    torch.manual_seed(1)
    terms = loss.terms(embeddings, labels, instances=instances)
    torch.manual_seed(1)
    total = loss(embeddings, labels, instances=instances)
    torch.testing.assert_close(total, 0.3 * terms["classification"] + 0.7 * terms["retrieval"])
    known = labels >= 0
    logits = loss.classifier(embeddings)
    expected = torch.nn.functional.cross_entropy(logits[known], labels[known])
    torch.testing.assert_close(terms["classification"], expected)
    total.backward()
    assert loss.margin.beta.grad  # the boundary of the margin loss is learned

"""Losses built by name, with labels renumbered to the training classes."""

import dataclasses
import inspect

import torch

from hgld import losses
from hgld.distributed import ALONE, add_up_terms
from hgld.losses.registry import LOSSES, PLUGINS, options_of
from hgld.training.config import LossConfig
from hgld.training.criterion import build_criterion
from hgld.training.recipes import load_recipe
from tests.rows import each_row
from tests.training.small_runs import LABELS, TREE

TRAINED, DIM = 6, 6  # number of finest classes in training, dimension


def build(**options):
    torch.manual_seed(3)
    config = LossConfig(**options)
    return build_criterion(config, hierarchy=TREE, train_labels=LABELS, dim=DIM, steps_per_epoch=2)


def batch():
    generator = torch.Generator().manual_seed(1)
    embeddings = torch.randn(24, DIM, generator=generator, requires_grad=True)
    return embeddings, LABELS, torch.arange(24) // 2


class Own(torch.nn.Module):
    """A plugin loss with its own defaults, which accepts no reference embeddings."""

    def __init__(self, margin, tau=0.3, level=0):
        super().__init__()
        self.options = {"margin": margin, "tau": tau, "level": level}

    def forward(self, embeddings, labels):
        return embeddings.sum() * 0


def test_plugin_loss_keeps_its_defaults_and_has_no_memory_option(monkeypatch):
    monkeypatch.setattr(type(PLUGINS), "load", lambda self, name: {"Own": Own}[name])
    plain, asked = build(loss="Own", level="mid"), build(loss="Own", tau=0.02, margin=0.4)
    assert plain.loss.options == {"margin": LossConfig.margin, "tau": 0.3, "level": 1}
    assert asked.loss.options == {"margin": 0.4, "tau": 0.02, "level": 0}
    assert "memory" not in options_of("Own")
    assert "memory" in options_of("Contrastive")


@each_row(
    ("name", "sum_levels"),
    [(name, both) for name in LOSSES for both in (False, True)[: 1 + ("sum_levels" in options_of(name))]],
)
def test_every_loss_is_finite_and_has_gradients(name, sum_levels):
    criterion = build(loss=name, sum_levels=sum_levels)
    embeddings, labels, instances = batch()
    value, parts = criterion(embeddings, labels, instances)
    value.backward()
    assert torch.isfinite(value)
    assert value > 0
    assert embeddings.grad is not None
    assert embeddings.grad.abs().sum() > 0
    assert set(parts) == (
        {"rank", "decomposability"} if LOSSES[name].kind == "terms" and not sum_levels
        else {"classification", "retrieval"} if name == "MultiGrain" else set()
    )  # fmt: skip


FIXED = {
    *("offset", "weights", "clip", "low", "cutoff"),  # no recipe changes these parameters
    *("level_weights", "scale"),
    *("reduction", "normalize", "exclude_self", "options"),  # every loss of a type has these parameters
    *("dim", "num_classes", "hierarchy"),  # the dataset and the model determine these parameters
}


@each_row("name", [name for name in LOSSES if LOSSES[name].kind != "terms"])
def test_every_loss_parameter_is_a_config_option_or_listed_as_fixed(name):
    parameters = inspect.signature(getattr(losses, name)).parameters.keys()
    options = LOSSES[name].options.keys()
    own = {"margin"} if name == "BlackboxAP" else set()
    assert parameters - FIXED - {"level"} - own == options - {"level"}
    level = build(loss=name, level="mid").loss.level if "level" in options else None
    assert level in (None, 1)


@each_row("name", [name for name in LOSSES if LOSSES[name].kind == "terms"])
def test_composed_losses_have_the_same_terms_as_their_classes(name):
    own, made = getattr(losses, name)(TRAINED, DIM), build(loss=name).loss
    assert (type(own.rank), type(own.decomposability)) == (type(made.rank), type(made.decomposability))


def test_every_loss_option_is_read_by_some_loss():
    fields = {field.name for field in dataclasses.fields(LossConfig)}
    assert set().union(*map(options_of, LOSSES)) | {"loss"} == fields


def test_only_training_classes_have_proxies():
    criterion = build(loss="NormSoftmax")
    (proxies,) = criterion.parameters()
    assert proxies.shape == (TRAINED, DIM)
    sums = build(loss="NormSoftmax", sum_levels=True)
    assert [len(p) for p in sums.parameters()] == [6, 4, 2]
    multigrain = build(loss="MultiGrain", level="mid")
    assert len(multigrain.get_parameter("loss.classifier.weight")) == 4


def test_csl_uses_the_hierarchy_restricted_to_training_classes():
    criterion = build(loss="CSL")
    assert isinstance(criterion.loss, losses.CSL)
    assert criterion.loss.classes.tolist() == [[0, 0, 0], [1, 0, 0], [2, 1, 0], [3, 1, 0], [4, 2, 1], [5, 3, 1]]


def test_renumbering_classes_does_not_change_the_loss():
    embeddings, labels, instances = batch()
    ours = build(loss="SupHAP")(embeddings, labels, instances)[0]
    torch.testing.assert_close(ours, losses.SupHAP()(embeddings, labels))


@each_row(
    ("name", "expected"),
    [
        ("SupAP", ["batch", "memory"]),
        ("HAPPIER", ["rank", "decomposability", "memory_rank", "memory_decomposability"]),
    ],
)
def test_loss_with_memory_reports_all_terms_from_the_first_step(name, expected):
    embeddings, labels, instances = batch()
    criterion = build(loss=name, memory=30, memory_from_epoch=1)
    for step in range(3):
        value, parts = criterion(embeddings, labels, instances)
        assert list(parts) == expected  # the log needs the same columns in every step
        assert all((parts[part] > 0) == (step >= 2 or not part.startswith("memory")) for part in expected)
        alone, _ = build(loss=name)(embeddings, labels, instances)
        assert (value > alone) == (step >= 2)


@each_row("name", ["SupAP", "ROADMAP"])
@each_row("sum_levels", [False, True])
def test_loss_terms_averaged_over_processes_equal_single_process_terms(name, sum_levels):
    embeddings, labels, instances = batch()
    options = {"loss": name, "memory": 30, "memory_from_epoch": 0, "sum_levels": sum_levels}
    loss, expected = build(**options)(embeddings, labels, instances)
    criterion = build(**options)
    sums = criterion.query_sums(embeddings, labels, embeddings, labels, torch.arange(len(labels)))
    value, parts = add_up_terms(sums, ALONE)
    joined = criterion.joined_terms(parts, sums)
    torch.testing.assert_close((value, *joined.values()), (loss, *expected.values()))
    assert list(joined) == list(expected)


def test_view_pretraining_loss_ignores_labels():
    config, (_, labels, instances) = load_recipe("small-views-grocery").loss, batch()
    found = []
    for given in (labels, labels.roll(1, 0)):
        embeddings = torch.sin(torch.arange(float(len(labels) * DIM))).view(-1, DIM).requires_grad_()
        loss, _ = build(**vars(config))(embeddings, given, instances)  # seeds the draws of negatives
        loss.backward()
        found += [loss.detach(), embeddings.grad]
    assert found[0] > 0
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def test_class_weights_are_inversely_proportional_to_class_sizes():
    criterion = build(loss="SmoothAP", class_weights=True)
    weights = criterion.loss.weights
    torch.testing.assert_close(weights, torch.tensor([2.0, 2.0, 1.0, 1.0, 2 / 3, 2 / 3]))

"""Every recipe is a config that can be run, says what it is, and covers what the papers report."""

import dataclasses
import itertools
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch

from hgld import Hierarchy
from hgld.errors import ConfigError
from hgld.losses.registry import LOSSES as ALL_LOSSES
from hgld.training import recipes
from hgld.training.config import TrainConfig, flat, read_config, save_config, with_fields
from hgld.training.config_checks import check_config
from hgld.training.criterion import Criterion, build_criterion
from hgld.training.models.backbones import build_model
from hgld.training.recipes import RECIPES, find_recipe, load_recipe, register_recipe
from hgld.training.recipes.published import FIGURES as FIGURES_READ
from hgld.training.recipes.published import NOT_CONFIRMED, REACHED, ROWS, Published
from hgld.training.recipes.recipe import Recipe
from hgld.training.recipes.table import LOSSES as TABLE_LOSSES

DATASETS = {
    "sop",
    "inat-base",
    "inat-full",
    "dyml-vehicle",
    "dyml-animal",
    "dyml-product",
    "cub",
    "vehicleid",
    "landmarks-clean",
    "h-gldv2",
}
LEVELS = {"inat-full": 7, "sop": 2, "inat-base": 2, "vehicleid": 2, "landmarks-clean": 1}

LOSSES = {(recipe().loss, LEVELS.get(recipe.dataset, 3)): name for name, recipe in RECIPES.items()}
"""A recipe for each loss with its options and number of levels."""

KINDS = {recipe().loss.loss: name for name, recipe in RECIPES.items()}
"""A recipe for each loss."""

PUBLISHED = {name: recipe.published for name, recipe in RECIPES.items() if isinstance(recipe.published, Published)}
FIGURES = {name: published for name, published in PUBLISHED.items() if published.figures}
METRIC = r"(R@[1-9]\d*|AP|mAP@R|mAP@100|H-AP|ASI|NDCG|top-1)( \([A-Za-z ]+\))?"


def tree(levels: int) -> Hierarchy:
    """16 finest classes, two under each parent as long as there are any."""
    sizes = [max(16 >> level, 2) for level in range(levels)]
    names = tuple(tuple(f"{level}-{i:02d}" for i in range(size)) for level, size in enumerate(sizes))
    parents = tuple(np.arange(a) * b // a for a, b in itertools.pairwise(sizes))
    return Hierarchy(tuple(f"level{i}" for i in range(levels)), names, parents)


def labels_of(hierarchy: Hierarchy, items_a_class: int) -> torch.Tensor:
    columns = [np.repeat(np.arange(len(hierarchy.names[0])), items_a_class)]
    for parents in hierarchy.parents:
        columns.append(np.asarray(parents)[columns[-1]])
    return torch.from_numpy(np.stack(columns, axis=1))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_config_without_contradictions_that_says_what_it_is(name, tmp_path):
    recipe, config = RECIPES[name], load_recipe(name)
    assert isinstance(config, TrainConfig)
    assert config.recipe == name
    check_config(config)
    save_config(config, tmp_path / "config.json")
    assert read_config(tmp_path / "config.json") == config
    text = recipe.text
    assert recipe.line.endswith(".")
    for part in (f"hgld train {name} --data", "torchrun", "Hardware:  ", "Hours:     ", "Published: ", recipe.dataset):
        assert part in text


def criterion_of(name: str) -> tuple[Criterion, torch.Tensor]:
    """The criterion of a recipe on a small tree of its dataset's depth, and that tree's labels."""
    config = load_recipe(name)
    hierarchy = tree(LEVELS.get(RECIPES[name].dataset, 3))
    labels = labels_of(hierarchy, 2)
    torch.manual_seed(0)
    steps = config.batch.steps_per_epoch or 3
    criterion = build_criterion(config.loss, hierarchy=hierarchy, train_labels=labels, dim=8, steps_per_epoch=steps)
    return criterion, labels


def assert_differentiable(name: str) -> None:
    criterion, labels = criterion_of(name)
    embeddings = torch.randn(len(labels), 8, requires_grad=True)
    loss, _ = criterion(embeddings, labels, torch.arange(len(labels)) // 2)
    loss.backward()
    assert torch.isfinite(loss)
    assert embeddings.grad is not None
    assert torch.isfinite(embeddings.grad).all()
    assert embeddings.grad.abs().sum() > 0


@pytest.mark.parametrize("loss", KINDS)
def test_a_recipe_of_every_loss_makes_a_criterion_with_parameters_where_the_loss_has_any(loss):
    criterion, _ = criterion_of(KINDS[loss])
    config = load_recipe(KINDS[loss]).loss
    second = ALL_LOSSES[loss].kind == "terms" and config.decomposability != "pair"
    assert any(True for _ in criterion.parameters()) == (ALL_LOSSES[loss].learns or second)


@pytest.mark.parametrize("name", ["norm-softmax-sigma-inat-full", "csl-dyml-animal", "multigrain"])
def test_a_recipe_s_loss_can_be_differentiated(name):
    assert_differentiable(name)


@pytest.mark.slow  # compiles the kernels of all rank losses
@pytest.mark.parametrize("name", LOSSES.values())
def test_a_recipe_s_loss_can_be_differentiated_on_as_many_levels_as_its_dataset_has(name):
    assert_differentiable(name)


def test_every_dataset_and_every_loss_has_a_recipe():
    found = {recipe.dataset for recipe in RECIPES.values()}
    assert found >= DATASETS
    # CalibrationLoss is the pair term of ROADMAP, Margin of MultiGrain: no paper trains on them alone.
    assert {recipe().loss.loss for recipe in RECIPES.values()} == set(ALL_LOSSES) - {
        "CalibrationLoss",
        "Margin",
    }


def test_no_two_recipes_are_the_same():
    configs = [(recipe.dataset, flat(recipe())) for recipe in RECIPES.values() if not recipe.name.startswith("small-")]
    assert len({repr(config) for config in configs}) == len(configs)


def test_every_recipe_of_a_paper_says_which_rows_it_is_and_has_figures_or_says_that_they_are_not_confirmed():
    assert {name for name in RECIPES if name not in PUBLISHED} == {
        name for name in RECIPES if name.startswith("small-")
    }
    assert all(published.rows for published in PUBLISHED.values())
    for name, published in PUBLISHED.items():
        assert (published.brief == NOT_CONFIRMED) == (not published.figures)
        assert bool(published.source) == bool(published.figures)
        assert f"Published: {published.brief}\n" in RECIPES[name].text


@pytest.mark.parametrize("name", FIGURES)
def test_published_figures_are_percentages_of_known_metrics_and_name_the_text_they_were_read_in(name):
    published, text = FIGURES[name], RECIPES[name].text
    for metric, percent in published.figures.items():
        assert re.fullmatch(METRIC, metric)
        assert isinstance(percent, float)
        assert 0 < percent <= 100
        assert f"{metric} {percent}" in text
    assert f"read in {published.source}\n" in text
    assert re.search(r"arXiv:\d{4}\.\d{5}|README of [\w-]+/\w+", published.source)


@pytest.mark.parametrize("name", FIGURES)
def test_published_recalls_grow_with_the_length_of_the_list(name):
    recalls: dict[str, list[tuple[int, float]]] = {}
    for metric, percent in FIGURES[name].figures.items():
        for k, measured_on in re.findall(r"^R@(\d+)(.*)", metric):
            recalls.setdefault(measured_on, []).append((int(k), percent))
    for found in recalls.values():
        percents = [percent for _, percent in sorted(found)]
        assert percents == sorted(percents)


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("happier-sop", {"R@1": 81.0}),
        ("happier-f-sop", {"R@1": 81.8}),
        ("happier-dyml-animal", {"AP (mean of the levels)": 43.8}),
        ("roadmap-pair-sop", {"R@1": 83.1}),
        ("smooth-ap-inat-base", {"R@1": 67.2, "R@4": 81.8, "R@16": 90.3, "R@32": 93.1}),
        ("smooth-recall-simix-sop", {"R@1": 82.7}),
        ("xbm-sop", {"R@1": 80.6}),
        ("multigrain", {"top-1": 77.4}),
    ],
)
def test_figures_are_those_that_were_read(name, figures):
    assert FIGURES[name].figures == figures


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("happier-sop", {"lr": 5e-5, "sampler": "hierarchical-pk", "lambda_": 0.1, "alpha": 1.0, "frozen_epochs": 5}),
        ("happier-f-sop", {"alpha": 5.0}),
        ("happier-f-inat-full", {"alpha": 3.0, "lr": 1e-5}),
        ("happier-dyml-vehicle", {"backbone": "torchvision:resnet34"}),
        ("happier-h-gldv2", {"backbone": "torchvision:resnet101", "pooling": "gem", "projection": "pca", "dim": 2048}),
        ("csl-h-gldv2", {"lr_proxies": 10.0}),
        ("csl-sop", {"lr_proxies": 10.0}),
        ("csl-inat-full", {"lr_proxies": 2e-5}),
        ("triplet-sop", {"margin": 0.1}),
        ("xbm-sop", {"contrastive": "cosine", "margin": 0.5, "memory": -1, "memory_from_epoch": 5}),
        ("xbm-inat-base", {"contrastive": "cosine", "margin": 0.5, "memory": 60_000}),
        ("xbm-cub", {"contrastive": "cosine", "margin": 0.5, "memory": -1}),
        ("rod-recall-sop", {"lambda_": 0.5, "recall_at": (1, 2, 4, 8, 16), "recall_temperature": 1.0}),
        ("roadmap-pair-sop", {"batch_size": 128, "size": 256, "resize": 288, "layer_norm": False, "frozen_epochs": 0}),
        ("roadmap-pair-inat-base", {"batch_size": 384, "epochs": 90}),
        ("roadmap-deit-sop", {"schedule": "step", "milestones": (25, 50), "gamma": 0.3, "epochs": 75, "dim": 0}),
        ("roadmap-xbm-sop", {"memory": -1, "memory_from_epoch": 5, "pooling": "gem"}),
        ("roadmap-xbm-inat-base", {"memory": 60_000}),
        ("smooth-ap-sop", {"tau": 0.01, "batch_size": 384, "images_per_class": 4, "weight_decay": 4e-4}),
        ("smooth-ap-inat-base", {"lr": 1e-5, "lr_head": 2e-5, "milestones": (40, 70), "gamma": 0.3, "epochs": 90}),
        ("pnp-dq-sop", {"pnp": "Dq", "alpha": 4.0, "milestones": (120, 220, 250, 280), "epochs": 400}),
        ("smooth-recall-large-sop", {"batch_size": 4000, "chunk": 200, "lr": 2e-4, "lr_head": 2e-4, "epochs": 55}),
        ("blackbox-ap-sop", {"blackbox_lambda": 4.0, "blackbox_margin": 0.02}),
        ("pnp-ib-sop", {"pnp": "Ib", "pnp_b": 4.0}),
        ("pnp-ib-vehicleid", {"pnp": "Ib", "pnp_b": 1.0}),
        ("proxy-nca-sop", {"proxy_temperature": 1 / 9}),
        ("softbin-ap-landmarks-clean", {"batch_size": 4096, "bins": 20, "class_weights": True, "schedule": "linear"}),
        ("multigrain", {"lambda_": 0.5, "margin": 0.2, "beta": 1.2, "repeats": 3, "milestones": (30, 60, 90)}),
        ("small-omniglot", {"backbone": "small", "flip": 0.0, "size": 48}),
    ],
)
def test_recipes_hold_the_numbers_of_their_papers(name, fields):
    config = flat(load_recipe(name))
    assert {field: config[field] for field in fields} == fields


def test_steps_that_the_papers_count_are_those_of_the_recipes():
    for name, steps in (("happier-h-gldv2", 55_000), ("softbin-ap-landmarks-clean", 200)):
        config = load_recipe(name)
        assert config.run.epochs * config.batch.steps_per_epoch == steps


def test_unknown_recipes_are_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match=r"'happier-spo'.*Did you mean 'happier-sop'"):
        find_recipe("happier-spo")
    with pytest.raises(ConfigError, match="hgld train --list"):
        load_recipe("xyzzy")


def test_every_row_and_every_figure_of_a_paper_is_of_a_recipe():
    assert not (FIGURES_READ.keys() | REACHED.keys()) - RECIPES.keys()
    for patterns, rows in ROWS.items():
        named = [name for name in RECIPES for pattern in patterns.split() if fnmatchcase(name, pattern)]
        assert any(PUBLISHED[name].rows == rows for name in named), patterns
        assert all(any(fnmatchcase(name, pattern) for name in named) for pattern in patterns.split())


def test_every_loss_of_the_table_is_trained_in_some_setting():
    names = {max((loss for loss in TABLE_LOSSES if name.startswith(loss)), key=len) for name in RECIPES}
    assert names == set(TABLE_LOSSES)


def test_recipes_of_one_s_own_are_found_by_name_and_no_name_is_taken_twice(monkeypatch):
    monkeypatch.setattr(recipes, "RECIPES", dict(RECIPES))
    mine = Recipe("mine-sop", "HAPPIER on SOP, alpha 2.", find_recipe("happier-sop").setting, {"alpha": 2.0})
    assert register_recipe(mine) is mine
    expected = with_fields(load_recipe("happier-sop"), {"alpha": 2.0})
    assert load_recipe("mine-sop") == dataclasses.replace(expected, recipe="mine-sop")
    assert "Published: none" in mine.text
    with pytest.raises(ConfigError, match=r"there is a recipe 'mine-sop' already .*another name"):
        register_recipe(mine)


OWN = (Recipe("own-cub", "HAPPIER on CUB, alpha 2.", find_recipe("happier-cub").setting, {"alpha": 2.0}),)


def test_recipes_of_installed_packages_are_found_by_name(monkeypatch):
    monkeypatch.setattr(recipes, "RECIPES", dict(RECIPES))
    group = "hgld.recipes"
    point = EntryPoint("own", f"{__name__}:OWN", group)
    monkeypatch.setattr(recipes, "entry_points", lambda group: [point] if group == "hgld.recipes" else [])
    recipes._register_installed()
    assert load_recipe("own-cub").loss.alpha == 2.0
    gone = EntryPoint("gone", "no_such_package:RECIPES", group)
    monkeypatch.setattr(recipes, "entry_points", lambda group: [gone])
    with pytest.raises(ConfigError, match=r"installed package, 'no_such_package:RECIPES', .*uninstall it"):
        recipes._register_installed()


def test_recipes_import_nothing_heavy():
    program = (
        "import sys, hgld.training.recipes as r\n[recipe() for recipe in r.RECIPES.values()]\n"
        "print([m for m in ('torch', 'numpy', 'polars', 'timm', 'rich') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.slow
def test_every_recipe_s_model_can_be_built():
    found = {(config.model, config.images.size) for config in map(load_recipe, RECIPES)}
    for model, size in found:
        with torch.device("meta"):
            built = build_model(model, image_size=size, load_weights=False)
        assert built.dim == (model.dim or built.dim)
        assert set(built.parameter_groups()) == {"backbone", "head"}

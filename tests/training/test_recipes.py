"""Every recipe is a valid, described config whose metrics include the metrics in the papers."""

import dataclasses
import re
from fnmatch import fnmatchcase
from importlib.metadata import EntryPoint

import pytest
import torch

from hgld.cli import main
from hgld.errors import ConfigError
from hgld.losses.registry import LOSSES as ALL_LOSSES
from hgld.published import PAPERS, published_values
from hgld.training import recipes
from hgld.training.config import TrainConfig, read_config, save_config, with_fields
from hgld.training.config_checks import check_config
from hgld.training.models.backbones import build_model
from hgld.training.recipes import RECIPES, find_recipe, load_recipe, register_recipe
from hgld.training.recipes.recipe import Published, Recipe
from hgld.training.recipes.table import PUBLISHED as NAMED
from hgld.training.recipes.table import _rows
from tests.rows import each_row

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


PUBLISHED = {name: recipe.published for name, recipe in RECIPES.items() if isinstance(recipe.published, Published)}


@each_row("name", RECIPES)
def test_recipe_config_is_valid_and_described(name, tmp_path):
    recipe, config = RECIPES[name], load_recipe(name)
    assert isinstance(config, TrainConfig)
    assert config.recipe == name
    check_config(config)
    save_config(config, tmp_path / "config.json")
    assert read_config(tmp_path / "config.json", load_recipe) == config
    text = recipe.facts_of(config)
    assert recipe.line.endswith(".")
    facts = ("Weights:   ", "Hardware:  ", "Hours:     ", "Published: ")
    for part in (f"hgld train {name} --data", "torchrun", *facts, recipe.dataset):
        assert part in text


def test_every_dataset_and_every_loss_has_a_recipe():
    found = {recipe.dataset for recipe in RECIPES.values()}
    assert found >= DATASETS
    # No paper trains with CalibrationLoss (the pair term of ROADMAP) or Margin (a term of MultiGrain) alone.
    without = {"CalibrationLoss", "Margin"}
    assert {recipe().loss.loss for recipe in RECIPES.values()} == set(ALL_LOSSES) - without


@pytest.mark.checks
def test_every_recipe_has_published_rows_or_says_that_there_are_none():
    for name, recipe in RECIPES.items():
        if isinstance(recipe.published, Published):
            assert recipe.published.rows, name
            assert all(row.values for row in recipe.published.rows), name
            said = " ".join(recipe.facts_of(recipe()).split())
            assert f"Published: {recipe.brief} (" in said
            assert all(PAPERS[row.paper].source in said for row in recipe.published.rows)
            assert max(map(len, recipe.facts_of(recipe()).splitlines())) <= 120
        else:
            assert str(recipe.published).startswith("none"), name
            assert recipe.values == ()


BACKBONES = {
    "ResNet-50": "torchvision:resnet50",
    "ResNet-101": "torchvision:resnet101",
    "DeiT-S": "timm:deit_small_patch16_224",
    "ViT-B": "timm:vit_base_patch16_224",
    "SENet-50": "timm:legacy_seresnet50",
    "SENet154": "timm:legacy_senet154",
    "PNASNet-5-Large": "timm:pnasnet5large",
    "ArcFace ResNet-50": "torchvision:resnet50",
    "convolutional": "torchvision:resnet50",  # the table says "generally ResNet-50"
}


@each_row("name", PUBLISHED)
def test_recipe_config_matches_its_published_rows(name):
    """Dataset, backbone, dimension and batch size of config and rows agree; no row has a metric twice."""
    config = load_recipe(name)
    for row in PUBLISHED[name].rows:
        found = [(v.dataset, v.part, v.setting, v.metric, v.level) for v in row.values]
        assert len(set(found)) == len(found)
        for value in row.values:
            assert value.dataset == RECIPES[name].dataset or RECIPES[name].dataset in (
                *("landmarks-clean", "vggface2", "imagenet"),
            )
            if value.backbone:
                assert config.model.backbone == BACKBONES[value.backbone], value
            if value.dim.isdigit():
                assert config.model.dim == int(value.dim) or config.model.dim == 0, value
            if batch := re.match(r"batch (\d+)", value.setting):
                assert config.batch.batch_size == int(batch[1]), value
            assert (config.batch.merge_classes == 3) == (value.setting == "3 classes merged"), value
            if "with memory" in value.setting:
                assert config.loss.memory == -1, value
            if value.setting == "trained on fine labels":
                assert not config.loss.sum_levels
            if state := re.search(r"lambda=([\d.]+).*train p=(\d)", value.setting):
                assert (config.loss.lambda_, config.model.gem_p) == (float(state[1]), float(state[2])), value


def test_recipe_metrics_include_the_metrics_of_its_published_rows():
    missing = {}
    for name in PUBLISHED:
        config = load_recipe(name)
        values = PUBLISHED[name].rows[0].values
        wanted = {value.metric for value in values if value.dataset == RECIPES[name].dataset}
        if left := wanted - set(config.run.metrics) - BY_REQUEST:
            missing[name] = left
    assert not missing


BY_REQUEST = {"wAP", "dists@intra", "dists@inter", "NMI"}  # metrics that users request with --metrics


@each_row(
    ("name", "figures"),  # a second person read these figures in the papers
    [
        ("happier-sop", {"R@1": "81.0", "AP": "60.4", "H-AP": "59.4", "ASI": "65.9", "NDCG": "91.5"}),
        ("happier-f-inat-base", {"R@1": "71.6", "AP": "37.8", "H-AP": "43.2", "ASI": "87.0", "NDCG": "96.6"}),
        ("happier-f-h-gldv2", {"mAP@100": "43.7", "H-AP": "38.3", "ASI": "77.5", "NDCG": "94.8"}),
        ("happier-dyml-animal", {"AP": "43.8", "ASI": "50.8", "R@1": "68.9"}),
        ("roadmap-2021-sop", {"R@1": "83.1"}),
        ("roadmap-deit-sop", {"R@1": "85.2", "R@10": "94.5", "R@100": "97.9"}),
        ("rod-recall-pair-sop", {"R@1": "82.4", "mAP@R": "56.6"}),
        ("smooth-ap-inat-base", {"R@1": "67.2", "R@4": "81.8", "R@16": "90.3", "R@32": "93.1"}),
        ("smooth-recall-large-inat-base", {"R@1": "71.2", "R@4": "84.0", "R@16": "91.3", "R@32": "93.6"}),
        ("smooth-recall-simix-sop", {"R@1": "82.1", "R@10": "92.8", "R@100": "97.0"}),
        ("norm-softmax-sop", {"R@1": "81.3", "AP": "61.3", "H-AP": "42.8", "ASI": "21.1", "NDCG": "78.3"}),
        ("xbm-sop", {"R@1": "80.6", "mAP@R": "54.9"}),
        ("multigrain", {"top-1": "77.4", "top-5": "93.6"}),
        ("off-the-shelf-resnet50", {"top-1": "76.1", "top-5": "92.9"}),
        ("off-the-shelf-pnasnet5", {"top-1": "82.7", "top-5": "96.0"}),
    ],
)
def test_published_values_of_recipes_equal_a_second_reading_of_the_papers(name, figures):
    assert {value.metric: value.text for value in PUBLISHED[name].rows[0].values} == figures


def test_recipe_step_counts_equal_the_counts_in_the_papers():
    for name, steps in (("happier-h-gldv2", 55_000), ("softbin-ap-landmarks-clean", 200)):
        config = load_recipe(name)
        assert config.run.epochs * config.batch.steps_per_epoch == steps


def test_every_published_row_belongs_to_a_recipe_and_a_table():
    assert not ({*NAMED["without"]} | {*NAMED["reached"]}) - {*RECIPES}
    assert not {*NAMED["without"]} & {*PUBLISHED}
    tables = {(value.paper, value.table, value.method) for value in published_values()}
    for pattern, entries in NAMED["rows"].items():
        found = list(_rows(entries))
        named = [name for name in PUBLISHED if fnmatchcase(name, pattern)]
        assert named, pattern
        for row in found:
            assert (row.paper, row.table, row.method) in tables
        wanted = {(row.table, row.method) for row in found}
        assert any(wanted & {(row.table, row.method) for row in PUBLISHED[name].rows} for name in named), pattern


def test_registered_recipe_is_found_and_its_name_is_unique(monkeypatch):
    monkeypatch.setattr(recipes, "RECIPES", dict(RECIPES))
    happier = find_recipe("happier-sop")
    mine = Recipe("mine-sop", "HAPPIER on SOP, alpha 2.", happier.setting, {**happier.fields, "alpha": 2.0})
    assert register_recipe(mine) is mine
    expected = with_fields(load_recipe("happier-sop"), {"alpha": 2.0})
    assert load_recipe("mine-sop") == dataclasses.replace(expected, recipe="mine-sop")
    assert "Published: none" in mine.facts_of(mine())
    assert mine.values == ()
    with pytest.raises(ConfigError, match=r"the name 'mine-sop' belongs to another recipe.*a different name"):
        register_recipe(mine)


OWN = (Recipe("own-cub", "HAPPIER on CUB, alpha 2.", find_recipe("happier-cub").setting, {"alpha": 2.0}),)


def test_broken_installed_package_costs_one_line_of_the_list(monkeypatch, tmp_path, capsys):
    module = "broken_recipes"
    (tmp_path / f"{module}.py").write_text("raise ValueError('not today')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(recipes, "RECIPES", dict(RECIPES))
    monkeypatch.setattr(recipes, "BROKEN", [])
    points = [EntryPoint("broken", f"{module}:RECIPES", "hgld.recipes"), EntryPoint("own", f"{__name__}:OWN", "")]
    monkeypatch.setattr(recipes, "entry_points", lambda group: points)
    recipes._register_installed()
    assert load_recipe("own-cub").loss.alpha == 2.0
    said = f"The recipes of '{module}:RECIPES' cannot be loaded (ValueError: not today"
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_recipe("gone")
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["train", "--list"])
    assert said in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.long  # only another version of a library breaks a model
def test_every_recipe_model_can_be_built():
    found = {(config.model, config.images.size) for config in map(load_recipe, RECIPES)}
    for model, size in found:
        with torch.device("meta"):
            built = build_model(model, image_size=size, load_weights=False)
        assert built.dim == (model.dim or built.dim)
        assert set(built.parameter_groups()) == {"backbone", "head"}

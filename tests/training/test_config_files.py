"""Configs are read back as written; contradictory options and options without effect are refused before any work."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import ConfigError, InputError, SchemaError
from hgld.training.config import (
    SECTIONS,
    TrainConfig,
    flag_of,
    flat,
    parse_field,
    read_config,
    save_config,
    with_fields,
)
from hgld.training.config_checks import READERS, check_config
from tests.rows import each_row, refused


def test_saved_config_is_read_back_unchanged(tmp_path):
    changed = {
        "tau": 0.05,
        "recall_at": (1, 3),
        "sum_levels": True,
        "backbone": "small",
        "evaluate_on": ("query/gallery",),
    }
    config = dataclasses.replace(with_fields(TrainConfig(), changed), recipe="happier-sop", init_from="../before")
    save_config(config, tmp_path / "config.json")
    assert read_config(tmp_path / "config.json") == config


def test_config_field_names_are_unique_over_all_sections():
    names = [field.name for section in SECTIONS.values() for field in dataclasses.fields(section)]
    assert len(names) == len(set(names))
    assert set(flat(TrainConfig())) == set(names)


@given(st.sampled_from(sorted(flat(TrainConfig()))))
def test_every_default_value_can_be_parsed_from_text(name):
    value = flat(TrainConfig())[name]
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    assert parse_field(name, text) == value
    assert with_fields(TrainConfig(), {name: value}) == TrainConfig()


test_contradictory_options_are_refused = refused(
    lambda fields: check_config(with_fields(TrainConfig(), fields)),
    [
        ({"taus": 1.0}, "'taus'.*Did you mean 'tau'"),
        ({"tau": "small"}, "tau is 'small'; expected a finite number"),
        ({"tau": float("nan")}, "finite"),
        ({"amp": "fp8"}, "'off', 'bf16', 'fp16'"),
        ({"recall_at": 3}, "expected a list of a whole number"),
        ({"tau": 0.0}, "tau is 0.0; expected more than 0"),
        ({"loss": "NormSoftmax", "simix": True}, "does not use --simix"),
        ({"loss": "SupAP", "level": "a", "sum_levels": True}, "no single level"),
        ({"loss": "SupAP", "simix": True, "class_weights": True}, "--simix or --class-weights"),
        ({"matryoshka": (64, 32)}, "expected ascending dimensions"),
        ({"matryoshka": (32, 128), "dim": 64}, "the last of which is --dim"),
        (
            {"matryoshka": (32, 512), "loss": "SupAP", "sum_levels": True},
            "--sum-levels is on and --matryoshka is given",
        ),
        ({"batch_size": 255}, "multiple of --images-per-class"),
        ({"sampler": "repeated-augmentation"}, "multiple of --repeats"),
        ({"loss": "MultiGrain", "lambda_": 0.5}, "repeated-augmentation"),
        ({"stream": True, "sampler": "shuffled"}, "cannot be combined with --sampler"),
        ({"schedule": "step"}, "milestones"),
    ],
    ConfigError,
)


def read_changed_config(change, *, tmp_path):
    save_config(TrainConfig(), tmp_path / "config.json")
    data = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(data))
    read_config(tmp_path / "config.json")


test_config_files_with_unknown_or_invalid_fields_are_refused = refused(
    read_changed_config,
    [
        ({"schema_version": 9}, SchemaError, "version is 9"),
        ({"optimiser": {}}, ConfigError, "Did you mean 'optimizer'"),
        ({"loss": {"tua": 1}}, ConfigError, "section 'loss' has no field 'tua'. Did you mean 'tau'"),
        ({"model": {"tau": 1}}, ConfigError, "section 'model' has no field 'tau'"),
        ({"init_from": ["run"]}, ConfigError, r"init_from is \['run'\]; expected text"),
        ({"model": {"dim": 20_000_000}}, ConfigError, "dim is 20000000; expected 65536 at most"),
        ({"loss": {"tau": []}}, ConfigError, r"config.json: tau is \[\]"),
    ],
)


@each_row("text", ["", "[]", "{", '"' + "a" * (1 << 20) + '"'])
def test_config_files_that_are_not_a_json_object_are_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        read_config(tmp_path / "config.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path / "other.json")


# -- options without effect --

PAIR = {"loss": "ROADMAP"}
MEMORY = {"loss": "SupAP", "memory": 64}
STEP = {"schedule": "step", "milestones": (3, 9)}
VIEWS = {"loss": "MultiGrain", "sampler": "repeated-augmentation"}
UNIFORM = {"loss": "MultiGrain", "sampler": "shuffled"}
WEIGHTED = {"loss": "SoftBinAP", "class_weights": True}
BLACKBOX = {"loss": "BlackboxAP"}
# Per field: a value, options under which it has an effect, and options under which it has none.
CASES = {
    "crop_min": (0.5, {}, {"train_crop": "squared"}),
    "gem_p": (5.0, {"pooling": "gem"}, {"pooling": "avg"}),
    "gem_learned": (False, {"pooling": "gem"}, {"pooling": "max"}),
    "classifier": ("pretrained", {**UNIFORM, "lambda_": 1.0}, {"loss": "NormSoftmax"}),
    "projection": ("pca", {"dim": 8}, {"dim": 0}),
    "coverage": ("classes", {}, {"stream": True}),
    "merge_classes": (3, {}, {"stream": True}),
    "images_per_class": (8, {"sampler": "hierarchical-pk"}, {"sampler": "shuffled"}),
    "super_level": ("genus", {"sampler": "hierarchical-pk"}, {}),
    "super_classes": (4, {"sampler": "hierarchical-pk"}, {}),
    "repeats": (4, {"sampler": "repeated-augmentation"}, {}),
    "alpha": (3.0, {}, {"relevance": "exponential"}),
    "pnp_b": (2.0, {"loss": "PNP", "pnp": "Ib"}, {"loss": "PNP", "pnp": "O"}),
    "pair_positive": (0.8, PAIR, {"loss": "HAPPIER"}),
    "pair_negative": (0.5, {"loss": "CalibrationLoss"}, {**PAIR, "decomposability": "proxy"}),
    "proxy_temperature": (0.1, {"loss": "NormSoftmax"}, PAIR),
    "memory_from_epoch": (1, MEMORY, {"loss": "SupAP"}),
    "lr_floor": (1e-6, {}, {"schedule": "constant"}),
    "lr_floor_proxies": (1e-6, {}, {"schedule": "constant"}),
    "lr_beta": (0.1, {"loss": "Margin"}, {"loss": "NormSoftmax"}),
    "weight_decay_proxies": (0.1, {"loss": "NormSoftmax"}, {"loss": "Margin"}),
    "blend": (0.5, {"evaluate_start": True}, {"evaluate_start": True, "ema": 0.9}),
    "nesterov": (True, {"optimizer": "sgd"}, {}),
    "milestones": ((3,), {"schedule": "step"}, {"schedule": "cosine"}),
    "gamma": (0.5, {"schedule": "step", "milestones": (3,)}, {"schedule": "constant"}),
}


def test_every_conditional_field_has_a_test_case():
    assert CASES.keys() == READERS.keys()


@each_row("field", CASES)
def test_option_without_effect_is_refused_with_a_hint(field):
    value, read, unread = CASES[field]
    check_config(with_fields(TrainConfig(), {**read, field: value}))
    check_config(with_fields(TrainConfig(), unread))
    said = rf"^{flag_of(field)} is .*, but only .* uses? it; .*leave it at "
    with pytest.raises(ConfigError, match=said) as refused:
        check_config(with_fields(TrainConfig(), {**unread, field: value}))
    assert str(refused.value).endswith(f"at {flat(TrainConfig())[field]!r}.")


@each_row(
    ("good", "bad", "message"),
    [
        ({"frozen_epochs": 2, "epochs": 2}, {"frozen_epochs": 3, "epochs": 2}, "never learn; lower it"),
        ({**MEMORY, "epochs": 6}, {**MEMORY, "epochs": 5}, "memory would never be used"),
        ({**STEP, "gamma": 1.0}, {**STEP, "gamma": -1.0}, "gamma is -1.0; expected more than 0"),
        ({**VIEWS, "repeats": 2}, {**VIEWS, "repeats": 1}, "repeats is 1, so no image has another view"),
        ({**VIEWS, "repeats": 1, "lambda_": 1.0}, {**VIEWS, "repeats": 1}, "or --lambda 1 for only the classification"),
        ({**UNIFORM, "lambda_": 1.0}, UNIFORM, "sampler shuffled gives only one view of an image"),
        ({**WEIGHTED, "sampler": "shuffled"}, WEIGHTED, "would outweigh the others. Use --sampler shuffled"),
        ({**BLACKBOX, "amp": "bf16"}, {**BLACKBOX, "amp": "fp16"}, "would multiply --blackbox-lambda.*use --amp bf16"),
        ({"loss": "SmoothAP", "amp": "fp16"}, {**BLACKBOX, "amp": "fp16"}, "use --amp bf16"),
    ],
)
def test_option_values_without_effect_or_with_a_distorted_loss_are_refused(good, bad, message):
    check_config(with_fields(TrainConfig(), good))
    with pytest.raises(ConfigError, match=message):
        check_config(with_fields(TrainConfig(), bad))


@each_row(
    ("fields", "refused"),
    [
        ({"loss": "SupAP"}, True),
        ({"loss": "Triplet", "sampler": "hierarchical-pk"}, True),
        ({"loss": "SupAP", "sum_levels": True}, False),  # images of the same coarser class are positives
        ({"loss": "SupAP", "level": "genus"}, False),
        ({"loss": "SupAP", "memory": 64}, False),  # the memory holds positives of earlier batches
        ({"loss": "NormSoftmax"}, False),  # the proxy of the class is the positive
    ],
)
def test_one_image_per_class_is_refused_if_the_loss_needs_positive_pairs(fields, refused):
    config = with_fields(TrainConfig(), {**fields, "images_per_class": 1})
    if refused:
        with pytest.raises(ConfigError, match="--images-per-class is 1, so no image has a positive"):
            check_config(config)
    else:
        check_config(config)

"""Configs read back as written, and every contradiction is named before any work."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import ConfigError, InputError, SchemaError
from hgld.training.config import SECTIONS, TrainConfig, flat, parse_field, read_config, save_config, with_fields
from hgld.training.config_checks import check_config


def test_config_round_trip(tmp_path):
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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"taus": 1.0}, "'taus'.*Did you mean 'tau'"),
        ({"tau": "small"}, "tau is 'small'; expected a finite number"),
        ({"tau": float("nan")}, "finite"),
        ({"amp": "fp8"}, "'off', 'bf16', 'fp16'"),
        ({"recall_at": 3}, "expected a list of a whole number"),
        ({"tau": 0.0}, "tau is 0.0; expected more than 0"),
        ({"flip": 1.5}, "1 at most"),
        ({"memory": -2}, "-1 or more"),
        ({"pnp": "O"}, "HAPPIER takes no --pnp.*choose one of PNP"),
        ({"loss": "NormSoftmax", "simix": True}, "takes no --simix"),
        ({"loss": "SupAP", "level": "a", "sum_levels": True}, "no one level"),
        ({"loss": "SupAP", "simix": True, "class_weights": True}, "--simix or --class-weights"),
        ({"matryoshka": (64, 32)}, "sizes of prefixes, ascending"),
        ({"matryoshka": (32, 128), "dim": 64}, "the last is --dim"),
        ({"matryoshka": (32, 512), "loss": "SupAP", "sum_levels": True}, "--sum-levels is on and --matryoshka given"),
        ({"batch_size": 255}, "multiple of --images-per-class"),
        ({"sampler": "repeated-augmentation"}, "multiple of --repeats"),
        ({"loss": "MultiGrain", "lambda_": 0.5}, "repeated-augmentation"),
        ({"stream": True, "sampler": "shuffled"}, "cannot serve"),
        ({"schedule": "step"}, "milestones"),
    ],
)
def test_contradictory_options_are_rejected(fields, message):
    with pytest.raises(ConfigError, match=message):
        check_config(with_fields(TrainConfig(), fields))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"schema_version": 9}, SchemaError, "version is 9"),
        ({"optimiser": {}}, ConfigError, "Did you mean 'optimizer'"),
        ({"loss": {"tua": 1}}, ConfigError, "section 'loss' has no field 'tua'. Did you mean 'tau'"),
        ({"model": {"tau": 1}}, ConfigError, "section 'model' has no field 'tau'"),
        ({"init_from": ["run"]}, ConfigError, r"init_from is \['run'\]; expected text"),
        ({"loss": {"tau": []}}, ConfigError, r"config.json: tau is \[\]"),
    ],
)
def test_config_files_with_foreign_content_are_rejected(tmp_path, change, error, message):
    save_config(TrainConfig(), tmp_path / "config.json")
    data = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(error, match=message):
        read_config(tmp_path / "config.json")


@pytest.mark.parametrize("text", ["", "[]", "{", '"' + "a" * (1 << 20) + '"'])
def test_files_without_a_config_object_are_rejected(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        read_config(tmp_path / "config.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_config(tmp_path / "other.json")

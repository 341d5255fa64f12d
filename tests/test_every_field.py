"""Every field of every config changes an observable result."""

import itertools

import pytest
import torch

import hgld.pipelines.hierarchy.config
import hgld.pipelines.shards.config
import hgld.training.config
from hgld.settings import options_of
from tests.pipelines import witnesses as of_builds
from tests.training import witnesses as of_training
from tests.training.small_runs import options
from tests.witnesses import CHANGES, Change, World

CONFIG_MODULES = (hgld.training.config, hgld.pipelines.hierarchy.config, hgld.pipelines.shards.config)
NESTED = {"TrainConfig", "BuildConfig"}  # their fields are the other configs; they have no options of their own


def configs(module):
    """Return the config dataclasses that a module defines."""
    made = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    return [each for each in made if each.__name__ not in NESTED]


WITNESSES = (of_training, of_builds)  # importing them fills CHANGES
FIELDS = {(config, name) for module in CONFIG_MODULES for config in configs(module) for name in options_of(config)}


@pytest.fixture(scope="module")
def shared(module_path):
    """Files that the witnesses share."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the work is too small for several threads
    yield {"folder": module_path, "made": {}, "numbers": itertools.count()}
    torch.set_num_threads(threads)


@pytest.fixture
def world(shared, monkeypatch):
    return World(shared["folder"], monkeypatch, shared["made"], shared["numbers"])


def seen(change, fields, world):
    """Return the result of a witness for a config."""
    given = {name: value(world) if callable(value) else value for name, value in fields.items()}
    sections = hgld.training.config.SECTIONS.values()
    config = options(**given) if change.config in sections else change.config(**given)
    with world.patch.context() as patch:
        return change.observe(config, World(world.folder, patch, world.shared, world.numbers))


def test_every_config_field_has_a_witness():
    witnessed = {(change.config, change.name) for change in CHANGES}
    missing = sorted(f"{config.__name__}.{name}" for config, name in FIELDS - witnessed)
    assert not missing, "these fields have no witness"
    assert not witnessed - FIELDS


def grouped():
    """Return the changes that share a witness and a base config."""
    found: dict[str, list[Change]] = {}
    for change in CHANGES:
        found.setdefault(f"{change.observe.__name__}, {change.base}", []).append(change)
    return found


@pytest.mark.parametrize("changes", grouped().values(), ids=lambda changes: changes[0].observe.__name__)
def test_changing_a_config_field_changes_the_result_of_its_witness(changes, world):
    base = seen(changes[0], changes[0].base, world)
    results = {change.label: seen(change, {**change.base, change.name: change.value}, world) for change in changes}
    assert [label for label, result in results.items() if result == base] == []


@pytest.mark.slow
@pytest.mark.parametrize("changes", grouped().values(), ids=lambda changes: changes[0].observe.__name__)
def test_witness_results_are_reproducible(changes, world):
    change = changes[0]
    assert seen(change, change.base, world) == seen(change, change.base, world)

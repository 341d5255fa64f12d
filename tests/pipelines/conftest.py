"""A small dataset that is written once; tests that change it get a copy."""

import shutil

import pytest

from tests.pipelines.tiny_shards import TinyShards


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Return a dataset that no test changes."""
    return TinyShards().write(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture
def root(tiny, tmp_path):
    """Return a copy of the dataset."""
    return shutil.copytree(tiny, tmp_path / "tiny")

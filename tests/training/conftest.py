"""The small dataset that the tests of training share; no test changes it."""

import pytest

from tests.training.small_runs import write_small


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> str:
    return str(write_small(tmp_path_factory.mktemp("data") / "small"))

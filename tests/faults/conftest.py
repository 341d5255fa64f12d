"""What the tests of commands share in one session: their files, and the process that starts them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.starter import Starter


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> Path:
    """The folder of what commands read."""
    from tests.faults.commands import write_base  # imports most of hgld, which only some of the tests here need

    folder = tmp_path_factory.mktemp("commands") / "base"
    folder.mkdir()
    write_base(folder)
    return folder


@pytest.fixture(scope="session")
def starter() -> Iterator[Starter]:
    with Starter() as started:
        yield started

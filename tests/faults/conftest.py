"""Fixtures of the tests of commands: their input files, and the process that starts the commands."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.starter import Starter


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> Path:
    """Folder with the input files of the commands."""
    from tests.faults.commands import write_base  # imports most of hgld, which only some of these tests need

    folder = tmp_path_factory.mktemp("commands") / "base"
    folder.mkdir()
    write_base(folder)
    return folder


@pytest.fixture(scope="session")
def starter() -> Iterator[Starter]:
    with Starter() as started:
        yield started

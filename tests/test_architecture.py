"""The architecture page is true: its files and names exist, and its import map equals the code."""

import re
from pathlib import Path

import pytest

from tests.interpreter import ROOT

PAGE = (ROOT / "docs/project/architecture.md").read_text(encoding="utf-8")
ROOMS = {"hgld", "pipelines", "training", "tests"}
FILES = sorted(set(re.findall(rf"`((?:{'|'.join(ROOMS)})/[\w/.*]*)`", PAGE)))


def test_files_in_architecture_page_exist():
    assert [file for file in FILES if not list(ROOT.glob(file))] == []


def test_names_in_architecture_page_are_defined_in_their_files():
    named = re.findall(r"`(\w+)` in `([\w/.]+)`", PAGE)
    assert len(named) >= 3
    for name, file in named:
        assert re.search(rf"^(def {name}\b|{name}\b)", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), name


def test_short_file_names_exist_in_the_folder_of_their_row():
    for row in (line for line in PAGE.splitlines() if line.startswith("| ")):
        folders = [Path(file) for file in re.findall(r"`(\w+/[\w/]+/)`", row)]
        folders += [Path(file).parent for file in re.findall(r"`(\w+/[\w/]+\.py)`", row)]
        for short in re.findall(r"`(\w+\.py)`", row):
            assert any((ROOT / folder / short).is_file() for folder in folders), short


@pytest.mark.checks
def test_import_map_equals_the_imports_of_the_code():
    from docs.extensions.import_map import draw, read_imports  # imports Sphinx

    imports = read_imports()
    assert {"hgld", "training"} <= imports["hgld.cli"]
    assert not [name for name in imports["training"] if name.startswith("pipelines")]
    assert draw(imports).count("<circle") == sum(map(len, imports.values()))

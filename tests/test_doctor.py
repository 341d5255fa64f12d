"""The facts of an installation: complete, with the way out, and without importing torch for a plain version."""

import json
import tomllib
from pathlib import Path

import click
import pytest

from hgld import __version__, installation
from hgld.cli import cli, main
from hgld.installation import EXTRAS, Installation

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FOUND = Installation({"torch": "2.6, without CUDA"}, {"numpy": "2.1"}, {"faiss": {"faiss-cpu": None}}, {})


def said(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main([*words])
    return stop.value.code, capsys.readouterr().out


def test_every_extra_for_users_says_what_it_is_for():
    assert set(EXTRAS) == set(PROJECT["optional-dependencies"]) - {"all", "bench", "dev", "docs"}


def test_what_is_missing_is_told_with_its_use_and_the_way_out(monkeypatch, capsys):
    monkeypatch.setattr(installation, "installation", lambda: FOUND)
    code, text = said(capsys, "doctor")
    assert not code
    assert "hgld search --index" in text
    assert "pip install 'hgld[faiss]'" in text


def test_a_base_package_that_is_missing_is_a_failure(monkeypatch, capsys):
    lacking = Installation(FOUND.facts, {"numpy": None}, {}, {})
    monkeypatch.setattr(installation, "installation", lambda: lacking)
    code, text = said(capsys, "doctor")
    assert code == 1
    assert "numpy not installed" in text


def test_a_torch_that_cannot_be_imported_is_a_failure(monkeypatch, capsys):
    broken = Installation({"torch": "cannot be imported: libcudart.so.12"}, {"torch": "2.6"}, {}, {})
    monkeypatch.setattr(installation, "installation", lambda: broken)
    code, text = said(capsys, "doctor")
    assert code == 1
    assert "Nothing is wrong" not in text
    assert "pip install --force-reinstall torch" in text


def test_a_driver_beside_a_torch_without_cuda_is_told(monkeypatch):
    monkeypatch.setattr(installation, "_has_nvidia", lambda: True)
    assert "a torch without CUDA" in FOUND.advice[0]


def test_the_version_for_a_report_has_everything(capsys):
    code, text = said(capsys, "--version", "--json")
    facts = json.loads(text)
    assert not code
    assert facts["version"] == __version__
    assert {"python", "machine", "torch", "packages", "extras", "caches", "advice"} <= set(facts)
    assert str(Path.home()) not in text
    assert said(capsys, "--version") == (0, f"hgld, version {__version__}\n")


def test_json_alone_is_no_command():
    with pytest.raises(click.UsageError, match="Missing command"):
        cli.main(["--json"], standalone_mode=False)
    with pytest.raises(click.UsageError, match="behind the verb: hgld datasets --json"):
        cli.main(["--json", "datasets"], standalone_mode=False)

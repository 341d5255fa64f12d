"""Entry points of other packages are found by name, imported when used, and never replace names of hgld."""

import sys

import pytest

from hgld import plugins
from hgld.errors import ConfigError
from hgld.plugins import Plugins

OWN = Plugins("hgld.things", "thing", ("one",))


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return ``install(package, **entry_points)``, which makes an importable package."""
    monkeypatch.syspath_prepend(tmp_path)
    plugins._points.cache_clear()

    def install(package, **points):
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[hgld.things]", *lines, ""]))
        return tmp_path

    yield install
    plugins._points.cache_clear()


def test_entry_points_are_listed_without_an_import_and_loaded_when_used(install):
    folder = install("brought", two="brought_module:THING")
    (folder / "brought_module.py").write_text("THING = 2\n")
    assert OWN.names() == ["two"]
    assert "brought_module" not in sys.modules
    assert OWN.load("two") == 2


def test_unknown_entry_point_error_lists_the_known_names(install):
    install("brought", two="brought_module:THING")
    with pytest.raises(ConfigError, match=r"there is no thing 'three'\. Expected one of one, two\."):
        OWN.load("three")


def test_a_package_cannot_use_a_name_of_hgld(install):
    install("thief", one="thief:THING", two="thief:OTHER")
    assert OWN.names() == ["two"]
    with pytest.raises(ConfigError, match=r"'one' is hgld's own, but the package thief \(thief:THING\) claims"):
        OWN.refuse_namesakes("one")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise RuntimeError('not today')", "RuntimeError: not today"),
        ("import not_installed_anywhere", "ModuleNotFoundError: No module named 'not_installed_anywhere'"),
        ("OTHER = 1", "AttributeError"),
        ("1 +", "SyntaxError"),
    ],
)
def test_error_of_a_broken_package_contains_its_name(install, text, reason):
    folder = install("broken", two=f"broken_{len(text)}:THING")
    (folder / f"broken_{len(text)}.py").write_text(text + "\n")
    with pytest.raises(ConfigError, match=rf"the thing 'two' of the package broken .*{reason}.* uninstall that"):
        OWN.load("two")


def test_error_of_a_name_in_two_packages_lists_both_packages(install):
    install("first", two="first:THING")
    install("second", two="second:THING")
    with pytest.raises(ConfigError, match=r"(?s)package (first|second).*and the package .* both define a thing 'two'"):
        OWN.load("two")

"""What ``pip install .`` gives: every file of the packages, and a command that works away from the clone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("hgld", "pipelines", "training", "data_cards")


def run(*words: object, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that the wheel was installed to, and the clone that it was made of."""
    clone, place = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("place")
    for room in ROOMS:
        shutil.copytree(ROOT / room, clone / room, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "wheel", ".", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", place, cwd=clone)
    (wheel,) = place.glob("hgld-*.whl")
    run(*pip, "install", wheel, "--no-deps", "--no-index", "--no-compile", "--target", place / "lib", cwd=place)
    return place / "lib", clone


def files_of(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for room in ROOMS
        for path in (folder / room).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_packages(installed):
    lib, clone = installed
    assert files_of(lib) == files_of(clone)


@pytest.mark.slow
def test_the_installed_command_works_away_from_the_clone(installed, tmp_path):
    lib, _ = installed
    where = run("-c", "import hgld; print(hgld.__file__)", cwd=tmp_path, PYTHONPATH=str(lib))
    assert Path(where.strip()).is_relative_to(lib)
    hgld = lib / "bin" / "hgld"
    assert "landmarks that hgld ships" in run(hgld, "demo", "--help", cwd=tmp_path, PYTHONPATH=str(lib))
    build = ("build-hierarchy", "--sample", "--encoder", "lexical", "--out", "labels")
    run(hgld, *build, cwd=tmp_path, PYTHONPATH=str(lib))
    assert (tmp_path / "labels" / "report.html").is_file()

"""Wheel, sdist and editable install contain only the package ``hgld``, which works beside folders with equal names.

Users may have a ``training.py`` or a folder ``data_cards``; Python must confuse neither with a package of hgld.
"""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from hgld.cli import VERBS
from tests.documented_files import write_documented_files
from tests.forked import starter
from tests.interpreter import ROOT

ROOMS = ("pipelines", "training", "data_cards")
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")
OFFLINE = ("--no-deps", "--no-index", "--no-build-isolation")
WITHOUT_CACHES = shutil.ignore_patterns("__pycache__")


def run(*words: object, cwd: Path, python: Path | str = sys.executable, code: int = 0, **environment: str) -> str:
    done = subprocess.run(
        [str(python), *map(str, words)],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def files_of(folder):
    """Return the files of a package, including files behind symbolic links."""
    return {
        (Path(place) / name).relative_to(folder).as_posix()
        for place, _, names in os.walk(folder, followlinks=True)
        for name in names
        if not name.endswith(".pyc")
    }


def new_environment(place):
    """Return the Python of a new environment that also sees the packages of this one."""
    run("-m", "venv", "--without-pip", place, cwd=place.parent)
    python = place / "bin" / "python"
    own = run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place, python=python).strip()
    (Path(own) / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


# -- beside folders with equal names ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(module_path):
    """User folder with modules named like packages of hgld; importing one of these modules fails."""
    trap = "raise RuntimeError('a file of the user was imported in place of one of hgld')\n"
    for name in ("training.py", "pipelines.py", "data_cards.py"):
        (module_path / name).write_text(trap)
    for name in ("training", "data_cards"):
        (module_path / name).mkdir()
        (module_path / name / "__init__.py").write_text(trap)
    return module_path


# -- the wheel -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """Copy of the repository with the packages and the symbolic links to them."""
    folder = tmp_path_factory.mktemp("clone")
    for room in ("hgld", *ROOMS):
        shutil.copytree(ROOT / room, folder / room, symlinks=True, ignore=WITHOUT_CACHES)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(clone, tmp_path_factory):
    place = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", clone, *OFFLINE, "--wheel-dir", place, cwd=place)
    (made,) = place.glob("hgld-*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Python of an environment with the wheel installed."""
    python = new_environment(tmp_path_factory.mktemp("installed") / "venv")
    run(*PIP, "--python", python, "install", wheel, "--no-deps", "--no-index", cwd=wheel.parent)
    return python


def packed(wheel):
    """Return the paths of the package's files in a wheel."""
    with ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if not name.startswith(("hgld/", "hgld-"))]
        return {name.removeprefix("hgld/") for name in archive.namelist() if name.startswith("hgld/")}


@pytest.mark.checks
def test_wheel_contains_every_file_under_one_package(wheel, clone):
    assert packed(wheel) == files_of(clone / "hgld")
    assert {f"{room}/__init__.py" for room in ROOMS} | {"py.typed"} <= packed(wheel)
    with ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/top_level.txt")]
        assert archive.read(name).split() == [b"hgld"]


@pytest.mark.checks
def test_wheel_description_is_valid_for_pypi(wheel):
    pytest.importorskip("twine", reason="of the extra dev")
    result = run("-m", "twine", "check", "--strict", wheel, cwd=wheel.parent)
    assert "PASSED" in result


@pytest.mark.checks
def test_sdist_builds_the_same_wheel(clone, wheel, tmp_path):
    build = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    run("-c", build, tmp_path, cwd=clone)
    (sdist,) = tmp_path.glob("hgld-*.tar.gz")
    run(*PIP, "wheel", sdist, *OFFLINE, "--wheel-dir", tmp_path, cwd=tmp_path)
    (made,) = tmp_path.glob("hgld-*.whl")
    assert packed(made) == packed(wheel)


@pytest.mark.checks
def test_editable_install_imports_from_the_clone(clone, hostile, tmp_path):
    python = new_environment(tmp_path / "venv")
    run(*PIP, "--python", python, "install", "--editable", clone, *OFFLINE, cwd=tmp_path)
    place = "import hgld.training, hgld.data_cards; print(hgld.training.__file__)"
    assert Path(run("-c", place, cwd=tmp_path, python=python).strip()).is_relative_to(clone)
    assert "happier-sop" in run("-m", "hgld", "train", "--list", "--papers", cwd=hostile, python=python, PYTHONPATH=".")
    (clone / "training" / "just_written.py").write_text("here = True\n")
    try:
        run("-c", "from hgld.training.just_written import here; assert here", cwd=tmp_path, python=python)
    finally:
        (clone / "training" / "just_written.py").unlink()


# -- every subcommand of the installed wheel, beside folders named like packages -----------------------------------

QUICK = "--epochs 1 --warmup-steps 0 --size 24 --resize 28 --batch-size 16 --device cpu"
LEVELS = "--levels fine,coarse,top"
COMMANDS: str = f"""
datasets
download --help
demo --help
build-hierarchy --sample --encoder lexical --out labels
compare labels/train_label_to_hierarchical.csv released/train_label_to_hierarchical.csv
show labels
build-shards manifest --source labels.csv --images . {LEVELS} --test-classes 0.5 --seed 0 --out shards
index tars
verify shards --decode
card shards
train --list
train small-grocery --data shards --out run --seed 0 {QUICK}
embed --checkpoint run --data shards --split test --out made.npy
evaluate --checkpoint run --data shards --split test
evaluate --embeddings test.npy --labels test.parquet {LEVELS.replace(",top", "")}
reproduce --list
published --dataset sop --method HAPPIER
report run --data shards --out report.html
calibrate --help
search photo.jpg --checkpoint run --data shards
export --help
audit --checkpoint run --data shards --out audit
push --help
doctor
"""


def commands() -> Iterator[list[str]]:
    return (line.split() for line in COMMANDS.strip().splitlines())


def test_wheel_test_covers_every_subcommand():
    assert {words[0] for words in commands()} | {"review", "serve"} == set(VERBS)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_subcommand_works_beside_folders_named_like_packages(installed, hostile, tmp_path, monkeypatch):
    path = "."  # also puts the current folder on the path of processes that torchrun starts
    here = tmp_path / "here"
    shutil.copytree(hostile, here)
    monkeypatch.chdir(here)
    write_documented_files(here, ["schema_version: 1\ndecisions: []\n"] * 2)
    environment = os.environ | {"PYTHONPATH": path}
    with starter(tmp_path / "said", here, installed, **environment) as python:
        for words in commands():
            python("-m", "hgld", *words)
    assert (here / "report.html").is_file()
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hgld")
    train = ("train", "small-grocery", "--data", "shards", "--out", "run2", "--seed", "0", *QUICK.split())
    run(*launch, *train, cwd=here, python=installed, PYTHONPATH=path, OMP_NUM_THREADS="1")
    assert (here / "run2" / "evaluations.csv").is_file()
    review = [str(installed), "-m", "hgld", "review", "labels", "--no-browser"]
    with subprocess.Popen(review, cwd=here, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE) as page:
        assert page.stdout is not None
        assert b"http://127.0.0.1:" in page.stdout.readline()
        page.send_signal(signal.SIGINT)


@pytest.mark.checks
def test_hgld_command_is_installed(installed, hostile):
    words = ("train", "--list", "--papers")
    assert "happier-sop" in run(*words, cwd=hostile, python=installed.with_name("hgld"), PYTHONPATH=".")
    assert "happier-sop" in run("-m", "hgld", *words, cwd=hostile, python=installed)


# -- types ---------------------------------------------------------------------------------------------------------

GOOD = """
import torch

import hgld
from hgld.data import Loader, TestView, open_dataset

loss = hgld.losses.SupHAP(alpha=1.0)
value = loss(torch.eye(4), torch.tensor([0, 0, 1, 1]))
tree = hgld.Hierarchy.from_columns({"landmark": ["a", "b"], "top": ["x", "x"]})
test = open_dataset("shards", "test")
batches = Loader(test, hgld.samplers.EpochSampler(len(test), batch_size=4, shuffle=False), TestView(size=64, resize=72))
"""
BAD = {
    "hgld.losses.SupHAP(alfa=1)": "alfa",
    "hgld.losses.SupHAPP()": "SupHAPP",
    "hgld.open_dataset(1.5)": "float",
}


@pytest.mark.checks
def test_type_checker_sees_signatures_of_installed_wheel(installed, tmp_path):
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text("import hgld\n" + "".join(f"{line}\n" for line in BAD))
    words = ("pyright", "--pythonpath", installed, "good.py", "bad.py")
    found = run("-m", *words, cwd=tmp_path, code=1).splitlines()
    assert not [line for line in found if "good.py:" in line], found
    for number, word in enumerate(BAD.values(), start=2):
        assert any(f"bad.py:{number}:" in line and word in line for line in found), found

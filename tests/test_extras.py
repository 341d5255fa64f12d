"""What ``pip install .`` brings is what ``hgld demo`` imports; whatever lacks an extra is told which one."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.installation import BASE, EXTRAS, FOR_DEVELOPERS, brought_by
from hgld.pipelines.hierarchy.encoders.registry import ENCODERS
from hgld.training.models.backbones import BACKBONES

ROOT = Path(__file__).parents[1]


def names(requirements: Iterable[Requirement]) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements}


def modules_outside(distributions: set[str]) -> list[str]:
    """Return the installed top-level modules that belong to no distribution of these."""
    return sorted(
        module
        for module, owners in packages_distributions().items()
        if module != "hgld" and not {canonicalize_name(owner) for owner in owners} & distributions
    )


ABSENT = """
import builtins, json, sys
from importlib.machinery import PathFinder
absent, *arguments = json.loads(sys.stdin.read())
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""


def run_without(modules: list[str], program: str, *arguments: object, cwd: Path) -> str:
    """Run a program where these modules are not installed."""
    done = subprocess.run(
        [sys.executable, "-c", ABSENT + program],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        input=json.dumps([modules, *arguments]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- the base ------------------------------------------------------------------------------------------------------

TINY_DEMO = """
imported, found = set(), builtins.__import__
def noting(name, globals=None, locals=None, fromlist=(), level=0):
    if not level and str((globals or {}).get("__name__")).startswith("hgld"):
        imported.add(name.partition(".")[0])
    return found(name, globals, locals, fromlist, level)
builtins.__import__ = noting
import os
os.environ["TERM"] = "xterm"
sys.stderr.isatty = lambda: True  # where people look, the demo shows bars
from pathlib import Path
from hgld.cli import demo_commands, main
demo_commands.DemoSize = lambda size=demo_commands.DemoSize: size(landmarks=60, images=4, epochs=1, steps=3)
try:
    main(["demo", "--out", "demo", "--json"])
except SystemExit as stop:
    assert not stop.code, stop.code
assert Path("demo/report.html").is_file()
print("imported:", *sorted(imported))
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_base_is_what_the_demo_imports(tmp_path):
    said = run_without(modules_outside(brought_by(BASE)), TINY_DEMO, cwd=tmp_path)
    imported = said.rpartition("imported:")[2].split()
    owners = packages_distributions()
    of_others = set(imported) - set(sys.stdlib_module_names) - {"hgld"}
    assert names(BASE) == {canonicalize_name(owners[module][0]) for module in of_others}


# -- the extras ----------------------------------------------------------------------------------------------------

CASES = {  # what takes an extra, as statements
    "clip": "make_encoder('clip:ViT-B-32/openai'); backbone('open_clip:ViT-B-32')",
    "faiss": "from hgld.training.inference.search_index import faiss; faiss()",
    "hub": "hgld.open_dataset('hf://somebody/something', 'train')",
    "onnx": "from hgld.training.inference.export import export_model as run; run(Path(), Path('m.onnx'), 'onnx')",
    "ray": "from hgld.pipelines.executor import run_on_ray; run_on_ray(print, [], print, workers=1, address='')",
    "review": "verb('review', '.')",
    "sbert": "Path('modules.json').write_text('[]'); make_encoder('sbert:.').encode(['lake'])",
    "scrape": "verb('download', 'gldv2', '--split', 'index', '--tars', '0', '--out', 'tars'); "
    "verb('build-hierarchy', '--landmarks', 'train=train.csv', '--encoder', 'lexical', '--out', 'labels')",
    "stream": "from hgld.data.tar_pipelines import _stages; _stages()",
    "timm": "backbone('timm:resnet18')",
    "torchvision": "backbone('torchvision:resnet18'); decoder_of('torchvision')",
    "url": "hgld.open_dataset('https://127.0.0.1:9/shards', 'train')",
    "wandb": "from hgld.training.log import RunLog; RunLog(Path('run'), loggers=['wandb:project'])",
}
EVERY_CASE = """
from pathlib import Path
import hgld
from hgld.cli import cli
from hgld.data.decode import decoder_of
from hgld.errors import MissingExtraError
from hgld.pipelines.hierarchy.encoders.registry import make_encoder
from hgld.training.config import ModelConfig
from hgld.training.models.backbones import build_model
Path("train.csv").write_text("landmark_id,category\\n1,http://commons.wikimedia.org/wiki/Category:A\\n")
def verb(*words):
    cli.main(words, standalone_mode=False)
def backbone(name):
    build_model(ModelConfig(backbone=name), image_size=224)
said = {}
for extra, statements in arguments[0].items():
    said[extra] = []
    for statement in statements.split("; "):
        try:
            exec(statement)
        except MissingExtraError as error:
            said[extra].append(str(error))
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """The errors of every case, where the base alone is installed."""
    absent = modules_outside(brought_by(BASE))
    return json.loads(run_without(absent, EVERY_CASE, CASES, cwd=tmp_path_factory.mktemp("base")).splitlines()[-1])


@pytest.fixture(scope="module")
def owners():
    """The distributions that every installed module belongs to."""
    return packages_distributions()


@pytest.mark.checks
@pytest.mark.parametrize("extra", CASES)
def test_whatever_lacks_an_extra_says_which(said, owners, extra):
    brought = brought_by(EXTRAS[extra])
    own = {module for module, names in owners.items() if brought & {*map(canonicalize_name, names)}} | {"wandb"}
    takers = [s for s in CASES[extra].split("; ") if not re.match(r"from |Path", s)]
    assert len(said[extra]) == len(takers), said[extra]
    for message in said[extra]:
        (package,) = re.findall(r" takes the package (\w+), which is not installed: ", message)
        assert package in own
        assert f"pip install 'hgld[{extra}]'." in message


def test_every_extra_that_is_named_has_a_case():
    sources = [path for room in ("hgld", "pipelines", "training") for path in (ROOT / room).rglob("*.py")]
    named = {
        name for path in sources for name in re.findall(r'optional_dependency\(\s*"(\w+)"', path.read_text("utf-8"))
    }
    named |= {entry.extra for entry in (*ENCODERS.values(), *BACKBONES.values())} - {""}
    assert named == set(CASES)
    assert named <= set(EXTRAS) - FOR_DEVELOPERS
    told = {name for path in sources for name in re.findall(r"hgld\[(\w+)\]", path.read_text("utf-8"))}
    assert told - {"extra"} <= set(EXTRAS)


def test_all_is_every_extra_for_users():
    (everything,) = EXTRAS["all"]
    assert everything.extras == set(EXTRAS) - FOR_DEVELOPERS

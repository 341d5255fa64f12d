"""Installation: base dependencies run the demo, errors name missing extras, doctor lists packages."""

import json
import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docs.versions import page, versions
from hgld import __version__, installation
from hgld.pipelines.hierarchy.encoders.registry import ENCODERS
from hgld.training.models.backbones import BACKBONES
from tests.interpreter import ROOT, python
from tests.rows import each_row

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {name: [Requirement(r) for r in lines] for name, lines in PROJECT["optional-dependencies"].items()}
FOR_USERS = set(EXTRAS) - {"all", "bench", "dev", "docs"}


# -- base dependencies and extras ----------------------------------------------------------------------------


def brought_by(requirements):
    """Return the names of all distributions that these requirements install."""
    waiting, found = list(requirements), set()
    while waiting:
        requirement = waiting.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in found:
            continue
        found.add(key)
        try:
            further = distribution(requirement.name).requires or []
        except PackageNotFoundError:
            continue  # the package is for another platform or an extra that is not installed
        asked = [{"extra": extra} for extra in ("", *requirement.extras)]
        waiting += [r for r in map(Requirement, further) if not r.marker or any(map(r.marker.evaluate, asked))]
    return {name for name, _ in found}


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


def run_with_base_alone(program, *arguments, cwd):
    """Run a program that can import only the base dependencies of hgld."""
    base = brought_by(map(Requirement, PROJECT["dependencies"]))
    absent = [
        module
        for module, owners in packages_distributions().items()
        if module != "hgld" and not {canonicalize_name(owner) for owner in owners} & base
    ]
    return python("-c", ABSENT + program, cwd=cwd, given=json.dumps([absent, *arguments])).stdout


SMALL_DEMO = """
from hgld.cli import demo_commands, main
demo_commands.DemoSize = lambda size=demo_commands.DemoSize: size(landmarks=30, images=2, epochs=1, steps=2)
main(["demo", "--out", "demo", "--json"])
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_demo_runs_with_base_dependencies_only(tmp_path):
    """tests/test_demo.py checks the values of the demo at its default size."""
    told = json.loads(run_with_base_alone(SMALL_DEMO, cwd=tmp_path))
    assert (tmp_path / "demo/report.html").is_file()
    assert len(told["values"]) == 2


CASES = {  # extra: statements that need it
    "faiss": "from hgld.training.inference.search_index import faiss; faiss()",
    "onnx": "from hgld.training.inference.export import export_model as run; run(Path(), Path('m.onnx'), 'onnx')",
    "ray": "from hgld.pipelines.executor import run_on_ray; run_on_ray(print, [], print, workers=1, address='')",
    "sbert": "Path('modules.json').write_text('[]'); make_encoder('sbert:.').encode(['lake'])",
    "wandb": "from hgld.training.log import RunLog; RunLog(Path('run'), loggers=['wandb:project'])",
}
EVERY_CASE = """
from pathlib import Path
from hgld.errors import MissingExtraError
from hgld.pipelines.hierarchy.encoders.registry import make_encoder
said = {}
for extra, statements in arguments[0].items():
    for statement in statements.split("; "):
        try:
            exec(statement)
        except MissingExtraError as error:
            said[extra] = str(error)
print(json.dumps(said))
"""


@pytest.mark.checks
def test_error_message_contains_the_missing_extra(tmp_path):
    said = json.loads(run_with_base_alone(EVERY_CASE, CASES, cwd=tmp_path).splitlines()[-1])
    assert set(said) == set(CASES)
    owners = packages_distributions()
    for extra, message in said.items():
        (package,) = re.findall(r" needs the package (\w+), which is not installed: ", message)
        brought = brought_by(EXTRAS[extra])
        assert package == "wandb" or brought & {*map(canonicalize_name, owners[package])}
        assert f"pip install 'hgld[{extra}]'." in message


def test_every_extra_in_the_code_exists_and_has_a_case():
    sources = [path for room in ("hgld", "pipelines", "training") for path in (ROOT / room).rglob("*.py")]
    texts = [path.read_text("utf-8") for path in sources]
    named = {name for text in texts for name in re.findall(r'optional_dependency\(\s*"(\w+)"', text)}
    named |= {entry.extra for entry in (*ENCODERS.values(), *BACKBONES.values())} - {""}
    assert named == set(CASES)
    assert named <= FOR_USERS
    assert {name for text in texts for name in re.findall(r"hgld\[(\w+)\]", text)} - {"extra"} <= FOR_USERS
    (everything,) = EXTRAS["all"]
    assert everything.extras == FOR_USERS


# -- doctor and version ---------------------------------------------------------------------------------------------


@each_row(
    ("name", "give", "code", "hint"),
    [
        ("_is_installed", lambda package: package != "faiss-cpu", 0, "[faiss]       -"),
        ("_is_installed", lambda package: package != "numpy", 1, "numpy is not installed"),
        ("_torch", lambda: "cannot be imported: libcudart.so.12", 1, "pip install --force-reinstall torch"),
    ],
)
def test_doctor_lists_missing_packages(hgld, monkeypatch, name, give, code, hint):
    requirements = ["numpy>=2", 'faiss-cpu<2; extra == "faiss"', 'ray; extra == "ray"']
    monkeypatch.setattr(installation, "_requirements", lambda: requirements)
    monkeypatch.setattr(installation, name, give)
    found, text, _ = hgld("doctor")
    assert found == code
    assert hint in text
    assert "[ray]         " in text


def test_doctor_json_contains_all_facts(hgld):
    code, text, _ = hgld("doctor", "--json")
    facts = json.loads(text)
    assert not code
    assert facts["version"] == __version__
    assert {"hgld", "python", "machine", "torch", "missing", "extras", "hints"} <= set(facts)
    assert set(facts["extras"]) >= FOR_USERS
    assert str(Path.home()) not in text
    assert hgld("--version") == (0, f"hgld, version {__version__}\n", "")


# -- workflows, the container, the published site ------------------------------------------------------------------

WORKFLOWS = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in (ROOT / ".github/workflows").glob("*.yml")]
STEPS = [step for flow in WORKFLOWS for job in flow["jobs"].values() for step in job["steps"]]
RUN = "\n".join(step["run"] for step in STEPS if "run" in step)


def test_workflows_cover_every_promised_python_and_existing_files():
    [tests] = [flow for flow in WORKFLOWS if flow["name"] == "tests"]
    promised = {match[1] for line in PROJECT["classifiers"] if (match := re.search(r":: (3\.\d+)$", line))}
    assert promised
    assert promised <= set(tests["jobs"]["fast"]["strategy"]["matrix"]["python"])
    named = re.findall(r"(?:bash|python) ([\w.][\w./-]+)", RUN)
    assert set(named) == {".ci/run", "docs/versions.py"}
    assert all((ROOT / name).is_file() for name in named)
    found = {name for names in re.findall(r"'\.\[([\w,]+)\]'", RUN) for name in names.split(",")}
    assert found <= set(EXTRAS), found
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert all((ROOT / name[1:]).exists() for name in kept if name.startswith("!"))


def test_workflows_have_minimal_permissions():
    assert {flow["name"]: flow["permissions"] for flow in WORKFLOWS} == {
        "tests": {"contents": "read"},
        "docs": {},
        "release": {"contents": "read"},
        "audit": {"contents": "read"},
        "long": {"contents": "read"},
    }
    of_jobs = {(flow["name"], name): job.get("permissions") for flow in WORKFLOWS for name, job in flow["jobs"].items()}
    assert {key: asked for key, asked in of_jobs.items() if asked} == {
        ("docs", "publish"): {"contents": "write"},
        ("release", "publish"): {"id-token": "write"},
    }
    assert "pull_request_target" not in str(WORKFLOWS)
    actions = [step["uses"] for step in STEPS if "uses" in step]
    # actions are pinned to commits, because tags can move
    assert [action for action in actions if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == []
    # a branch name inserted into a script could run shell code
    assert not [step for step in STEPS if "${{" in step.get("run", "")]


def test_site_versions_are_listed_newest_first(tmp_path):
    names = ("v0.2.0", "dev", "v0.10.0", "v<b>", "v1.0rc1", "v1.0", "v1.0rc2", "v1.1.dev3", "v1.0.post1", "v2-draft")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "objects.inv").touch(exist_ok=True)
    (tmp_path / "v9-empty").mkdir()
    releases = ["v1.1.dev3", "v1.0.post1", "v1.0", "v1.0rc2", "v1.0rc1", "v0.10.0", "v0.2.0", "v2-draft"]
    assert versions(tmp_path) == [*releases, "dev"]
    shown = page([*versions(tmp_path), "<b>"])
    assert '<a href="v1.0.post1/">v1.0.post1, the last release</a>' in shown
    assert shown.count("the last release") == 1
    assert "<b>" not in shown

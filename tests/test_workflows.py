"""The workflows, the container and the published site say what the tree has; linters and GitHub run them."""

import re
import tomllib
from pathlib import Path

import yaml

from docs.versions import page, versions

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in (ROOT / ".github/workflows").glob("*.yml")]
STEPS = [step for flow in WORKFLOWS for job in flow["jobs"].values() for step in job["steps"]]
RUN = "\n".join(step["run"] for step in STEPS if "run" in step)
CONTAINER = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_every_python_that_is_promised_is_tested_and_files_are_there():
    [tests] = [flow for flow in WORKFLOWS if flow["name"] == "tests"]
    promised = {match[1] for line in PROJECT["classifiers"] if (match := re.search(r":: (3\.\d+)$", line))}
    assert promised
    assert promised <= set(tests["jobs"]["fast"]["strategy"]["matrix"]["python"])
    named = re.findall(r"(?:bash|python) ([\w.][\w./-]+)", RUN)
    assert set(named) == {".ci/run", "docs/versions.py"}
    assert all((ROOT / name).is_file() for name in named)


def test_extras_that_are_installed_are_there():
    [asked] = re.findall(r"^ARG EXTRAS=(.*)$", CONTAINER, re.MULTILINE)
    found = {*asked.split(","), *(name for names in re.findall(r"'\.\[([\w,]+)\]'", RUN) for name in names.split(","))}
    assert found <= set(PROJECT["optional-dependencies"]), found
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert all((ROOT / name[1:]).exists() for name in kept if name.startswith("!"))


def test_workflows_may_no_more_than_they_need():
    assert {flow["name"]: flow["permissions"] for flow in WORKFLOWS} == {
        "tests": {"contents": "read"},
        "docs": {"contents": "write"},
    }
    assert "pull_request_target" not in str(WORKFLOWS)
    assert not [step for step in STEPS if "${{" in step.get("run", "")]  # what others may name is no shell


def test_versions_of_the_site_are_listed_the_newest_first(tmp_path):
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

"""hgld build-shards, as people and machines meet it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hgld.cli import main
from tests.fake_releases.__main__ import maker
from tests.pipelines.toy_release import LEVELS, ToyRelease, bytes_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def labels(tmp_path):
    release = ToyRelease.make()
    release.write(tmp_path / "images")
    table = release.items().select("file", *LEVELS).rename({"file": "path"})
    table.write_csv(tmp_path / "labels.csv")
    return tmp_path / "labels.csv"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["build-shards", *map(str, arguments)])
    shown = capsys.readouterr()
    return int(stopped.value.code or 0), shown.out, shown.err


def given(labels: Path, out: Path) -> list[object]:
    levels = ",".join(LEVELS)
    images = labels.parent / "images"
    arguments = ["manifest", "--source", labels, "--images", images, "--levels", levels]
    return [*arguments, "--test-classes", 0.4, "--seed", 1, "--workers", 1, "--out", out]


def test_ones_own_images(labels, tmp_path, capsys):
    code, shown, _ = run(capsys, *given(labels, tmp_path / "out"), "--dry-run")
    assert code == 0
    assert not (tmp_path / "out").exists()
    assert "to read:  " in shown
    code, shown, _ = run(capsys, *given(labels, tmp_path / "out"))
    assert code == 0
    assert "test: " in shown
    assert "1 without a finest label" in shown
    assert f"next: hgld verify {tmp_path}/out --decode" in shown
    code, shown, _ = run(capsys, *given(labels, tmp_path / "out"))
    assert "built before, nothing to do" in shown
    code, shown, _ = run(capsys, *given(labels, tmp_path / "out"), "--dry-run")
    assert "nothing to do" in shown


def test_for_machines(labels, tmp_path, capsys):
    (tmp_path / "images/0/0.jpg").write_bytes(b"")
    _, shown, _ = run(capsys, *given(labels, tmp_path / "out"), "--dry-run", "--json")
    plan = json.loads(shown)
    assert (plan["units"], plan["pending"], plan["done"]) == (1, 1, False)
    assert sum(split["items"] for split in plan["splits"].values()) == 23
    _, shown, _ = run(capsys, *given(labels, tmp_path / "out"), "--json")
    result = json.loads(shown)
    assert result["rejected"] == {"empty": 1}
    assert result["levels"] == list(LEVELS)
    assert sum(split["items"] for split in result["splits"].values()) == 22
    assert result["differences"] is None


def test_a_release_and_what_differs_from_its_card(tmp_path, capsys):
    maker("sop")(tmp_path / "sop", 0)
    code, shown, _ = run(capsys, "sop", "--source", tmp_path / "sop", "--out", tmp_path / "out", "--workers", 1)
    assert code == 0
    assert "differences from the published counts:" in shown
    assert "train, items: 59,551 published" in shown


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"manifest": "nothing"}, "there is no dataset 'nothing'"),
        ({"--levels": "species,nothing"}, "expected different columns"),
        ({"--seed": "x"}, "expected a whole number"),
        ({"--workers": "-1"}, "--workers is -1"),
        ({"--out": "s3+nothing://bucket"}, "s3+nothing"),
    ],
)
def test_bad_input_is_exit_code_2_and_writes_nothing(labels, tmp_path, capsys, changed, message):
    arguments = given(labels, tmp_path / "out")
    for option, value in changed.items():
        if option.startswith("--"):
            arguments[arguments.index(option) + 1] = value
        else:
            arguments[arguments.index(option)] = value
    code, _, errors = run(capsys, *arguments, "--work", tmp_path / "work")
    assert code == 2
    assert message in errors
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "work").exists()


def test_the_command_with_several_workers(labels, tmp_path):
    command = [sys.executable, "-W", "error", "-m", "hgld", "build-shards"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for workers in ("1", "2"):
        arguments = [*map(str, given(labels, tmp_path / workers)), "--workers", workers]
        done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    assert bytes_of(tmp_path / "1") == bytes_of(tmp_path / "2")


def test_help_imports_nothing_heavy():
    program = (
        "import sys\nfrom hgld.cli import main\n"
        "try:\n    main(['build-shards', '--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'polars', 'numpy', 'cv2', 'PIL', 'ray', 'fsspec', 'rich', 'requests'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "--executor [local|ray]" in done.stdout

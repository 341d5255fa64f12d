"""The demo: a small one that is stopped, resumed and repeated, and a full one that checks the published figures."""

import dataclasses
import fcntl
import functools
import json
import os
import re
import resource
import shlex
import signal

import click
import polars as pl
import pytest

import hgld
from hgld.cli import EXIT_BAD_INPUT, cli, demo_commands
from hgld.cli.demo_commands import BASELINE, HIERARCHICAL, DemoResult, DemoSize, demo_runs, demo_text, run_demo
from hgld.errors import ConfigError, StorageError
from hgld.evaluation.report import RetrievalReport
from hgld.pipelines.demo import drawings
from hgld.pipelines.demo.dataset import DrawnConfig, build_drawn_dataset
from hgld.pipelines.demo.drawings import painter_of
from hgld.pipelines.stage import silent
from hgld.training.config import flat
from tests.interpreter import python
from tests.undrawn import without_figures

pytestmark = pytest.mark.slow
TINY = DemoSize(landmarks=30, images=2, epochs=1, steps=2)
LEVELS = ("landmark", "hierarchical_label", "natural_or_human_made")


@pytest.fixture(scope="module")
def tiny(module_path):
    """Folder and result of a finished demo whose report has no figures."""
    out = module_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        without_figures(patch)
        return out, run_demo(out, 0, silent, TINY)


@pytest.fixture
def tiny_verb(monkeypatch, hgld):
    """``tiny_verb(*arguments)`` runs a small ``hgld demo`` and returns exit code, stdout and stderr."""
    monkeypatch.setattr(demo_commands, "DemoSize", lambda: TINY)

    return functools.partial(hgld, "demo")


def test_demo_runs_are_evaluated_on_unseen_landmarks(tiny):
    out, result = tiny
    train, test = (hgld.open_dataset(out / "shards", split) for split in ("train", "test"))
    assert train.levels == LEVELS
    assert result.splits["train"] == {"images": len(train), "landmarks": 20}
    assert result.splits["test"] == {"images": len(test), "landmarks": 10}
    assert not set(train.labels[:, 0].tolist()) & set(test.labels[:, 0].tolist())
    assert list(result.values) == [BASELINE, HIERARCHICAL]
    for name, values in result.values.items():
        kept = RetrievalReport.load_json(out / "runs" / name / "reports" / "test-epoch-1.json")
        assert values == pytest.approx({metric: float(value) for metric, value in kept.values.items()})
        assert {f"AP/{level}" for level in LEVELS} | {"H-AP", "NDCG", "ASI"} <= set(values)
    assert result.values[BASELINE] != result.values[HIERARCHICAL]


def test_natural_landmarks_are_drawn_as_landscapes(tiny):
    labels = pl.read_csv(tiny[1].places(tiny[0])["labels"]).drop_nulls(LEVELS[1:])
    natural = labels.filter(pl.col("natural_or_human_made") == "natural")
    kinds = natural.select("supercategory", "hierarchical_label").unique().rows()
    assert len(kinds) > 20
    landscapes = {drawings.mountain, drawings.water, drawings.park}
    assert [kind for kind in kinds if painter_of(kind) not in landscapes] == []


def test_demo_result_lists_existing_files(tiny):
    out, result = tiny
    labels = pl.read_csv(result.places(out)["labels"])
    assert result.groups == labels["hierarchical_label"].n_unique()
    assert (out / result.example).is_file()
    tested = hgld.open_dataset(out / "shards", "test").keys
    assert result.example.removeprefix("drawings/").removesuffix(".jpg") in tested
    report = (out / "report.html").read_text(encoding="utf-8")
    assert BASELINE in report
    assert HIERARCHICAL in report
    for record in ("result.json", "drawings/drawn.json"):
        assert str(out.parent) not in (out / record).read_text(encoding="utf-8")


def test_second_demo_shows_the_result_and_changes_nothing(tiny, tiny_verb):
    out, result = tiny
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    code, shown, said = tiny_verb("--out", out)
    assert (code, said) == (0, "")
    assert shown == demo_text(result, out) + "\n"
    code, shown, said = tiny_verb("--out", out, "--json")
    assert (code, said) == (0, "")
    told = json.loads(shown)
    assert told["values"] == result.values
    assert told["places"]["report"] == str(out / "report.html")
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_demo_recreates_removed_files_only(tiny, no_figures):
    out, result = tiny
    (out / "report.html").unlink()
    (out / "result.json").write_text("{}", encoding="utf-8")
    drawn = (out / "drawings" / "labels.csv").stat().st_mtime_ns
    tasks = set()
    assert run_demo(out, 0, lambda task, done, total: tasks.add(task), TINY) == result
    assert (out / "report.html").is_file()
    assert (out / "drawings" / "labels.csv").stat().st_mtime_ns == drawn
    assert len(tasks) <= 5  # one line per task must fit a small terminal


def test_demo_result_fits_one_screen_and_suggests_existing_commands(tiny):
    out, result = tiny
    text = demo_text(result, out.relative_to(out.parent))
    lines = text.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    for metric, value in result.values[HIERARCHICAL].items():
        row = next(line.split() for line in lines if line.split()[:1] == [metric])
        assert float(row[2]) == pytest.approx(100 * value, abs=0.051)
        assert float(row[3]) == pytest.approx(100 * (value - result.values[BASELINE][metric]), abs=0.051)
    commands = [shlex.split(line)[1:] for line in lines if line.split()[:1] == ["hgld"]]
    assert len(commands) == 3
    for verb, *words in commands:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known


def test_demo_stopped_by_ctrl_c_resumes_to_equal_values(tiny, tmp_path):
    out = tmp_path / "out"
    for when in (demo_commands.DATASET, f"training {HIERARCHICAL}"):

        def stop(task: str, done: int, total: int | None, when: str = when) -> None:
            if task == when and done == 2:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            run_demo(out, 0, stop, TINY)
        assert not (out / "result.json").exists()
    assert run_demo(out, 0, silent, TINY) == tiny[1]


def test_demo_refuses_changed_settings_and_foreign_folders(tiny, tmp_path, tiny_verb):
    out, _ = tiny
    code, _, err = tiny_verb("--out", out, "--seed", 1)
    assert code == EXIT_BAD_INPUT
    assert '"seed": 0' in err
    assert "Choose another --out" in err
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match="files that are not a demo's"):
        run_demo(tmp_path, 0, silent, TINY)
    with pytest.raises(ConfigError, match="is a file"):
        run_demo(tmp_path / "mine.txt", 0, silent, TINY)
    with open(out / demo_commands.MARKER, encoding="utf-8") as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="another demo is running"):
            run_demo(out, 0, silent, TINY)


def test_drawings_depend_only_on_labels_settings_and_seed(tiny, tmp_path):
    labels = tiny[1].places(tiny[0])["labels"]
    config = DrawnConfig(landmarks=6, images=2, size=32, test_classes=0.5)
    first = build_drawn_dataset(labels, tmp_path / "a", config, silent)
    assert first.was_run
    assert {name: split["items"] for name, split in first.manifest.splits.items()} == {"train": 6, "test": 6}
    again = build_drawn_dataset(labels, tmp_path / "a", config, silent)
    assert not again.was_run
    twin = build_drawn_dataset(labels, tmp_path / "b", config, silent)
    assert twin.manifest.shards == first.manifest.shards
    other = build_drawn_dataset(labels, tmp_path / "c", dataclasses.replace(config, seed=1), silent)
    assert other.manifest.shards != first.manifest.shards
    with pytest.raises(ConfigError, match="9999 landmarks were requested"):
        build_drawn_dataset(labels, tmp_path / "d", dataclasses.replace(config, landmarks=9999), silent)
    assert not (tmp_path / "d" / "drawings").exists()


def test_demo_runs_differ_only_in_their_loss():
    baseline, hierarchical = (flat(config) for config in demo_runs(3, epochs=2, steps=5).values())
    assert {name for name in baseline if baseline[name] != hierarchical[name]} == {"loss"}
    assert (baseline["seed"], baseline["epochs"], baseline["steps_per_epoch"]) == (3, 2, 5)


@pytest.mark.long  # tests/test_installation.py trains a small demo
def test_full_demo_is_fast_and_hierarchical_loss_wins(tmp_path):
    """The loss on all levels improves every hierarchical metric and lowers R@1 of landmarks only a little."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = tmp_path / "out"
    done = python("-m", "hgld", "demo", "--json", "--out", out)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert re.sub(r".*: \d[\d,]*( of \d[\d,]*)?\n", "", done.stderr) == ""  # lines of progress on a slow machine
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 240  # CPU seconds
    told = json.loads(done.stdout)
    baseline, hierarchical = told["values"][BASELINE], told["values"][HIERARCHICAL]
    gained = {metric: hierarchical[metric] - value for metric, value in baseline.items()}
    assert min(gained["H-AP"], gained["NDCG"], gained["AP/hierarchical_label"]) > 0
    assert min(gained["ASI"], gained["AP/natural_or_human_made"]) > 0.03
    assert gained["R@1/landmark"] > -0.05
    assert hierarchical["R@1/landmark"] > 0.8
    result = DemoResult(**{field.name: told[field.name] for field in dataclasses.fields(DemoResult)})
    assert all(place.exists() for place in result.places(out).values())

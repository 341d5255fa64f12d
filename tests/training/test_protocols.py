"""Protocols in training, in the evaluation of checkpoints, and in searches."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from hgld import evaluate, open_dataset
from hgld.data.format import JUDGEMENTS, MANIFEST
from hgld.data.index import TABLES
from hgld.data.views import TestView
from hgld.distributed import ALONE
from hgld.errors import ConfigError, InputError
from hgld.evaluation.protocols import FINEST, protocol_of
from hgld.evaluation.protocols.benchmark import open_searched
from hgld.report_page.runs import read_runs
from hgld.training.evaluation import check_evaluation, evaluate_splits, keep_reports, parse_task
from hgld.training.inference.embedding import embed
from hgld.training.recipes import RECIPES, load_recipe
from tests.fake_releases.pictures import jpeg
from tests.hgld.small_dataset import LEVELS, Item, items_of_classes, write_dataset
from tests.training.untrained_run import CONFIG_OF_RUN, small_model, write_run


def named(folder, protocol):
    facts = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(facts | {"protocol": protocol}))
    return folder


def asking(*entries, monitor="H-AP", select_on_test=False):
    asked = replace(CONFIG_OF_RUN.run, evaluate_on=entries, monitor=monitor, select_on_test=select_on_test)
    return replace(CONFIG_OF_RUN, run=asked)


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def place(module_path):
    folder = module_path / "small"
    write_dataset(folder, items_of_classes([4, 4, 3, 3, 2, 2], ["test", "train"], per_coarse=3))
    return named(folder, "cub")


@pytest.fixture(scope="module")
def judged(module_path):
    """A dataset with two queries, three gallery images, one training image and relevance judgements."""
    folder = module_path / "oxford"
    rng = np.random.default_rng(0)
    items = [Item((-1, -1), split, jpeg(rng)) for split in ("query", "query", "gallery", "gallery", "gallery", "train")]
    rows = [("query/0000", "gallery/0003", "easy"), ("query/0001", "gallery/0002", "hard")]
    write_dataset(folder, items, judgements=pl.DataFrame(rows, TABLES[JUDGEMENTS], orient="row"))
    return named(folder, "revisited")


def test_run_is_evaluated_by_several_protocols(model, place, judged, tmp_path):
    entries = ("protocol", f"{judged}:protocol", "protocol=leave-one-out", "test")
    reports = evaluate_splits(model, asking(*entries), str(place), ALONE, run=tmp_path)
    dataset = open_dataset(place, "test")
    vectors = embed(model, dataset, view=TestView(24, 28))
    expected = evaluate(vectors, dataset.labels, levels=LEVELS, metrics=("R@1/fine", "R@8/fine", "AP", "H-AP"))
    for name, value in expected.values.items():
        assert reports["protocol"].values[name] == pytest.approx(value, abs=1e-6)
    assert reports["protocol"].settings["protocol"] == "cub"
    assert "mAP/easy" in reports[f"{judged}:protocol"].values
    assert reports["protocol=leave-one-out"].values["AP/fine"] == pytest.approx(reports["test"].values["AP/fine"])
    keep_reports(tmp_path, 1, reports)
    [read] = read_runs([tmp_path])
    assert [e.report.settings["protocol"] for e in read.evaluations.values() if e.ranked is None] == ["revisited"]
    assert {e.report.settings["protocol"] for e in read.evaluations.values()} == {"cub", "revisited", "leave-one-out"}


def test_monitor_must_be_a_metric_of_the_protocol(place, judged):
    entry = f"{judged}:protocol"
    for asked, monitor, chosen in (("protocol", "R@1", "R@1/fine"), (entry, "mAP/medium", "mAP/medium")):
        config = asking(asked, monitor=monitor, select_on_test=True)
        assert check_evaluation(config, str(place)) == (config, (asked, chosen))
        assert check_evaluation(asking(asked, monitor=monitor), str(place))[1] == ()
    with pytest.raises(ConfigError, match=r"not measured on .*Choose one of: mAP/easy"):
        check_evaluation(asking(entry), str(place))
    with pytest.raises(InputError, match=r"no query has a relevant item.*--evaluate-on protocol"):
        check_evaluation(asking(f"{judged}:query/gallery"), str(place))
    with pytest.raises(InputError, match="needs the splits query, gallery"):
        check_evaluation(asking("protocol=inshop"), str(place))


def test_recipe_monitors_are_metrics_of_their_protocols():
    chosen = 0
    for name in RECIPES:
        run = load_recipe(name).run
        first = parse_task(run.evaluate_on[0], "") if run.evaluate_on else None
        if first is not None and first.protocol:
            printed = protocol_of(first.protocol).printed
            near = (run.monitor, f"{run.monitor}/average", f"{run.monitor}/{FINEST}")
            assert set(near) & set(printed), (name, printed)
            chosen += 1
    assert chosen


def test_checkpoint_is_evaluated_by_the_protocol_of_the_dataset(place, judged, tmp_path, refusal, output):
    write_run(tmp_path / "run")
    of_run = ["evaluate", "--checkpoint", tmp_path / "run", "--device", "cpu", "--data"]
    out = output(*of_run, place)
    header = [cell.strip() for cell in out.splitlines()[0].split("|")[1:-1]]
    assert header == ["", "R@1/fine", "R@2/fine", "R@4/fine", "R@8/fine", "AP/fine", "H-AP", "ASI", "NDCG"]
    out = output(*of_run, judged)
    assert [line.split("|")[1].strip() for line in out.splitlines()[:5]] == ["small", "---", "easy", "medium", "hard"]
    for words, said in (
        (("--query-split", "query", "--gallery-split", "gallery"), "no query has a relevant item"),
        (("--protocol", "classification"), "needs the split val"),
    ):
        assert said in refusal(*of_run, judged, *words)


def test_search_uses_the_gallery_of_the_protocol(place, judged):
    assert set(open_searched(str(judged)).keys) == {"gallery/0002", "gallery/0003", "gallery/0004"}
    assert open_searched(str(place)).split == "test"
    assert open_searched(str(judged)).split == "gallery"

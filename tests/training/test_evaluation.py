"""Reports of a model equal reports of its embeddings; entries of evaluate_on select the documented splits."""

import os
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from hgld import evaluate, open_dataset
from hgld.data.views import TestView
from hgld.distributed import ALONE
from hgld.errors import ConfigError, InputError
from hgld.evaluation.options import EvaluationOptions
from hgld.training.evaluation import (
    RetrievalTask,
    SplitEmbedder,
    evaluate_splits,
    evaluate_task,
    file_names,
    parse_task,
)
from hgld.training.inference.embedder import load_run, trained_embedder
from hgld.training.inference.embedding import embed
from hgld.training.loop import train
from tests.hgld.small_dataset import LEVELS, Item, items_of_classes, write_dataset
from tests.rows import each_row, refused
from tests.training.small_runs import options
from tests.training.untrained_run import CONFIG_OF_RUN, small_model, write_run

METRICS = CONFIG_OF_RUN.run.metrics
ENDS = (".npy", ".labels.parquet")


@pytest.fixture(scope="module")
def place(module_path):
    folder = module_path / "small"
    write_dataset(folder, items_of_classes([4, 4, 4, 4, 3, 5], ["test", "gallery"], per_coarse=3))
    return folder


@pytest.fixture(scope="module")
def model():
    return small_model()


def asking(*entries):
    return replace(CONFIG_OF_RUN, run=replace(CONFIG_OF_RUN.run, evaluate_on=entries))


def embedded(model, place, split):
    dataset = open_dataset(place, split)
    return embed(model, dataset, view=TestView(24, 28)), dataset.labels


def test_split_is_evaluated_against_a_gallery_and_in_another_dataset(model, place, tmp_path, monkeypatch):
    splits = []

    def counted(model, dataset, **options):
        splits.append(dataset.split)
        return embed(model, dataset, **options)

    monkeypatch.setattr("hgld.training.inference.embedder.embed", counted)
    other = tmp_path / "other:one"
    write_dataset(other, items_of_classes([3, 3], ["test"]))
    entries = ("test/gallery", f"{other}:test", "gallery")
    reports = evaluate_splits(model, asking(*entries), str(place), ALONE, run=tmp_path / "run")
    assert sorted(splits) == ["gallery", "test", "test"], "a split is embedded twice"
    query, gallery = embedded(model, place, "test"), embedded(model, place, "gallery")
    expected = {
        entries[0]: evaluate(*query, *gallery, levels=LEVELS, metrics=METRICS),
        entries[1]: evaluate(*embedded(model, other, "test"), levels=LEVELS, metrics=METRICS),
        entries[2]: evaluate(*gallery, levels=LEVELS, metrics=METRICS),
    }
    assert list(reports) == list(entries)
    assert list(reports["gallery"].values) == ["R@1/fine", "R@1/coarse", "AP/fine", "AP/coarse", "H-AP"]
    assert reports["gallery"].settings["protocol"] == "leave-one-out"
    for entry, report in reports.items():
        assert report.values == pytest.approx(expected[entry].values, abs=1e-6, nan_ok=True)
    assert reports[entries[0]].settings["gallery_split"] == "gallery"
    kept = sorted(p.name for p in (tmp_path / "run/embeddings").iterdir())
    assert kept == sorted(f"{name}{end}" for name in ("test", "gallery", "small-test") for end in ENDS)
    # on some processors, batches of a different size round the last bit differently
    np.testing.assert_allclose(np.load(tmp_path / "run/embeddings/test.npy"), query[0].numpy(), atol=1e-6)


@given(st.dictionaries(st.text(min_size=1, max_size=80), st.text(max_size=80), max_size=6))
@example({"a": "val", "b": "Val"})
@example({"a": "\u1112\u1161", "b": "\ud558"})
def test_embedding_file_names_are_unique_and_safe(titles):
    """Names are unique on disks that ignore case and store accents in another form, too."""
    names = file_names(titles)
    assert len({folded(name) for name in names.values()}) == len(titles)
    all_folded = [folded(title) for title in titles.values()]
    for of, name in names.items():
        assert not {"/", "\\", "\0"} & set(name)
        assert len(f".{name}-epoch-10000.per_query.parquet.part".encode()) <= 255
        if titles[of].isalnum() and len(titles[of]) < 40 and all_folded.count(folded(titles[of])) == 1:
            assert name == titles[of]


def folded(name):
    return unicodedata.normalize("NFC", name).casefold()


def test_evaluation_excludes_and_lists_damaged_images(model, place, tmp_path):
    folder, items = tmp_path / "small", items_of_classes([4, 4, 4, 4, 3, 5], ["test", "gallery"], per_coarse=3)
    for i in (0, 1, 7):
        items[i] = Item(items[i].labels, items[i].split, b"\xff\xd8 no image")
    write_dataset(folder, items)
    reports = evaluate_splits(model, asking("test/gallery", "test"), str(folder), ALONE, run=tmp_path / "run")
    kept = {}
    for split in ("test", "gallery"):
        bad = {i for i, key in enumerate(open_dataset(folder, split).keys) if key[-4:] in ("0000", "0001", "0007")}
        rows, labels = embedded(model, place, split)
        kept[split] = [table[[i for i in range(len(rows)) if i not in bad]] for table in (rows, labels)]
    expected = {
        "test/gallery": evaluate(*kept["test"], *kept["gallery"], levels=LEVELS, metrics=METRICS),
        "test": evaluate(*kept["test"], levels=LEVELS, metrics=METRICS),
    }
    for entry, report in reports.items():
        assert report.values == pytest.approx(expected[entry].values, abs=1e-6, nan_ok=True)
    told = reports["test/gallery"].settings["unreadable"]
    assert told["items"] == 3
    assert any("/0007" in fault for fault in told["first"])
    assert len(np.load(tmp_path / "run/embeddings/test.npy")) == len(kept["test"][0])


@each_row(
    ("entry", "expected"),
    [
        ("test", RetrievalTask("here", "test")),
        ("query/gallery", RetrievalTask("here", "query", "gallery")),
        ("/data/sop:test", RetrievalTask("/data/sop", "test")),
        ("/data/in:shop:query/gallery", RetrievalTask("/data/in:shop", "query", "gallery")),
        ("http://127.0.0.1:80/sop:test", RetrievalTask("http://127.0.0.1:80/sop", "test")),
    ],
)
def test_evaluate_on_entries_are_parsed_into_tasks(entry, expected):
    assert parse_task(entry, "here") == expected


test_malformed_evaluate_on_entries_are_refused = refused(
    lambda entry: parse_task(entry, "here"),
    ["", "a/", "/b", "a/b/c", ":test", "/data/sop:", "https://host/sop"],
    ConfigError,
    "QUERY/GALLERY",
)


def test_nan_embeddings_are_refused(place):
    diverged = small_model()
    with torch.no_grad():
        next(diverged.projection.parameters()).fill_(torch.nan)
    with pytest.raises(InputError, match=r"test.*NaN"):
        evaluate_splits(diverged, asking("test"), str(place), ALONE)


def test_run_with_an_edited_config_is_refused(tmp_path):
    write_run(tmp_path / "run")
    path = tmp_path / "run/config.json"
    path.write_text(path.read_text().replace('"dim": 6', '"dim": 7'))
    with pytest.raises(InputError, match=r"model\.safetensors.*config\.json.*projection"):
        load_run(tmp_path / "run")


@pytest.mark.slow
def test_evaluating_checkpoints_reproduces_the_evaluations_of_the_run(data, tmp_path):
    summary = train(options(ema=0.9, select_on_test=True), data, tmp_path / "run")
    reports = {}
    for which in ("best", "last"):
        with trained_embedder(tmp_path / "run", which=which, device="cpu") as embedder:
            task, asked = RetrievalTask(data, "test"), EvaluationOptions(metrics=METRICS)
            reports[which] = evaluate_task(SplitEmbedder(embedder), task, options=asked)
    assert reports["last"].values == pytest.approx(dict(summary.values["test"]), abs=1e-6)
    assert reports["best"].values["H-AP"] == pytest.approx(summary.best["value"], abs=1e-6)


def test_evaluate_saves_the_report_of_a_new_split_into_the_run(place, tmp_path, hgld, output):
    run = tmp_path / "run"
    write_run(run)
    asked = ("evaluate", "--checkpoint", run, "--data", place, "--device", "cpu", "--split")
    # The run has already evaluated its own test split.
    for changed in (("gallery", "--size", "16"), ("gallery", "--metrics", "R@1"), ("test",)):
        output(*asked, *changed)
    assert not (run / "reports").exists()
    code, _, err = hgld(*asked, "gallery")
    assert (code, f"next: hgld report {run} --data {place}" in err) == (0, True)
    assert [path.name for path in (run / "reports").glob("*.json")] == ["small-gallery-epoch-1.json"]
    assert "gallery" in output("report", run, "--data", place, "--json")


def test_evaluate_prints_its_report_if_the_run_folder_is_read_only(place, tmp_path, hgld, monkeypatch):
    run = tmp_path / "run"
    write_run(run)
    asked = ("evaluate", "--checkpoint", run, "--data", place, "--device", "cpu", "--split", "gallery")
    may, is_told = os.access, f"{run}: this folder is not writable"
    with monkeypatch.context() as patch:  # tests may run as root, which may write to any folder
        patch.setattr(os, "access", lambda path, mode, **more: mode != os.W_OK and may(path, mode, **more))
        code, out, err = hgld(*asked)
    assert (code, "H-AP" in out, is_told in err) == (0, True, True), err
    assert not (run / "reports").exists()

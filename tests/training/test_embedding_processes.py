"""Two processes embed and evaluate like one process; both exclude an image that one of them cannot read."""

import json

import numpy as np
import polars as pl
import pytest

from hgld import open_dataset
from hgld.cli import main
from hgld.data.views import TestView
from hgld.evaluation.report import RetrievalReport
from hgld.training.inference.embedder import load_run
from hgld.training.inference.embedding import embed
from tests.forked import together
from tests.hgld.small_dataset import Item, items_of_classes, write_dataset
from tests.training.untrained_run import write_run


def of_run(places, data):
    return ["--checkpoint", places / "run", "--data", places / data, "--split", "test"]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    items = items_of_classes([25, 24, 26], ["test"])
    write_dataset(folder / "data", items)
    items[-2] = Item(items[-2].labels, "test", items[-2].data[:200] + bytes(300))
    write_dataset(folder / "damaged", items)
    write_dataset(folder / "lost", [Item(item.labels, "test", b"no image") for item in items])
    write_run(folder / "run")
    return folder


@pytest.fixture
def run(tmp_path):
    """Return ``run(*words, processes=2)``, which runs ``hgld`` with these arguments as torchrun starts it."""

    def hgld(*words, processes=1):
        return together(main, [*map(str, words), "--device", "cpu"], folder=tmp_path, count=processes)

    return hgld


@pytest.mark.slow
def test_embeddings_by_two_processes_equal_single_process_embeddings(places, run):
    out, data = places / "parts.npy", of_run(places, "data")
    joined = run("embed", *data, "--out", out, "--parts", 2, processes=2)
    assert joined.returncode == 0, joined.stderr
    assert [joined.stdout.count(f"part {n} of 2") for n in (1, 2)] == [1, 1]
    model, _ = load_run(places / "run")
    expected = embed(model, open_dataset(places / "data", "test"), view=TestView(24, 28))
    np.testing.assert_allclose(np.load(out), expected.numpy(), atol=1e-5)


@pytest.mark.slow
def test_report_by_two_processes_equals_single_process_report(places, run):
    """Batches of one image make the embeddings bit-identical."""
    alone, both = (
        run("evaluate", *of_run(places, "data"), "--batch-size", 1, "--out", places / f"{count}.json", processes=count)
        for count in (1, 2)
    )
    assert (alone.returncode, both.returncode) == (0, 0), both.stderr
    first, second = (RetrievalReport.load_json(places / f"{count}.json") for count in (1, 2))
    assert second.values == pytest.approx(first.values, abs=1e-9)
    assert second.settings == first.settings
    for name in first.values:
        np.testing.assert_allclose(second.per_query[name], first.per_query[name], rtol=0, atol=1e-9)


@pytest.mark.slow
def test_image_that_one_process_cannot_read_is_excluded_by_both(places, run):
    result = run("embed", *of_run(places, "damaged"), "--out", places / "damaged.npy", "--json", processes=2)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["items"], told["unreadable"]) == (74, 1)
    [row] = pl.read_csv(places / "damaged.faults.csv").rows(named=True)
    assert open_dataset(places / "damaged", "test").keys[73] in row["where"]
    assert len(np.load(places / "damaged.npy")) == 74


@pytest.mark.slow
def test_split_without_readable_images_stops_both_processes(places, run):
    result = run("embed", *of_run(places, "lost"), "--out", places / "lost.npy", processes=2)
    assert result.returncode != 0
    assert "hgld: " in result.stderr
    assert "no item can be read" in result.stderr
    assert not (places / "lost.npy").exists()

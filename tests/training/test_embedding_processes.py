"""Two processes under torchrun embed and evaluate as one does; a fault on one of them ends both."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hgld import open_dataset
from hgld.decoding.views import TestView
from tests.hgld.small_dataset import Item, items_of_classes, write_dataset
from tests.training.untrained_run import write_run
from training.embedding import embed
from training.loading import load_model

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments, processes=1):
    """``hgld`` with these arguments, alone or under torchrun."""
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    line = [*command, "-m", "hgld", *map(str, arguments), "--device", "cpu"]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=240, check=False)


def of_run(places, data):
    return ["--checkpoint", places / "run", "--data", places / data, "--split", "test"]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    items = items_of_classes([5, 4, 6], ["test"])
    write_dataset(folder / "data", items)
    items[-2] = Item(items[-2].labels, "test", items[-2].data[:200] + bytes(300))
    write_dataset(folder / "damaged", items)
    write_run(folder / "run")
    return folder


def test_embeddings_of_two_are_those_of_one(places):
    result = run("embed", *of_run(places, "data"), "--out", places / "two.npy", processes=2)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("15 embeddings") == 1
    model, _ = load_model(places / "run")
    expected = embed(model, open_dataset(places / "data", "test"), view=TestView(24, 28))
    np.testing.assert_allclose(np.load(places / "two.npy"), expected.numpy(), atol=1e-5)


@pytest.mark.slow
def test_the_report_of_two_is_that_of_one(places):
    reports = [run("evaluate", *of_run(places, "data"), "--json", processes=count) for count in (1, 2)]
    alone, both = (json.loads(report.stdout) for report in reports)
    assert both["values"] == pytest.approx(alone["values"], abs=1e-6)
    assert both["settings"] == alone["settings"]


@pytest.mark.slow
def test_a_damaged_item_of_one_ends_both(places):
    result = run("embed", *of_run(places, "damaged"), "--out", places / "damaged.npy", processes=2)
    assert result.returncode != 0
    assert "hgld: " in result.stderr
    assert open_dataset(places / "damaged", "test").keys[13] in result.stderr
    assert not (places / "damaged.npy").exists()

"""``hgld evaluate`` reads files and prints a table or one JSON object; invalid input gives exit code 2."""

import json

import numpy as np
import polars as pl
import pytest

from hgld.evaluation.evaluate import evaluate
from hgld.evaluation.report import RetrievalReport


@pytest.fixture
def files(tmp_path):
    generator = np.random.default_rng(0)
    np.save(tmp_path / "e.npy", generator.normal(size=(12, 4)).astype(np.float32))
    labels = np.arange(12) // 2
    pl.DataFrame({"fine": labels, "coarse": labels // 3}).write_parquet(tmp_path / "l.parquet")
    return tmp_path


def test_json_output_equals_the_report_of_the_library(files, hgld):
    arguments = ["--embeddings", files / "e.npy", "--labels", files / "l.parquet", "--levels", "fine,coarse", "--json"]
    code, out, _ = hgld("evaluate", *arguments)
    expected = evaluate(
        np.load(files / "e.npy"), pl.read_parquet(files / "l.parquet").to_numpy(), levels=("fine", "coarse")
    )
    printed = json.loads(out)
    assert code == 0
    assert printed["values"] == pytest.approx(expected.values)
    assert printed["undefined"] == expected.undefined
    assert printed["settings"]["files"] == {"embeddings": "e.npy", "labels": "l.parquet"}


def test_command_prints_table_and_writes_report(files, hgld):
    arguments = ["--embeddings", files / "e.npy", "--labels", files / "l.parquet", "--levels", "fine,coarse"]
    options = ["--metrics", "R@1,H-AP", "--query-expansion", "2,3", "--distractors", files / "e.npy", "--out"]
    code, out, _ = hgld("evaluate", *arguments, *options, files / "report.json")
    kept = RetrievalReport.load_json(files / "report.json")
    assert code == 0
    assert list(kept.values) == ["R@1/fine", "R@1/coarse", "H-AP"]
    fine, coarse, whole = (f"{value:.4f}" for value in kept.values.values())
    assert "| metric | fine | coarse | all levels |" in out
    assert f"| R@1 | {fine} | {coarse} |  |" in out
    assert f"| H-AP |  |  | {whole} |" in out
    assert "sha256" not in out
    assert len(out.split()) < 80
    assert kept.settings["query_expansion"] == {"alpha": 2.0, "k": 3}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--levels", "fine", "--level-weights", "1,x"], "'x'; expected a finite number"),
        (["--levels", "fine", "--gallery-labels", "{}/l.parquet"], "is missing; pass both"),
    ],
)
def test_invalid_options_exit_with_2_and_the_reason(files, hgld, options, said):
    arguments = ["--embeddings", files / "e.npy", "--labels", files / "l.parquet"]
    code, out, err = hgld("evaluate", *arguments, *(option.format(files) for option in options))
    assert code == 2
    assert said in err
    assert not out

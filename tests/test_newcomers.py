"""Mistakes of newcomers: every message says what was found, what was expected, and the fix."""

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import hgld
from hgld.cli import main
from hgld.errors import HgldError
from tests.rows import each_row

EMBEDDINGS = torch.arange(32, dtype=torch.float32).reshape(8, 4).cos()
FINE = torch.arange(8) // 2
LABELS = torch.stack([FINE, FINE // 2], dim=1)
PK = functools.partial(hgld.samplers.PKSampler, p=2, k=2)
HAPPIER = functools.partial(hgld.losses.HAPPIER, num_classes=4, dim=4)

CALLS: dict[str, tuple[Callable[[], object], Sequence[str]]] = {
    "more classes per batch than exist": (lambda: PK([0, 0, 1, 1], p=4), ("2 classes", "p = 4 classes", "smaller p")),
    "floats as labels": (lambda: PK([0.5, 1.5]), ("found float", "class ids, or class names")),
    "a level that the table lacks": (lambda: PK({"fine": ["a", "b"]}, level="top"), ("'top'", "the levels are fine")),
    "an array for a loss": (lambda: HAPPIER()(EMBEDDINGS.numpy(), LABELS), ("are ndarray", "torch.as_tensor")),
    "images for a loss": (lambda: HAPPIER()(EMBEDDINGS[:, None], LABELS), ("(8, 1, 4)", "expect")),
    "too few classes for a loss": (lambda: HAPPIER(num_classes=2)(EMBEDDINGS, LABELS), ("label 3", "2 classes")),
    "embeddings of the wrong dimension": (lambda: HAPPIER(dim=5)(EMBEDDINGS, LABELS), ("(8, 4)", "(B, 5)")),
    "too few labels for a loss": (lambda: hgld.losses.SmoothAP()(EMBEDDINGS, FINE[:5]), ("(5,)", "8 embeddings")),
    "a number for a loss": (lambda: hgld.losses.wrap(3), ("loss is int", "wrap(NTXentLoss())")),  # pyright: ignore[reportArgumentType]
    "labels and embeddings swapped": (lambda: hgld.evaluate(LABELS, FINE), ("torch.int64", "whether they are labels")),
    "too few labels for evaluate": (lambda: hgld.evaluate(EMBEDDINGS, FINE[:5]), ("(5, 1)", "8 embeddings")),
    "coarse before fine": (
        lambda: hgld.evaluate(EMBEDDINGS, LABELS.flip(1), levels=("top", "fine")),
        ("more than one class of level 'fine'", "go from fine to coarse"),
    ),
    "a class with two parents": (
        lambda: hgld.Hierarchy.from_columns({"fine": ["x", "x"], "top": ["u", "v"]}),
        ("'x' under 'u' and 'v'", "one parent"),
    ),
}
COMMANDS: dict[str, Sequence[str]] = {
    "train": ("--data and --out", "--list"),
    "evaluate": ("missing --embeddings", "--checkpoint"),
    "evaluate --embeddings e.npy --labels l.csv": ("missing --levels",),
    "evaluate --embeddings e.npy --labels l.csv --levels fine,tpo": ("no column 'tpo'", "its columns are fine, top"),
    "evaluate --embeddings e.npy --labels short.csv --levels fine": ("5 rows", "e.npy has 8", "in the same order"),
    "evaluate --embeddings e.pt --labels l.csv --levels fine": ("'.pt'", ".npy", "numpy.save"),
    "build-shards imagnet --source . --out made": ("no dataset 'imagnet'", "Did you mean 'imagenet'?"),
    "report . --out r.html": ("reports/SPLIT-epoch-N.json", "hgld evaluate --out"),
}


@pytest.fixture(autouse=True)
def nothing_but_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("e.npy", EMBEDDINGS.numpy())
    pl.DataFrame(LABELS.numpy(), schema=["fine", "top"]).write_csv("l.csv")
    pl.DataFrame({"fine": [0, 0, 1, 1, 2]}).write_csv("short.csv")
    Path("e.pt").touch()


@each_row("wrong", CALLS)
def test_mistaken_python_calls_explain_the_fix(wrong):
    call, parts = CALLS[wrong]
    with pytest.raises(HgldError) as refused:
        call()
    for part in parts:
        assert part in str(refused.value)


@each_row("words", COMMANDS)
def test_mistaken_commands_explain_the_fix(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    told = capsys.readouterr().err
    assert stop.value.code == 2
    assert re.match(r"hgld[a-z -]*: ", told)
    assert len(told.splitlines()) == 1
    for part in COMMANDS[words]:
        assert part in told

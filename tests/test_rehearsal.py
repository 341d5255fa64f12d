"""The H-GLDv2 tutorial on a small synthetic release, from download to report."""

import json
import os
import sys

import polars as pl
import pytest

from tests.forked import starter
from tests.interpreter import ROOT

BENCHMARKS = ROOT / "benchmarks"
SMALL = "--scale 0.002 --steps 40 --runs happier"  # the benchmark uses a larger release


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rehearsal_at_small_scale_recovers_the_true_labels(tmp_path, monkeypatch, capsys):
    """All commands run once, and the final labels equal the true labels of the synthetic release.

    The commands run in forks, which saves a minute of imports, and train in one process, because tests/training trains
    with two.
    """
    monkeypatch.syspath_prepend(BENCHMARKS)
    import rehearsal  # pyright: ignore[reportMissingImports]

    chain = tmp_path / "chain"
    chain.mkdir()
    monkeypatch.setattr(sys, "argv", ["rehearsal", "--out", str(tmp_path), *SMALL.split()])
    with starter(tmp_path / "said", chain, **os.environ | rehearsal.ENVIRONMENT) as python:

        def run(command, folder, log, *_):
            module = next(word for word in command if word == "hgld" or word.startswith("rehearsed."))
            log.parent.mkdir(exist_ok=True)
            with log.open("a") as file:
                file.write(python("-m", *command[command.index(module) :]))
            return rehearsal.Spent()

        monkeypatch.setattr(rehearsal, "run", run)
        rehearsal.main()
    lines = (tmp_path / "record.jsonl").read_text(encoding="utf-8").splitlines()
    stages = [one for one in map(json.loads, filter(None, lines)) if one["stage"]]
    assert all(stage["code"] == 0 and stage["attempts"] == 1 for stage in stages)
    for name in ("train", "index"):  # the simulated annotator decides according to the true labels
        columns = ["landmark_id", "hierarchical_label", "natural_or_human_made"]
        made, true = (
            pl.read_csv(folder / f"{name}_label_to_hierarchical.csv", columns=columns).sort("landmark_id")
            for folder in (chain / "labels", chain / "gldv2" / "metadata")
        )
        assert made.equals(true)
    for name in ("index.parquet", "hierarchy.parquet"):
        built, rebuilt = (pl.read_parquet(chain / folder / name) for folder in ("shards", "rebuilt"))
        assert built.equals(rebuilt)
    assert "No errors found." in (chain / "logs" / "verify.log").read_text(encoding="utf-8")
    assert (chain / "report.html").stat().st_size > 100_000
    rows = [row.split("|")[1:-1] for row in capsys.readouterr().out.split("| per cent |")[1].splitlines()[2:]]
    values = {name.strip(): (float(mean_ap), float(h_ap)) for name, mean_ap, h_ap, *_ in rows}
    for better, *baselines in zip(*(values[name] for name in ("happier", "pixels", "untrained")), strict=True):
        assert better > max(baselines)

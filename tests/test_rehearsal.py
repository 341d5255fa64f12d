"""The H-GLDv2 tutorial on a small synthetic release, from download to report."""

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rehearsal_at_small_scale_recovers_the_true_labels(tmp_path):
    """All commands run once, and the final labels equal the true labels of the synthetic release."""
    # The benchmark uses a larger release.
    small = ("--scale", "0.002", "--steps", "40", "--runs", "happier")
    command = (sys.executable, "benchmarks/rehearsal.py", "--out", tmp_path, *small)
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "record.json").read_text(encoding="utf-8"))
    assert all(stage["done"] and stage["attempts"] == 1 for stage in record["stages"].values())
    chain = tmp_path / "chain"
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
    rows = [row.split("|")[1:-1] for row in done.stdout.split("| per cent |")[1].splitlines()[2:]]
    values = {name.strip(): (float(mean_ap), float(h_ap)) for name, mean_ap, h_ap, *_ in rows}
    for better, *baselines in zip(*(values[name] for name in ("happier", "pixels", "untrained")), strict=True):
        assert better > max(baselines)

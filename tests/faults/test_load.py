"""A program that puts hgld under load, in small: a scrape with many faults."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def program(name: str, *words: str) -> dict[str, Any]:
    """Run a program of benchmarks/; the JSON object that it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / name), *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout)


def test_a_scrape_with_faults_ends_with_one_status_a_landmark():
    found = program("scrape.py", "--landmarks", "5000", "--faults", "0.2")
    assert found["failed"] > 20
    assert found["landmarks with one status"] == found["landmarks"] == found["rows"] == 5_000
    assert found["same as without faults"]

"""The GPU benchmark runs at toy size."""

import json
from typing import Any

import pytest

from tests.interpreter import python


@pytest.mark.slow
@pytest.mark.long
def test_every_gpu_benchmark_part_runs_at_toy_size(tmp_path):
    python("benchmarks/gpu.py", "--out", tmp_path, "--toy", TRITON_DEFAULT_FP_FUSION="1")
    found: dict[str, dict[str, Any]] = {}
    for one in map(json.loads, filter(None, (tmp_path / "gpu.jsonl").read_text(encoding="utf-8").splitlines())):
        found.setdefault(one["part"], {})[one["case"]] = one
    failed = {f"{part}: {name}" for part, cases in found.items() for name, one in cases.items() if "traceback" in one}
    assert not failed
    assert len(found) == 11
    right = [one["values"] for one in found["right"].values()]
    assert max(one.get("value_error", 0.0) for one in right) < 1e-5
    assert max(one.get("gradient_error", 0.0) for one in right) < 1e-4
    assert all(one["values"].get("spilled_bytes", 0) == 0 for one in found["kernels"].values())

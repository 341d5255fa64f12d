"""The GPU benchmark runs at toy size, records failures, and resumes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "gpu.py"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import gpu  # pyright: ignore[reportMissingImports]  # a script in benchmarks/, not a package

    yield gpu
    sys.modules.pop("gpu")


def test_failed_gpu_case_is_recorded_and_the_next_case_runs(gpu, tmp_path, monkeypatch, capsys):
    calls = []

    def part(bench: Any) -> Any:
        yield "first", lambda: calls.append("first") or {"ms": 1}
        yield "second", lambda: calls.append("second") or {}["nothing"]
        yield "third", lambda: calls.append("third") or {"ms": 3}
        raise OSError("no disk")

    monkeypatch.setattr(gpu, "PARTS", {"one": part})
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path)])
    assert gpu.main() == 1
    assert gpu.main() == 1
    assert calls == ["first", "second", "third", "second"]  # the second call runs only the failed case again
    found = json.loads((tmp_path / "gpu.json").read_text())["one"]
    assert found["first"]["values"] == {"ms": 1}
    assert "KeyError" in found["second"]["traceback"]
    assert "no disk" in found["the part itself"]["traceback"]
    table = (tmp_path / "gpu.md").read_text().splitlines()
    assert table[0] == "| part | case | found | seconds |"
    assert table[2].startswith("| one | first | ms 1 |")
    assert "FAILED: KeyError" in table[3]
    assert "2 failed" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.long
def test_every_gpu_benchmark_part_runs_at_toy_size(tmp_path):
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--toy"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "TRITON_DEFAULT_FP_FUSION": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    found = json.loads((tmp_path / "gpu.json").read_text())
    failed = {f"{part}: {name}" for part, cases in found.items() for name, one in cases.items() if "traceback" in one}
    assert not failed, done.stdout + done.stderr
    assert done.returncode == 0
    assert len(found) == 11
    right = [one["values"] for one in found["right"].values()]
    assert max(one.get("value_error", 0.0) for one in right) < 1e-5
    assert max(one.get("gradient_error", 0.0) for one in right) < 1e-4
    assert all(one["values"].get("spilled_bytes", 0) == 0 for one in found["kernels"].values())

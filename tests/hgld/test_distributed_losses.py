"""Losses shared over processes: every process ranks its own queries, and together they have the whole batch's loss."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hgld.distributed import DistributedLoss, Processes
from hgld.errors import ConfigError, InputError
from hgld.losses import SupAP
from hgld.losses.registry import LOSSES
from tests.forked import together
from tests.hgld import shared_losses

ROOT = Path(__file__).resolve().parents[2]
ALONE = Processes(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def alone():
    return shared_losses.gradients(0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 8])
def test_gradients_of_processes_are_those_of_one(count, alone, tmp_path):
    out = tmp_path / "answers"
    result = together(shared_losses.answer, str(out), folder=tmp_path, count=count, timeout=500)
    assert result.returncode == 0, result.stderr
    for index in range(count):
        found = load_file(f"{out}.{index}")
        assert found.keys() >= alone.keys()
        for key, expected in alone.items():
            torch.testing.assert_close(
                found[key], expected, rtol=1e-9, atol=1e-12, msg=lambda text, key=key: key + text
            )
    assert all(alone[f"{name}/1/0.weight"].abs().max() > 1e-4 for name in shared_losses.SHARED)


def test_what_is_shared_and_what_is_not():
    """The list of DistributedLoss's docstring; a loss that is in neither list has to be decided on."""
    assert all(DistributedLoss(make(), ALONE).shared for make in shared_losses.SHARED.values())
    assert not any(DistributedLoss(make(), ALONE).shared for make in shared_losses.WHOLE.values())
    tried = {
        type(part).__name__
        for make in (shared_losses.SHARED | shared_losses.WHOLE).values()
        for part in make().modules()
    }
    assert set(LOSSES) - tried == {"RODNDCG", "RODRecall", "SmoothHAP", "SmoothRecall"} - tried


def test_a_loss_that_is_no_scalar_is_refused():
    with pytest.raises(ConfigError, match="the processes share a scalar"):
        DistributedLoss(SupAP(reduction="none"))


def test_names_are_refused_on_one_process_as_on_several():
    with pytest.raises(InputError, match="labels are list; expected a tensor of class numbers"):
        DistributedLoss(SupAP())(torch.eye(4), ["a", "a", "b", "b"])  # type: ignore[arg-type]


def test_a_loss_made_before_the_processes_met_is_refused(monkeypatch):
    loss = DistributedLoss(shared_losses.SHARED["SupHAP"]())
    args = torch.eye(4), torch.tensor([0, 0, 1, 1])
    loss(*args)
    monkeypatch.setattr("hgld.distributed.current_processes", lambda: Processes(0, 2, torch.device("cpu")))
    with pytest.raises(ConfigError, match="made before torch's processes were connected"):
        loss(*args)


@pytest.mark.slow
def test_the_documented_loop_has_one_loss_on_any_number_of_processes(tmp_path):
    program = tmp_path / "loop.py"
    text = (ROOT / "docs/how-to/distributed.md").read_text()
    program.write_text(text.split("```python\n")[2].split("```")[0])
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    said = []
    for command in ([sys.executable], start):
        process = subprocess.run([*command, str(program)], env=environment, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr
        said.append(process.stdout)
    assert said[0].startswith("loss ")
    assert said[1].replace("\n", "") == said[0].replace("\n", "") * 2  # two processes may print into one line

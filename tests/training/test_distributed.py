"""Two processes compute the gradients of one process with the same global batch; signals request stops."""

import os
import signal

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hgld.distributed import (
    ALONE,
    Processes,
    _device,
    is_main_process,
    launch,
    process_group,
    stop_requests,
    wrap_model,
)
from hgld.errors import ConfigError, HgldError
from hgld.training.step import Backward, StepInput
from tests.rows import each_row, refused
from tests.training import two_processes


@pytest.fixture(scope="module")
def answers(module_path):
    out = module_path / "answers.safetensors"
    two_processes.answer_in_two(str(out))
    return load_file(out), load_file(f"{out}.1")


@each_row("chunk", [0, 5])
@each_row("name", two_processes.LOSSES)
def test_gradients_of_two_processes_equal_gradients_of_one_process(answers, name, chunk, alone):
    first, second = answers
    keys = [key for key in alone if key.startswith(f"{name}/")]
    assert len(keys) > 4
    for key in keys:
        for process in (first, second):
            scale = max(1.0, float(alone[key].abs().max()))
            torch.testing.assert_close(process[f"chunk{chunk}/{key}"], alone[key], rtol=1e-5, atol=1e-5 * scale)


@pytest.fixture(scope="module")
def alone():
    found = two_processes.gradients(ALONE, chunk=0)
    assert any(value.abs().max() > 1e-3 for key, value in found.items() if key.startswith("HAPPIER/1/1"))
    return found


def test_processes_exchange_values_rows_flags_and_statistics(answers):
    for process in answers:
        assert process["heard"] == 1
        assert process["statistics"].unique().tolist() == [5]
        assert process["rows"].tolist() == [0, 1]
        assert process["any"].tolist() == [1, 1, 0]


@each_row("chunk", [0, 2])
def test_dropout_differs_by_process_and_step_and_is_reproducible(chunk):
    """Repeating a step gives the same bits; another process or another step draws a different dropout mask."""
    images, labels = torch.ones(6, 8), torch.arange(6)[:, None] // 2

    def embedded(index, seed):
        seen = []

        class Criterion(nn.Module):
            def forward(self, embeddings, labels, instances):
                seen.append(embeddings.detach().clone())
                return embeddings.sum(), {}

        linear = nn.Linear(8, 8, bias=False)
        nn.init.eye_(linear.weight)
        model = nn.Sequential(linear, nn.Dropout(0.5))
        processes = Processes(index, 1, torch.device("cpu"))
        Backward(model, Criterion(), processes, lambda x: x, micro_batch_size=chunk)(
            StepInput(images, labels, labels[:, 0], seed)
        )
        return seen[0]

    first = embedded(0, 7)
    assert torch.equal(first, embedded(0, 7))
    assert not torch.equal(first != 0, embedded(1, 7) != 0)
    assert not torch.equal(first != 0, embedded(0, 8) != 0)


def set_variables(monkeypatch, variables):
    """Remove the variables of torchrun and SLURM, and set some."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "RANK", "WORLD_SIZE"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def launch_with(variables, *, monkeypatch):
    set_variables(monkeypatch, variables)
    launch("cpu")


test_incomplete_torchrun_or_slurm_environment_is_refused = refused(
    launch_with,
    [
        ({"RANK": "0"}, "WORLD_SIZE.*torchrun"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}, "MASTER_ADDR"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "SLURM_STEP_NUM_TASKS is set but SLURM_PROCID, .*MASTER_ADDR"),
    ],
    ConfigError,
)


@each_row(
    ("variables", "main"),
    [
        ({}, True),
        ({"RANK": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, True),
        ({"RANK": "1"}, False),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, True),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, False),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "1"}, True),  # SLURM started this process as a step of one task
    ],
)
def test_main_process_is_found_from_environment_variables(variables, main, monkeypatch):
    set_variables(monkeypatch, variables)
    assert is_main_process() == main


def test_error_about_a_lost_process_contains_the_hint():
    told = r"process 0 of 1: another process of the run died .* Start again\."
    with pytest.raises(HgldError, match=told), process_group("cpu", lambda: "Start again."):
        raise RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer")


def test_sync_batch_norm_on_cpu_and_unknown_devices_are_refused():
    with pytest.raises(ConfigError, match="sync-batch-norm with several processes needs GPUs"):
        wrap_model(nn.Linear(2, 2), Processes(0, 2, torch.device("cpu")), sync_batch_norm=True)
    with pytest.raises(ConfigError, match="device 'tpu'"):
        launch("tpu")


@each_row(
    ("visible", "local", "slurm", "chosen"),
    [
        (8, 3, {}, "cuda:3"),
        (1, 3, {"SLURM_LOCALID": "3", "SLURM_GPUS_PER_TASK": "1"}, "cuda:0"),
        (1, 3, {"SLURM_LOCALID": "3", "SLURM_GPU_BIND": "single:1"}, "cuda:0"),
        (8, 3, {"SLURM_LOCALID": "3", "SLURM_GPUS_PER_TASK": "1"}, "cuda:3"),
        (1, 3, {"SLURM_LOCALID": "3"}, None),  # four tasks share the one visible GPU
        (2, 3, {}, None),
    ],
)
def test_each_process_takes_its_own_gpu(visible, local, slurm, chosen, monkeypatch):
    set_variables(monkeypatch, slurm)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    if chosen is None:
        with pytest.raises(ConfigError, match=rf"process {local} .*no GPU of its own.*--gpus-per-task 1"):
            _device("cuda", local)
    else:
        assert _device("cuda", local) == torch.device(chosen)


# -- signals that request a stop --


@each_row("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_first_signal_requests_stop_and_second_interrupts(number):
    before = signal.getsignal(number)
    with stop_requests() as stop:
        assert not stop
        os.kill(os.getpid(), number)
        assert stop
        assert stop.signal == number
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(number) is before


def test_ignored_hangup_does_not_stop_a_run():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_requests() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop
    finally:
        signal.signal(signal.SIGHUP, before)

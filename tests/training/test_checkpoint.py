"""Checkpoints are complete or absent; errors contain the names of damaged files."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hgld.errors import InputError, SchemaError
from hgld.training.checkpoint import (
    Checkpoint,
    find_checkpoint,
    mark_best,
    prune_checkpoints,
    read_checkpoint,
    rewrite_state,
    write_checkpoint,
)
from hgld.training.inference.embedder import load_run
from tests.rows import each_row, refused
from tests.training.untrained_run import write_run


def a_checkpoint(step, value=1.0):
    shared = torch.full((2, 3), value)
    tensors = {"model": {"a": shared, "b": shared.T}, "optimizer": {"a|step": torch.tensor(3.0)}}
    return Checkpoint(step, tensors, {"epoch": 2, "scaler": {"scale": 4.0}})


def test_checkpoint_is_read_back_unchanged(tmp_path):
    path = write_checkpoint(tmp_path, a_checkpoint(7))
    back = read_checkpoint(path)
    assert (back.step, back.state["epoch"], back.state["scaler"]) == (7, 2, {"scale": 4.0})
    assert torch.equal(back.tensors["model"]["b"], torch.ones(3, 2))
    assert back.tensors["optimizer"]["a|step"].shape == ()
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-00000007"]


def test_pruning_keeps_newest_and_best_checkpoints(tmp_path):
    for step in (1, 2, 3, 4, 5):
        path = write_checkpoint(tmp_path, a_checkpoint(step))
        if step == 2:
            mark_best(tmp_path, path, "H-AP", 0.5, "val")
    prune_checkpoints(tmp_path, keep=2)
    names = {p.name for p in (tmp_path / "checkpoints").iterdir()}
    assert names == {"best.json", "step-00000002", "step-00000004", "step-00000005"}
    assert find_checkpoint(tmp_path).name == "step-00000002"
    assert find_checkpoint(tmp_path, "last").name == "step-00000005"
    assert find_checkpoint(tmp_path / "checkpoints" / "step-00000004").name == "step-00000004"


def test_damaged_checkpoint_files_raise_errors_with_the_file_name(tmp_path):
    path = write_checkpoint(tmp_path, a_checkpoint(1))
    (path / "model.safetensors").write_bytes(b"\x80\x04not tensors")
    with pytest.raises(InputError, match=r"model\.safetensors"):
        read_checkpoint(path)
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(state | {"schema_version": 99}))
    with pytest.raises(SchemaError, match="99"):
        read_checkpoint(path)
    (tmp_path / "checkpoints" / "best.json").write_text('{"checkpoint": "../../etc"}')
    with pytest.raises(InputError, match=r"best\.json"):
        find_checkpoint(tmp_path)


@each_row("is_rewritten", [False, True])
def test_checkpoint_with_missing_or_edited_optimizer_file_is_refused(is_rewritten, tmp_path):
    """Otherwise the run would resume with the moments of another optimizer."""
    path = write_checkpoint(tmp_path, a_checkpoint(7))
    if is_rewritten:
        rewrite_state(path, {"epoch": 3})
        assert read_checkpoint(path).state["epoch"] == 3
    save_file({"b|step": torch.zeros(()), "a|step": torch.zeros(())}, path / "optimizer.safetensors")
    with pytest.raises(InputError, match=r"optimizer\.safetensors: its SHA-256 .* remove the checkpoint's folder"):
        read_checkpoint(path)
    (path / "optimizer.safetensors").unlink()
    with pytest.raises(InputError, match=r"optimizer\.safetensors: .*No such file"):
        read_checkpoint(path)


def read_edited_state(change, *, tmp_path):
    path = write_checkpoint(tmp_path, a_checkpoint(7))
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(state | change))
    read_checkpoint(path)


test_edited_state_json_is_refused = refused(
    read_edited_state,
    [{"step": 8}, {"checksum": None}],
    InputError,
    r"state\.json: its content does not match .* remove the checkpoint's folder",
)


def test_pruning_removes_unfinished_checkpoints_and_keeps_unrelated_folders(tmp_path):
    folder = tmp_path / "checkpoints"
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, a_checkpoint(step))
    # a run killed while it removes a checkpoint leaves such a folder
    (folder / "step-00000001" / "state.json").unlink()
    for name in (".step-00000004.part", "notes", ".step-notes.part"):
        (folder / name).mkdir()
        (folder / name / "model.safetensors").write_bytes(b"half")
    prune_checkpoints(tmp_path, keep=2)
    assert {p.name for p in folder.iterdir()} == {"step-00000002", "step-00000003", "notes", ".step-notes.part"}


def test_checkpoint_path_may_be_current_folder_or_symlink(tmp_path, monkeypatch):
    write_run(tmp_path / "run")
    newest = find_checkpoint(tmp_path / "run", "last")
    (tmp_path / "link").symlink_to(newest)
    monkeypatch.chdir(newest)
    expected, config = load_run(newest)
    for place in (Path(), tmp_path / "link"):
        model, its_config = load_run(place)
        assert its_config == config
        assert torch.equal(model.state_dict()["projection.weight"], expected.state_dict()["projection.weight"])

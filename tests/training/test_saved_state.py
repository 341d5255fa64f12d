"""What a checkpoint says of its run is believed only as far as a run may have written it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import InputError, SchemaError
from hgld.training.checkpoint import Checkpoint, newest_checkpoint, read_state
from hgld.training.loop import train
from hgld.training.state import SavedState, saved_state
from tests.training.small_runs import options, write_small

BEST = {"metric": "H-AP", "value": 0.5, "epoch": 1, "step": 6}
STATE = {"judged": 1, "best": BEST, "values": {"test": {"H-AP": 0.5}}, "scaler": {}, "average_updates": 8}


def checked(folder, *, averaged=True, names=(), **changed):
    state = {name: value for name, value in (STATE | changed).items() if value is not None}
    path = folder / "step-00000008"
    return saved_state(Checkpoint(8, {}, state), path, total=12, steps_per_epoch=6, scaler=names, averaged=averaged)


def test_what_a_run_writes_comes_back(tmp_path):
    assert checked(tmp_path) == SavedState(1, BEST, {"test": {"H-AP": 0.5}}, {}, 8)
    assert checked(tmp_path, best={}, values={}, judged=0).best == {}
    assert checked(tmp_path, names=["scale"], scaler={"scale": 2.0}).scaler == {"scale": 2.0}
    assert checked(tmp_path, averaged=False, average_updates=None).average_updates == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("judged", value) for value in (None, "1", -1, 2, True, 1.0)],
        *[("best", value) for value in (None, [1], {"a": 1}, BEST | {"value": "x"}, BEST | {"step": 9})],
        *[("values", value) for value in (None, [], {"test": 3}, {"test": {"R@1": "x"}})],
        *[("scaler", value) for value in (None, [], {"scale": 1.0})],
        *[("average_updates", value) for value in (None, "8", 9, -1)],
    ],
)
def test_another_value_is_named(name, value, tmp_path):
    with pytest.raises(InputError, match=rf"state\.json: {name} is .*; expected .*remove the checkpoint's folder"):
        checked(tmp_path, **{name: value})


@given(st.integers())
def test_only_steps_of_the_run_are_taken(tmp_path_factory, step):
    path = tmp_path_factory.getbasetemp() / "step-00000008"
    before = Checkpoint(step, {}, STATE | {"judged": 0, "best": {}})
    if step == 8:
        assert saved_state(before, path, total=12, steps_per_epoch=6, scaler=(), averaged=True).judged == 0
    else:
        with pytest.raises(InputError, match="step is"):
            saved_state(before, path, total=12, steps_per_epoch=6, scaler=(), averaged=True)


def test_a_run_says_which_file_of_its_checkpoint_is_damaged(tmp_path):
    data, run, config = str(write_small(tmp_path / "data")), tmp_path / "run", options(ema=0.9, epochs=1)
    train(config, data, run)
    newest = newest_checkpoint(run)
    assert newest is not None
    good = read_state(newest)
    damaged = [(good | {"scaler": None}, "scaler is None"), (good | {"step": -5}, "step is -5")]
    damaged += [({k: v for k, v in good.items() if k != "files"} | {"values": 3}, "values is 3")]
    for state, told in damaged:
        (newest / "state.json").write_text(json.dumps(state))
        with pytest.raises((InputError, SchemaError), match=rf"state\.json: {told}"):
            train(config, data, run)
    (newest / "state.json").write_text('{"a":' + "[" * 200_000 + "]" * 200_000 + "}")
    with pytest.raises(InputError, match=r"state\.json: not JSON"):
        train(config, data, run)
    del good["files"]  # not even that the files were there
    (newest / "state.json").write_text(json.dumps(good))
    for file in ("ema", "model"):
        (newest / f"{file}.safetensors").unlink()
        with pytest.raises(InputError, match=rf"{file}\.safetensors"):
            train(config, data, run)

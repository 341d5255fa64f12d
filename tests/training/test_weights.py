"""Weights from files: file types, renamed tensors and errors."""

import pickle
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hgld.errors import InputError, MissingResourceError
from hgld.training.models.backbone import load_into, read_weights, weights_file
from tests.rows import each_row, refused
from tests.training.small_runs import same


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.norm = nn.BatchNorm2d(4)


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    net = Net()
    weights = net.state_dict()
    weights["norm.running_mean"].uniform_()
    return weights


@each_row("name", ["w.safetensors", "w.bin", "old.pt"])
def test_read_weights_reads_every_file_type(tmp_path, name):
    path = tmp_path / name
    if path.suffix == ".safetensors":
        save_file(state(), path)
    else:
        torch.save(state(), path, _use_new_zipfile_serialization=name != "old.pt")
    assert same(read_weights(path), state())


@each_row("key", ["model", "model_ema"])
def test_read_weights_unwraps_training_checkpoints(tmp_path, key):
    torch.save({"epoch": 3, "optimizer": {"lr": 0.1}, key: state()}, tmp_path / "w.pt")
    assert same(read_weights(tmp_path / "w.pt"), state())


@each_row("prefix", ["", "_orig_mod.module.", "backbone.net."])
def test_load_into_removes_wrapper_prefixes(prefix):
    net = Net()
    load_into(net, {prefix + name: value for name, value in state(1).items()}, "w.pt")
    assert same(net.state_dict(), state(1))


def test_load_into_skips_classifier_weights_and_logs_it(caplog):
    net = Net()
    extra = {"fc.weight": torch.zeros(10, 4), "fc.bias": torch.zeros(10)}
    load_into(net, {**state(1), **extra}, "w.pt")
    assert same(net.state_dict(), state(1))
    assert "w.pt: ignored" in caplog.text
    assert "fc.bias, fc.weight" in caplog.text


def test_weights_with_other_names_are_loaded_by_order_if_shapes_agree(caplog):
    renamed = {f"_{n.replace('.', '-')}": value for n, value in state(1).items()}
    classifier = {"_fc.weight": torch.zeros(10, 4), "_fc.bias": torch.zeros(10)}
    for given in (renamed, renamed | classifier):
        net = Net()
        load_into(net, given, "w.pt")
        assert same(net.state_dict(), state(1))
        assert "w.pt: has other names" in caplog.text
    backwards = dict(reversed(renamed.items()))
    for wrong in (backwards, dict(list(renamed.items())[:-1]), renamed | {"more": torch.zeros(4)}):
        with pytest.raises(InputError, match="not the weights of this backbone"):
            load_into(Net(), wrong, "w.pt")


def test_load_into_skips_weights_listed_as_unused():
    extra = {"conv_head.weight": torch.zeros(1)}
    with pytest.raises(InputError, match="conv_head"):
        load_into(Net(), {**state(1), **extra}, "w.pt")
    load_into(Net(), {**state(1), **extra}, "w.pt", unused={"conv_head.weight"})


def test_weights_may_lack_the_batch_norm_counters():
    given = {name: value for name, value in state(1).items() if "num_batches" not in name}
    load_into(Net(), given, "w.pt")


@each_row(
    ("change", "expected"),
    [
        (lambda w: w.pop("conv.bias"), r"1 of 7 are missing \(conv\.bias\)"),
        (lambda w: w.update({"layer9.weight": torch.zeros(1)}), r"are not of this model \(layer9\.weight\)"),
        (lambda w: w.update({"conv.bias": torch.zeros(9)}), r"conv\.bias has shape \(9,\); expected \(4,\)"),
        (lambda w: w.update({"module.conv.bias": torch.zeros(4)}), "two weights that could be 'conv.bias'"),
    ],
)
def test_mismatched_weights_are_refused_and_nothing_is_copied(change, expected):
    net, given = Net(), dict(state(1))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    change(given)
    with pytest.raises(InputError, match=expected):
        load_into(net, given, "w.pt")
    assert same(net.state_dict(), before)


def test_read_weights_never_runs_pickled_code(tmp_path):
    mark = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return mark.touch, ()

    torch.save({"conv": Evil()}, tmp_path / "w.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps(Evil()))
    for name in ("w.pt", "old.pt"):
        with pytest.raises(InputError, match="pickled code is never run"):
            read_weights(tmp_path / name)
    assert not mark.exists()


def test_weights_file_with_a_compressed_member_is_refused(tmp_path):
    torch.save(state(), tmp_path / "w.pt")
    with (
        zipfile.ZipFile(tmp_path / "w.pt") as plain,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as out,
    ):
        for info in plain.infolist():
            out.writestr(info.filename, plain.read(info))
    with pytest.raises(InputError, match="is compressed"):
        read_weights(tmp_path / "bomb.pt")


@each_row(
    ("name", "content"),
    [("w.pt", b""), ("w.pt", b"\x80\x02nonsense"), ("w.safetensors", b"{}"), ("w.safetensors", b"\xff" * 64)],
)
def test_damaged_weights_files_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        read_weights(tmp_path / name)


def read_saved(saved, *, tmp_path):
    torch.save(saved, tmp_path / "w.pt")
    read_weights(tmp_path / "w.pt")


test_files_without_weights_are_refused = refused(
    read_saved,
    [([1, 2], "holds list"), ({}, "without weights"), ({"a": 1}, "'a' is int"), ({3: torch.zeros(1)}, "3 is Tensor")],
    InputError,
)


def test_weights_file_tells_keywords_from_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("w.pt", "default", "none"):
        (tmp_path / name).write_bytes(b"x")
    assert weights_file("w.pt") is not None
    assert weights_file("none") is None
    assert weights_file("default") is None
    assert weights_file("laion2b_s34b_b79k") is None
    for missing in ("other.pt", "folder/weights", "~/nowhere.safetensors"):
        with pytest.raises(MissingResourceError, match="no such file"):
            weights_file(missing)

"""``torch.compile`` in training gives the same weights up to rounding, under the same names."""

from dataclasses import replace

import pytest
import torch

from hgld.training.inference.embedder import load_run
from hgld.training.loop import train
from tests.training.small_runs import options, weights, write_small

pytestmark = [
    pytest.mark.slow,  # the compiler of C++ takes its time
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # torch.compile looks at it, whatever its input is
]

# Without Adam, which makes gradients of rounding size large, and with a smooth surrogate, for the same reason.
ALIKE = {"optimizer": "sgd", "lr": 0.01, "lr_head": 0.01, "lr_proxies": 0.01, "tau": 0.1, "ema": 0.9}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Of compiled kernels: one that another process was killed over would be found broken."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))
    yield
    torch.compiler.reset()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(write_small(tmp_path_factory.mktemp("data") / "small"))


def test_compiled_and_eager_training_give_close_weights(data, tmp_path):
    config = options(**ALIKE, epochs=1)
    compiled = replace(config, model=replace(config.model, compile=True))
    train(config, data, tmp_path / "eager")
    summary = train(compiled, data, tmp_path / "compiled")
    assert summary.finished
    before, after = weights(tmp_path / "eager"), weights(tmp_path / "compiled")
    assert before.keys() == after.keys()
    assert not any("_orig_mod" in name for name in after)
    assert {name for name in after if name.startswith("ema/")}
    for name, tensor in before.items():
        torch.testing.assert_close(tensor, after[name], rtol=1e-3, atol=1e-4)
    model, _ = load_run(tmp_path / "compiled")  # which is not compiled to embed with
    assert torch.equal(model.state_dict()["projection.weight"], after["ema/projection.weight"])

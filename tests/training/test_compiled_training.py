"""``torch.compile`` in training gives the same weights up to rounding, under the same names."""

from dataclasses import replace

import pytest
import torch

from hgld.training.inference.embedder import load_run
from hgld.training.loop import train
from tests.training.small_runs import options, weights

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,  # compiles C++
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # torch.compile reads .grad of every tensor
]

# SGD and a smooth surrogate, because Adam and a steep surrogate would amplify rounding differences.
ALIKE = {"optimizer": "sgd", "lr": 0.01, "lr_head": 0.01, "lr_proxies": 0.01, "tau": 0.1, "ema": 0.9}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Use a separate cache, because a killed process may leave a broken kernel in the usual cache."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))
    yield
    torch.compiler.reset()


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
    model, _ = load_run(tmp_path / "compiled")  # loading a model for embedding does not compile it
    assert torch.equal(model.state_dict()["projection.weight"], after["ema/projection.weight"])

"""Micro-batches with trainable batch norm are refused before the first step."""

import pytest
from torch import nn

from hgld.distributed import ALONE
from hgld.errors import ConfigError
from hgld.training.models.embedding_model import EmbeddingModel
from hgld.training.state import prepare_run
from tests.training.small_runs import options, write_small

QUICK = {"backbone": "torchvision:resnet18"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(write_small(tmp_path_factory.mktemp("data") / "small"))


def test_micro_batches_with_trainable_batch_norm_are_refused(data, tmp_path):
    with pytest.raises(
        ConfigError, match=r"--micro-batch-size is 4.*resnet18 has batch norm.*of all 8 images.*--freeze-batch-norm"
    ):
        prepare_run(options(**QUICK, micro_batch_size=4), data, tmp_path / "run", ALONE, None)
    assert not (tmp_path / "run").exists()


def test_has_live_batch_norm_is_false_for_group_norm():
    layers = {"batch": nn.BatchNorm2d(4), "synchronised": nn.SyncBatchNorm(4), "group": nn.GroupNorm(2, 4)}
    live = {
        (name, frozen): EmbeddingModel(layer, 4, None, freeze_batch_norm=frozen).has_live_batch_norm
        for name, layer in layers.items()
        for frozen in (False, True)
    }
    assert {key for key, value in live.items() if value} == {("batch", False), ("synchronised", False)}

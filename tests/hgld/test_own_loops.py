"""Samplers, metrics and losses in custom training loops: Lightning, torchmetrics, pytorch-metric-learning."""

import json
import pickle
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

import hgld
from hgld import losses
from hgld.errors import ConfigError, InputError
from hgld.metrics import Retrieval
from hgld.samplers import PKSampler
from tests.forked import together
from tests.hgld import shared_retrieval
from tests.hgld.shared_retrieval import CLASSES, EMBEDDINGS, LEVELS, told
from tests.rows import each_row, refused

LABELS = torch.arange(6).repeat_interleave(4)


# -- samplers ---------------------------------------------------------------------------------------------------------


ITEMS = LABELS.tolist()


def test_samplers_are_torch_batch_samplers_with_length_and_set_epoch():
    sampler = PKSampler(LABELS, p=2, k=2)
    assert isinstance(sampler, torch.utils.data.BatchSampler)
    loader = DataLoader(ITEMS, batch_sampler=sampler)
    assert len(loader) == len(sampler) == 6
    loader.batch_sampler.sampler.set_epoch(3)
    assert sampler.state_dict() == {"epoch": 3, "step": 0}


def remade(sampler, rank):
    """Recreate a batch sampler for a process from the attributes that Lightning reads."""
    injected = DistributedSampler(ITEMS, num_replicas=2, rank=rank)
    kwargs = {**getattr(sampler, "__pl_saved_kwargs"), "sampler": injected}
    assert "sampler" in getattr(sampler, "__pl_saved_default_kwargs")
    return type(sampler)(*getattr(sampler, "__pl_saved_args"), **kwargs)


def test_sampler_recreated_by_lightning_for_a_rank_has_its_part_of_every_batch():
    whole = pickle.loads(pickle.dumps(PKSampler(LABELS, p=2, k=2, seed=5)))
    parts = [remade(whole, rank) for rank in range(2)]
    for step in range(len(whole)):
        batch = [part.batch(1, step) for part in parts]
        assert np.concatenate(batch).tolist() == whole.batch(1, step).tolist()
        assert all(len(set(LABELS[part].tolist())) == 1 for part in batch)  # all items of a class are on one process


def test_conflicting_process_indices_are_refused():
    given: dict[str, Any] = {"process_index": 1, "process_count": 2}
    assert remade(PKSampler(LABELS, 2, 2, **given), 1).process_index == 1
    with pytest.raises(ConfigError, match="process_index 1 of 2 contradicts the sampler's process 0 of 2"):
        remade(PKSampler(LABELS, 2, 2, **given), 0)
    with pytest.raises(ConfigError, match="sampler is a range; expected a DistributedSampler"):
        PKSampler(LABELS, 2, 2, sampler=range(4))


# -- the metric -------------------------------------------------------------------------------------------------------

WHOLE = hgld.evaluate(EMBEDDINGS, CLASSES, levels=LEVELS).values


def evaluated(rows):
    return hgld.evaluate(EMBEDDINGS[rows], CLASSES[rows], levels=LEVELS).values


def test_metric_updated_in_batches_equals_one_evaluation_and_each_call_returns_the_batch_values():
    metric = Retrieval(LEVELS)
    # str, because undefined metrics are NaN and NaN != NaN
    assert str(metric(EMBEDDINGS[:6], CLASSES[:6])) == str(evaluated(slice(0, 6)))
    metric.update(EMBEDDINGS[6:], CLASSES[6:])
    metric.update(EMBEDDINGS[:0], CLASSES[:0])
    assert metric.compute() == WHOLE
    metric.reset()
    with pytest.raises(InputError, match="no embeddings: call update"):
        metric.compute()


@pytest.fixture
def torchmetrics(monkeypatch):
    """Use torchmetrics if it is installed, otherwise a replacement of the parts that hgld uses."""
    if find_spec("torchmetrics") is None:
        own = {"__init__": lambda self, **_: super(metric, self).__init__(), "reset": lambda self: None}
        metric = type("Metric", (torch.nn.Module,), own)
        package = types.ModuleType("torchmetrics")
        monkeypatch.setattr(package, "Metric", metric, raising=False)
        monkeypatch.setitem(sys.modules, "torchmetrics", package)
    yield
    sys.modules.pop("hgld.evaluation.torchmetric", None)


@pytest.mark.parametrize("value", [None, "AP/coarse"])
def test_torchmetrics_metric_returns_batch_values_and_computes_overall_values(torchmetrics, value):
    metric = Retrieval(LEVELS).torchmetric(value)

    def tensors(numbers):
        found = {name: torch.tensor(number) for name, number in numbers.items()}
        return found if value is None else found[value]

    # str, because undefined metrics are NaN and NaN != NaN
    assert str(metric(EMBEDDINGS[:6], CLASSES[:6])) == str(tensors(evaluated(slice(0, 6))))
    metric.update(EMBEDDINGS[6:11], CLASSES[6:11])
    metric.compute()
    # the metrics of a single item are undefined, but the item counts in the total
    metric(EMBEDDINGS[11:], CLASSES[11:])
    assert metric.compute() == tensors(WHOLE)
    unknown = Retrieval(LEVELS).torchmetric("AP/corse")
    unknown.update(EMBEDDINGS, CLASSES)
    with pytest.raises(ConfigError, match=r"metric 'AP/corse' is not computed; computed metrics: R@1/"):
        unknown.compute()
    metric.reset()
    with pytest.raises(InputError, match="no embeddings: call update"):
        metric.retrieval.compute()  # metric.compute() of torchmetrics would first warn


def test_gallery_batches_are_ranked_but_are_not_queries():
    metric = Retrieval(LEVELS)
    metric.update(EMBEDDINGS[:6], CLASSES[:6])
    assert metric(EMBEDDINGS[6:], CLASSES[6:], gallery=True) == {}
    expected = hgld.evaluate(EMBEDDINGS[:6], CLASSES[:6], EMBEDDINGS[6:], CLASSES[6:], levels=LEVELS)
    # str, because metrics without relevant items are NaN and NaN != NaN
    assert str(metric.compute()) == str(expected.values)


@pytest.mark.slow
def test_reports_of_two_processes_equal_reports_of_one_process(tmp_path):
    out = tmp_path / "answers"
    together(shared_retrieval.answer, str(out), folder=tmp_path, environment={"TMPDIR": str(tmp_path)})
    found, other = (json.loads(Path(f"{out}.{index}").read_text(encoding="utf-8")) for index in range(2))
    assert found == other
    whole = told(hgld.evaluate(EMBEDDINGS, CLASSES, levels=LEVELS))
    repeated = torch.tensor([*range(12), 0, 1])
    assert found == {
        "items on both processes": whole,
        "in turn": whole,
        "a later batch": told(hgld.evaluate(EMBEDDINGS[repeated], CLASSES[repeated], levels=LEVELS)),
        "names": told(hgld.evaluate(EMBEDDINGS, shared_retrieval.NAMES)),
        "all items on one process": whole,
        "gallery on one process": told(
            hgld.evaluate(EMBEDDINGS[:6], CLASSES[:6], EMBEDDINGS[6:], CLASSES[6:], levels=LEVELS)
        ),
        "other dimension": ["batches have 3 and 4 dimensions; expected the same number in all batches."],
        "no batch": ["no embeddings: call update(embeddings, labels) with every batch first."],
    }
    assert not list(tmp_path.glob("hgld-rows-*"))


def test_inconsistent_batches_on_one_process_raise_the_error_on_all_processes(monkeypatch):
    mine = Retrieval(LEVELS)
    mine.update(EMBEDDINGS, CLASSES)
    monkeypatch.setattr("hgld.evaluation.running.from_all", lambda data, _: [data, b"batches differ there"])
    with pytest.raises(InputError, match="batches differ there"):
        mine.compute()


@each_row(
    ("batches", "error", "said"),
    [
        ([(EMBEDDINGS, CLASSES[:3])], InputError, r"embeddings have shape \(12, 4\), and there are 3 labels"),
        ([(EMBEDDINGS, CLASSES, [1])], InputError, "1 items for 12 embeddings"),
        ([(EMBEDDINGS, CLASSES), (EMBEDDINGS, CLASSES[:, 0])], InputError, "batches have 1 and 2 levels"),
        ([(EMBEDDINGS, CLASSES[:, 0]), (EMBEDDINGS, ["cat"] * 12)], InputError, "some batches have class numbers and"),
        ([(EMBEDDINGS, dict.fromkeys(levels, CLASSES[:, 0])) for levels in ("ab", "ba")], InputError, "levels b, a"),
        ([(EMBEDDINGS, CLASSES, range(12)), (EMBEDDINGS, CLASSES)], ConfigError, "12 of 24 embeddings came without"),
    ],
)
def test_metric_refuses_inconsistent_batches(batches, error, said):
    metric = Retrieval()

    def update_and_compute():
        for batch in batches:
            metric.update(*batch)
        metric.compute()

    with pytest.raises(error, match=said):
        update_and_compute()


# -- losses called like losses of pytorch-metric-learning ----------------------------------------------------------

BATCH, FINE = EMBEDDINGS[:8], torch.arange(8) // 2
PAIRS = (torch.tensor([0, 2]), torch.tensor([1, 3]), torch.tensor([0]), torch.tensor([5]))


@each_row(
    "loss",
    [
        losses.SupHAP(),
        losses.ROADMAP(),
        losses.SumOverLevels(losses.SmoothAP()),
        losses.MatryoshkaLoss(losses.SupHAP(), (2, 4)),
    ],
)
def test_class_names_and_argument_order_of_pytorch_metric_learning_do_not_change_the_loss(loss):
    names, other = [f"class {c}" for c in FINE.tolist()], BATCH.flip(0)
    expected = loss(BATCH, FINE, other, FINE.flip(0))
    assert torch.equal(loss(BATCH, FINE), loss(BATCH, names))
    assert torch.equal(expected, loss(BATCH, names, other, names[::-1]))
    assert torch.equal(expected, loss(BATCH, FINE, other, FINE.flip(0).tolist()))
    assert torch.equal(expected, loss(BATCH, FINE, None, other, FINE.flip(0)))
    assert torch.equal(expected, loss(BATCH, FINE, None, ref_emb=other, ref_labels=FINE.flip(0)))


test_losses_refuse_miner_indices = refused(
    lambda loss: loss(BATCH, FINE, PAIRS),
    [losses.SmoothAP(), losses.NormSoftmax(4, 4)],
    InputError,
    "so omit the miner",
)


test_losses_with_proxies_or_memory_refuse_class_names = refused(
    lambda loss: loss(BATCH, [f"class {c}" for c in FINE.tolist()]),
    [
        losses.HAPPIER(4, 4),
        losses.CrossBatchMemory(losses.SmoothAP(), 8, 4),
        losses.wrap(torch.nn.Linear(4, 4)),  # replaces a loss of pytorch-metric-learning with one vector per class
    ],
    InputError,
    "needs the same class numbers in every batch",
)

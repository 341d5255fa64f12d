"""DistributedLoss: each process ranks its own queries, and together they compute the loss of the whole batch."""

import runpy

import pytest
import torch
from safetensors.torch import load_file

from hgld.distributed import ALONE, DistributedLoss, Processes
from hgld.errors import ConfigError
from hgld.losses.rank_loss import query_sums
from hgld.losses.registry import LOSSES
from tests.forked import together
from tests.hgld import shared_losses
from tests.hgld.loss_modules import RANK, proxy_losses
from tests.interpreter import ROOT
from tests.rows import each_row

PER_QUERY = {**RANK, **proxy_losses(shared_losses.DIM, shared_losses.TREE)}
SPLIT = ("NormSoftmax", "ProxyNCApp", "CSL", "HAPPIER", "memory of a composition", "BlackboxAP with proxies")


@pytest.fixture(scope="module")
def alone():
    return shared_losses.gradients(0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "is_split"), [(2, False), (3, True)])
def test_gradients_of_several_processes_equal_gradients_of_one_process(count, is_split, alone, tmp_path):
    """If proxies are split, each process holds some of their rows: of 8 rows, three processes hold 2, 3 and 3."""
    out = tmp_path / "answers"
    together(shared_losses.answer, str(out), is_split, folder=tmp_path, count=count, timeout=500)
    for index in range(count):
        found = load_file(f"{out}.{index}")
        assert {key.split("/")[0] for key in found} >= ({*SPLIT} if is_split else {*shared_losses.SHARED})
        for key in found if is_split else alone:
            torch.testing.assert_close(
                found[key], alone[key], rtol=1e-9, atol=1e-12, msg=lambda text, key=key: key + text
            )
    assert all(alone[f"{name}/1/0.weight"].abs().max() > 1e-4 for name in shared_losses.SHARED)


@each_row("name", PER_QUERY)
def test_sums_of_two_parts_add_up_to_the_loss_of_the_whole_batch(name):
    torch.manual_seed(0)
    loss, labels = PER_QUERY[name]().double(), shared_losses.step_input(0)[1]
    embeddings = torch.randn(len(labels), shared_losses.DIM, dtype=torch.float64, requires_grad=True)
    leaves = [embeddings, *loss.parameters()]

    def with_gradients(value):
        return [value, *torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)]

    parts = [torch.arange(0, 9), torch.arange(9, shared_losses.SIZE)]  # processes may have different numbers of items
    sums = [query_sums(loss, embeddings[p], labels[p], embeddings, labels, p) for p in parts]
    counts = {term: sum(part[term].count for part in sums) for term in sums[0]}
    values = [part[term].weight * part[term].total / counts[term] for part in sums for term in part]
    found, expected = with_gradients(torch.stack(values).sum()), with_gradients(loss(embeddings, labels))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_docstring_lists_every_loss_as_shared_or_not():
    """Every loss has to be in one of the two lists of DistributedLoss's docstring."""
    assert all(DistributedLoss(make(), ALONE).shared for make in shared_losses.SHARED.values())
    assert not any(DistributedLoss(make(), ALONE).shared for make in shared_losses.WHOLE.values())
    tried = {
        type(part).__name__
        for make in (shared_losses.SHARED | shared_losses.WHOLE).values()
        for part in make().modules()
    }
    assert set(LOSSES) - tried == {"RODNDCG", "RODRecall", "SmoothHAP", "SmoothRecall"} - tried


def test_a_loss_made_before_the_process_group_is_refused(monkeypatch):
    loss = DistributedLoss(shared_losses.SHARED["SupHAP"]())
    args = torch.eye(4), torch.tensor([0, 0, 1, 1])
    loss(*args)
    monkeypatch.setattr("hgld.distributed.current_processes", lambda: Processes(0, 2, torch.device("cpu")))
    with pytest.raises(ConfigError, match="made before torch's processes were connected"):
        loss(*args)


@pytest.mark.slow
def test_the_documented_loop_prints_the_same_loss_on_two_processes(tmp_path):
    program = tmp_path / "loop.py"
    text = (ROOT / "docs/how-to/distributed.md").read_text()
    program.write_text(text.split("```python\n")[2].split("```")[0])
    said = []
    for count in (1, 2):
        result = together(runpy.run_path, str(program), None, "__main__", folder=tmp_path, count=count)
        said.append(result.stdout)
    assert said[0].startswith("loss ")
    assert said[1].replace("\n", "") == said[0].replace("\n", "") * 2  # the output of two processes may be on one line

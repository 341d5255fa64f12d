"""CrossBatchMemory, compared with a plain queue."""

import copy
from collections import deque

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hgld.distributed import DistributedLoss, Processes
from hgld.losses.binned import FastAP
from hgld.losses.compositions import ROADMAP
from hgld.losses.memory import CrossBatchMemory
from hgld.losses.pairs import CalibrationLoss
from tests.rows import each_row


class Spy(nn.Module):
    """Fake loss that records its arguments."""

    def __init__(self):
        super().__init__()
        self.calls: list[tuple] = []

    def forward(self, embeddings, labels, ref_embeddings=None, ref_labels=None, self_index=None):
        self.calls.append((embeddings, labels, ref_embeddings, ref_labels, self_index))
        return embeddings.sum() if ref_embeddings is None else 10 * embeddings.sum()


@given(size=st.integers(1, 7), batches=st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_the_memory_holds_the_newest_items(size, batches):
    memory = CrossBatchMemory(Spy(), size, dim=2, num_levels=2)
    queue: deque[int] = deque(maxlen=size)
    written = 0
    for count in batches:
        items = torch.arange(written, written + count)
        embeddings = torch.stack([items.float(), -items.float()], dim=1)
        places = memory.enqueue(embeddings, torch.stack([items, items // 2], dim=1))
        queue.extend(items.tolist())
        written += count
        held = memory.embeddings[: len(memory), 0].long().tolist()
        assert sorted(held) == sorted(queue)
        assert memory.labels[: len(memory)].tolist() == [[i, i // 2] for i in held]
        for item, place in zip(items.tolist(), places.tolist(), strict=True):
            assert place == (held.index(item) if item in queue else -1)


def test_self_index_points_at_the_batch_in_the_memory():
    spy = Spy()
    memory = CrossBatchMemory(spy, 6, dim=3)
    for start in (0, 4):
        embeddings, labels = torch.randn(4, 3), torch.arange(start, start + 4)
        memory(embeddings, labels)
        _, _, references, ref_labels, self_index = spy.calls[-1]
        torch.testing.assert_close(references[self_index], embeddings)
        assert ref_labels[self_index, 0].tolist() == labels.tolist()
    assert sorted(ref_labels[:, 0].tolist()) == [2, 3, 4, 5, 6, 7]


def test_state_of_one_process_is_refused_by_the_other_processes_unless_memories_are_shared(monkeypatch):
    def memory_of(index, count, *, is_shared=False):
        processes = Processes(index, count, torch.device("cpu"))
        monkeypatch.setattr("hgld.losses.memory.current_processes", lambda: processes)
        memory = CrossBatchMemory(FastAP(), 6, dim=3)
        if is_shared:
            DistributedLoss(memory, processes)
        return memory

    own = memory_of(0, 2)
    own.enqueue(torch.randn(4, 3), torch.arange(4))
    state = own.state_dict()
    assert state.keys() == {"embeddings", "labels", "written", "steps", "process"}
    again = memory_of(0, 2)
    again.load_state_dict(state)
    torch.testing.assert_close(again.embeddings, own.embeddings)
    for place in ((1, 2), (0, 1)):
        with pytest.raises(RuntimeError, match=r"items of process 0 of 2, but this is process"):
            memory_of(*place).load_state_dict(state)
    whole = memory_of(0, 2, is_shared=True).state_dict()
    assert "process" not in whole
    for index in (0, 1):
        memory_of(index, 2, is_shared=True).load_state_dict(whole)


def test_warm_up_neither_writes_nor_reads_the_memory():
    spy = Spy()
    memory = CrossBatchMemory(spy, 8, dim=3, warmup=2, weight=0.5)
    embeddings, labels = torch.randn(4, 3), torch.arange(4)
    for _ in range(2):
        torch.testing.assert_close(memory(embeddings, labels), embeddings.sum())
        assert len(memory) == 0
    torch.testing.assert_close(memory(embeddings, labels), embeddings.sum() * (1 + 0.5 * 10))
    assert len(memory) == 4


def test_eval_mode_reads_the_memory_without_writing():
    spy = Spy()
    memory = CrossBatchMemory(spy, 8, dim=3).eval()
    memory(torch.randn(2, 3), torch.arange(2))
    assert [call[2] for call in spy.calls] == [None]  # the memory is still empty
    memory.train()
    memory(torch.randn(4, 3), torch.arange(4))
    before = copy.deepcopy(memory.state_dict())
    memory.eval()
    memory(torch.randn(2, 3), torch.arange(2))
    assert spy.calls[-1][2].shape == (4, 3)
    assert spy.calls[-1][4].tolist() == [-1, -1]
    torch.testing.assert_close(memory.state_dict(), before, rtol=0, atol=0)


def test_a_restored_state_dict_continues_with_the_same_losses(tmp_path):
    torch.manual_seed(0)
    batches = [(torch.randn(4, 3), torch.randint(0, 3, (4,))) for _ in range(5)]
    whole, first = (CrossBatchMemory(CalibrationLoss(), 6, dim=3, warmup=1) for _ in range(2))
    expected = [whole(*b) for b in batches]
    for b in batches[:3]:
        first(*b)
    torch.save(first.state_dict(), tmp_path / "memory.pt")
    second = CrossBatchMemory(CalibrationLoss(), 6, dim=3, warmup=1)
    second.load_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    torch.testing.assert_close([second(*b) for b in batches[3:]], expected[3:])


def test_gradients_flow_only_to_the_batch_and_survive_the_next_write():
    torch.manual_seed(0)
    memory = CrossBatchMemory(CalibrationLoss(), 4, dim=3)
    memory(torch.randn(4, 3), torch.arange(4) // 2)
    embeddings = torch.randn(4, 3, requires_grad=True)
    value = memory(embeddings, torch.arange(4) // 2)
    memory(torch.randn(4, 3), torch.arange(4) // 2)
    value.backward()
    assert embeddings.grad.isfinite().all()
    assert not memory.embeddings.requires_grad


@each_row(("loss", "names"), [(FastAP(), ["batch", ""]), (ROADMAP(), ["rank", "decomposability"])])
def test_terms_add_up_to_the_loss_and_write_the_memory(loss, names):
    called, told = (CrossBatchMemory(loss, 10, dim=4, warmup=1, weight=0.3) for _ in range(2))
    against = [f"memory_{name}".rstrip("_") for name in names if name != "batch"]
    for step in range(4):
        embeddings, labels = torch.randn(8, 4), torch.arange(8) // 2
        terms = told.terms(embeddings, labels)
        torch.testing.assert_close(told.combine(terms), called(embeddings, labels), rtol=0, atol=0)
        assert list(terms) == [name for name in names if name] + against
        assert all((terms[name] != 0) == (step > 0) for name in against)
        assert all(terms[name] > 0 for name in names if name)
    torch.testing.assert_close(told.state_dict(), called.state_dict(), rtol=0, atol=0)

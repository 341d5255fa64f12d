import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld.errors import ConfigError, InputError
from hgld.stream_dealing import deal
from hgld.stream_plan import Groups, StreamPlan, random_bits


def index_of(groups: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(shard, count, label) of groups in order of the index -> columns of the index."""
    shard, group, label = [], [], []
    number: Counter[int] = Counter()
    for s, count, c in groups:
        shard += [s] * count
        group += [number[s]] * count
        label += [c] * count
        number[s] += 1
    return np.array(shard, np.int32), np.array(group, np.int32), np.array(label, np.int32)


def long_tailed(seed: int, classes: int = 60, shards: int = 5, group_size: int = 4) -> Groups:
    """Groups as a build writes them: classes of many sizes, groups shuffled over shards."""
    rng = np.random.default_rng(seed)
    groups = []
    for c in range(classes):
        size = int(rng.integers(1, 40))
        counts = [group_size] * max(size // group_size, 1)
        counts[-1] = size - group_size * (len(counts) - 1)
        groups += [(count, c) for count in counts]
    order = rng.permutation(len(groups))
    per_shard = -(-len(groups) // shards)
    return Groups.from_index(*index_of([(i // per_shard, *groups[g]) for i, g in enumerate(order)]))


def batches(plan: StreamPlan, epoch: int) -> list[np.ndarray]:
    """Positions (p, k) of every batch of an epoch, in the order of the lanes."""
    at = plan.epoch(epoch)
    return [at.items[list(itertools.chain(*step.chunks))] for step in at.steps()]


def repetitions(lanes, label: np.ndarray, per_step: int, window: int, seed: int = 0) -> list[int]:
    """How many chunks of each batch are of a class that it has already."""
    steps = deal(lanes, label, per_step, window, random_bits(seed))
    drawn = (label[list(itertools.chain(*step.chunks))] for step in steps)
    return [len(labels) - len(set(labels.tolist())) for labels in drawn]


def labels_of(groups: Groups) -> np.ndarray:
    label = np.full(int((groups.start + groups.count).max()), -1)
    for start, count, c in zip(groups.start, groups.count, groups.label, strict=True):
        label[start : start + count] = c
    return label


def test_groups_are_the_runs_of_the_index_and_unlabelled_ones_are_counted():
    groups = Groups.from_index(*index_of([(0, 4, 7), (0, 4, 7), (0, 2, -1), (1, 5, 7), (1, 3, -1), (1, 1, 2)]))
    assert groups.start.tolist() == [0, 4, 10, 18]
    assert groups.count.tolist() == [4, 4, 5, 1]
    assert groups.label.tolist() == [7, 7, 7, 2]
    assert groups.shard.tolist() == [0, 0, 1, 1]
    assert groups.unlabelled == 5


def test_an_index_without_rows_has_no_groups():
    none = np.empty(0, np.int32)
    assert len(Groups.from_index(none, none, none)) == 0


def test_a_group_of_two_classes_is_refused_with_its_place():
    shard, group, label = index_of([(0, 4, 1), (3, 4, 2)])
    label[6] = 5
    with pytest.raises(InputError, match=r"group 0 of shard 3 .* classes 2 and 5"):
        Groups.from_index(shard, group, label)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    shape=st.sampled_from([(8, 4, 4), (8, 2, 8), (12, 3, 4), (5, 4, 1), (16, 4, 16)]),
    window=st.integers(1, 10),
    epoch=st.integers(0, 5),
)
def test_an_epoch_gives_every_chunk_once_and_every_item_of_it(seed, shape, window, epoch):
    p, k, lanes = shape
    groups = long_tailed(seed)
    plan = StreamPlan(groups, p, k, lanes=lanes, window=window, seed=seed)
    at = plan.epoch(epoch)
    steps = list(at.steps())
    dealt = list(itertools.chain(*(chunk for step in steps for chunk in step.chunks)))
    assert len(steps) == len(plan) == sum(-(-int(c) // k) for c in groups.count) // p
    assert sorted(dealt + at.left_out.tolist()) == list(range(plan.total_chunks))
    assert len(at.left_out) < p
    label = labels_of(groups)
    assert (label[at.items] == at.label[:, None]).all()
    seen = Counter(at.items.ravel().tolist())
    in_groups = {i for s, c in zip(groups.start, groups.count, strict=True) for i in range(s, s + c)}
    assert seen.keys() == in_groups  # every item of every group, in some chunk
    for chunk, g in zip(at.items, at.group, strict=True):
        assert len(set(chunk.tolist())) == min(k, groups.count[g])  # no item twice where the group has enough


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), window=st.integers(1, 6), lanes=st.sampled_from([1, 2, 4, 8]))
def test_lanes_are_read_in_order_and_a_window_never_holds_more_than_it_may(seed, window, lanes):
    plan = StreamPlan(long_tailed(seed), 8, 4, lanes=lanes, window=window, seed=seed)
    at = plan.epoch(0)
    place = {int(chunk): (v, i) for v, lane in enumerate(at.lanes) for i, chunk in enumerate(lane)}
    for t, step in enumerate(at.steps()):
        assert step.entered <= t * at.per_step + at.window
        for v, chunks in enumerate(step.chunks):
            assert len(chunks) == at.per_step
            for chunk in chunks:
                assert place[chunk][0] == v
                assert place[chunk][1] < step.entered
    for lane in at.lanes:  # the sequence of a lane goes through each shard in the index's order
        shard = plan.groups.shard[at.group[lane]]
        start = plan.groups.start[at.group[lane]]
        same = shard[1:] == shard[:-1]
        assert (np.diff(start)[same] >= 0).sum() >= same.sum() - 1  # once it may wrap from the end to the beginning


@settings(max_examples=100, deadline=None)
@given(counts=st.lists(st.integers(1, 12), min_size=4, max_size=30), p=st.integers(2, 4), seed=st.integers(0, 99))
def test_with_room_for_the_epoch_no_class_is_repeated_unless_it_must_be(counts, p, seed):
    label = np.repeat(np.arange(len(counts)), counts)
    rng = np.random.default_rng(seed)
    rng.shuffle(label)
    steps = len(label) // p
    lane = list(range(steps * p))
    held = np.bincount(label[lane], minlength=len(counts))
    must = int(np.maximum(held - steps, 0).sum())
    assert sum(repetitions([lane], label, p, len(lane), seed)) == must


def test_over_lanes_and_small_windows_classes_stay_apart():
    label = np.random.default_rng(0).permutation(np.repeat(np.arange(500), 20))
    lanes = np.arange(9984).reshape(8, -1).tolist()
    assert sum(repetitions(lanes, label, 4, 32)) == 0


@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_with_few_classes_of_unlike_sizes_lanes_give_way_to_each_other(lanes):
    counts = [30, 30, 28, 25, 25, 24, *[20] * 10, *[12] * 15, *[4] * 10]  # 16 of 41 classes a batch, 35 batches
    for seed in range(5):
        label = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
        steps = len(label) // 16
        assert max(np.bincount(label[: 16 * steps])) <= steps
        dealt = np.arange(16 * steps).reshape(lanes, -1).tolist()
        assert sum(repetitions(dealt, label, 16 // lanes, 8 * 16 // lanes, seed)) == 0


def test_what_cannot_be_kept_apart_is_spread_evenly():
    assert sorted(repetitions([[0, 1, 2, 3]], np.array([5, 5, 5, 9]), 2, 4)) == [0, 1]


def test_epochs_differ_and_seeds_differ_and_the_same_is_the_same():
    groups = long_tailed(3)

    def first(seed, epoch):
        return batches(StreamPlan(groups, 8, 4, seed=seed), epoch)

    assert all((a == b).all() for a, b in zip(first(0, 0), first(0, 0), strict=True))
    assert not all((a == b).all() for a, b in zip(first(0, 0), first(0, 1), strict=True))
    assert not all((a == b).all() for a, b in zip(first(0, 0), first(1, 0), strict=True))


def test_the_plan_is_the_same_on_every_machine():
    groups = Groups.from_index(*index_of([(i // 10, 4 + i % 3, i % 7) for i in range(30)]))
    plan = StreamPlan(groups, 4, 4, lanes=2, seed=5)
    assert batches(plan, 2)[1].tolist() == [
        [125, 124, 126, 127],
        [130, 134, 129, 132],
        [42, 43, 44, 39],
        [84, 87, 89, 85],
    ]
    assert plan.fingerprint() == "83817bfd2a8a7c55c0ea2ed0182442bc"


def test_what_an_epoch_leaves_out_comes_in_another():
    plan = StreamPlan(long_tailed(1), 32, 4, lanes=8)
    left = [{tuple(sorted(row)) for row in plan.epoch(e).items[plan.epoch(e).left_out].tolist()} for e in range(6)]
    assert all(left)
    assert not set.intersection(*left)


def test_groups_shorter_than_k():
    groups = Groups.from_index(*index_of([(0, 4, 0), (0, 2, 1), (0, 5, 2), (1, 3, 3)]))
    plan = StreamPlan(groups, 1, 4, lanes=1)
    assert plan.total_chunks == 5  # 1 + 1 + 2 + 1
    by_label = {int(c): items for c, items in zip(plan.epoch(0).label, plan.epoch(0).items.tolist(), strict=True)}
    assert sorted(by_label[1]) == [4, 4, 5, 5]
    assert set(by_label[3]) == {11, 12, 13}
    dropped = StreamPlan(groups, 1, 4, lanes=1, short="drop")
    assert (dropped.total_chunks, dropped.dropped) == (3, 5)
    with pytest.raises(ConfigError, match=r"2 groups have fewer than 4 items \(classes 1, 3\)"):
        StreamPlan(groups, 1, 4, lanes=1, short="refuse")


def test_what_cannot_be_planned_is_refused_with_the_way_out():
    groups = long_tailed(0)
    with pytest.raises(ConfigError, match=r"take lanes=6 \(or any of 1, 2, 3, 4, 6, 12\)"):
        StreamPlan(groups, 12, 4, lanes=8)
    with pytest.raises(ConfigError, match="at least 1 of each"):
        StreamPlan(groups, 8, 0)
    with pytest.raises(ConfigError, match="expected 'repeat', 'drop' or 'refuse'"):
        StreamPlan(groups, 8, 4, short="skip")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="a batch takes 8192"):
        StreamPlan(groups, 8192, 4)


def test_fingerprints_tell_plans_apart():
    groups = long_tailed(0)
    other = [
        StreamPlan(groups, 8, 4),
        StreamPlan(groups, 8, 2),
        StreamPlan(groups, 16, 4),
        StreamPlan(groups, 8, 4, seed=1),
        StreamPlan(groups, 8, 4, lanes=4),
        StreamPlan(groups, 8, 4, window=4),
        StreamPlan(long_tailed(1), 8, 4),
    ]
    assert len({plan.fingerprint() for plan in other}) == len(other)
    assert StreamPlan(long_tailed(0), 8, 4).fingerprint() == other[0].fingerprint()

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld.errors import InputError
from hgld.samplers.shard_order import ShardOrderSampler, deal


def index_of(groups):
    """Return the columns of an index, given (shard, count, label) for each group in order."""
    number: Counter[int] = Counter()
    rows = []
    for shard, count, label in groups:
        rows += [(shard, number[shard], label)] * count
        number[shard] += 1
    shards, runs, labels = np.array(rows, np.int64).reshape(-1, 3).T
    return shards, runs, labels


def long_tailed(seed):
    """Return an index as ``build-shards`` writes it: classes of many sizes, with groups shuffled over shards."""
    rng = np.random.default_rng(seed)
    groups = []
    for c in range(60):
        size = int(rng.integers(1, 40))
        counts = [4] * max(size // 4, 1)
        counts[-1] = size - 4 * (len(counts) - 1)
        groups += [(count, c) for count in counts]
    order = rng.permutation(len(groups))
    per_shard = -(-len(groups) // 5)
    return index_of([(i // per_shard, *groups[g]) for i, g in enumerate(order)])


def epoch_of(sampler, epoch=0):
    return np.stack([sampler.batch(epoch, step) for step in range(len(sampler))])


def repetitions(label, num_streams, per_stream, window, seed=0):
    """Return for each batch the number of chunks that repeat a class of the batch."""
    drawn = (label[chunks] for chunks in deal(label, num_streams, per_stream, window, seed))
    return [len(labels) - len(set(labels.tolist())) for labels in drawn]


@settings(max_examples=15)
@given(
    seed=st.integers(0, 1000),
    shape=st.sampled_from([(8, 4, 4), (8, 2, 8), (12, 3, 4), (5, 4, 1), (16, 4, 16)]),
    window=st.integers(1, 10),
    epoch=st.integers(0, 5),
)
def test_an_epoch_has_every_item_in_chunks_of_one_group(seed, shape, window, epoch):
    p, k, num_streams = shape
    shard, group, label = long_tailed(seed)
    sampler = ShardOrderSampler(shard, group, label, p, k, num_streams=num_streams, window=window, seed=seed)
    chunks = epoch_of(sampler, epoch).reshape(-1, k)
    assert np.unique(chunks).tolist() == list(range(len(label)))
    place = np.unique(shard * 1000 + group, return_inverse=True)[1]
    assert (place[chunks] == place[chunks[:, :1]]).all()
    size = np.bincount(place)
    assert all(len(set(chunk)) == min(k, size[place[chunk[0]]]) for chunk in chunks.tolist())
    assert len(sampler) == -(-sum(-(-size // k)) // p)
    again = len(chunks) - len({tuple(sorted(chunk)) for chunk in chunks.tolist()})
    # repeats only fill short groups and the last batch
    assert again <= p - 1 + (size < k).sum()


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), window=st.integers(1, 6), num_streams=st.sampled_from([1, 2, 4, 8]))
def test_streams_are_read_in_order_within_the_window(seed, window, num_streams):
    shard, group, label = long_tailed(seed)
    sampler = ShardOrderSampler(shard, group, label, 8, 4, num_streams=num_streams, window=window, seed=seed)
    order, per_stream = sampler.order(0), 8 // num_streams
    length = len(order.run) // num_streams
    dealt = np.stack([sampler.chunks(0, step) for step in range(len(sampler))])
    assert sorted(dealt.ravel().tolist()) == list(range(num_streams * length))
    streams, positions = np.divmod(dealt, length)
    assert (streams == np.arange(8) // per_stream).all()
    assert (positions.max(axis=1) < (np.arange(len(dealt)) + window) * per_stream).all()
    first = order.items.min(axis=1)
    same = (shard[first[1:]] == shard[first[:-1]]) & (order.run[1:] != order.run[:-1])
    assert (np.diff(first)[same] > 0).sum() >= same.sum() - 1  # a stream follows the index order and wraps around once


@settings(max_examples=40)
@given(counts=st.lists(st.integers(1, 12), min_size=4, max_size=30), p=st.integers(2, 4), seed=st.integers(0, 99))
def test_a_window_as_long_as_the_epoch_repeats_the_fewest_classes(counts, p, seed):
    label = np.repeat(np.arange(len(counts)), counts)
    np.random.default_rng(seed).shuffle(label)
    steps = len(label) // p
    held = np.bincount(label[: steps * p])
    assert sum(repetitions(label[: steps * p], 1, p, steps, seed)) == int(np.maximum(held - steps, 0).sum())


def test_exchanges_between_streams_avoid_repeated_classes():
    counts = [30, 30, 28, 25, 25, 24, *[20] * 10, *[12] * 15, *[4] * 10]  # 36 batches, each with 16 of 41 classes

    def repeated(seed):
        label = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
        return sum(repetitions(label[: len(label) // 16 * 16], 8, 2, 8, seed))

    assert sum(map(repeated, range(8))) <= 2  # without exchanges more than 5


def test_the_plan_is_the_same_on_every_machine():
    sampler = ShardOrderSampler(
        *index_of([(i // 10, 4 + i % 3, i % 7) for i in range(30)]), 4, 4, num_streams=2, seed=5
    )
    assert sampler.batch(2, 1).reshape(4, 4).tolist() == [
        [5, 7, 8, 4],
        [126, 128, 127, 125],
        [83, 80, 79, 81],
        [35, 36, 34, 38],
    ]
    assert sampler.fingerprint() == "2f1132b997a26d7a518e4d7a3d3b2891"


def test_groups_of_fewer_than_k_items_are_repeated_or_dropped():
    index = index_of([(0, 4, 0), (0, 2, 1), (0, 5, 2), (1, 3, 3)])
    sampler = ShardOrderSampler(*index, 1, 4, num_streams=1)
    assert len(sampler) == 5  # 1 + 1 + 2 + 1
    by_label = {int(index[2][items[0]]): items.tolist() for items in epoch_of(sampler)}
    assert sorted(by_label[1]) == [4, 4, 5, 5]
    assert set(by_label[3]) == {11, 12, 13}
    dropped = ShardOrderSampler(*index, 1, 4, num_streams=1, short="drop")
    assert (len(dropped), dropped.dropped) == (3, 5)


def test_unlabelled_groups_are_excluded_and_a_group_of_two_classes_is_refused():
    shard, group, label = index_of([(0, 4, 7), (0, 2, -1), (1, 5, 7), (1, 3, -1), (1, 4, 2)])
    sampler = ShardOrderSampler(shard, group, label, 2, 4, num_streams=1)
    assert sampler.left_out == 5
    assert set(epoch_of(sampler).ravel().tolist()) == set(np.flatnonzero(label >= 0).tolist())
    label[8] = 5
    with pytest.raises(InputError, match=r"group 0 of shard 1 .* classes 7 and 5"):
        ShardOrderSampler(shard, group, label, 2, 4, num_streams=1)


def test_fingerprints_of_different_plans_differ():
    def fingerprint(data=0, p=8, k=4, **options):
        return ShardOrderSampler(*long_tailed(data), p, k, **options).fingerprint()

    options = [{}, {"data": 1}, {"k": 2}, {"p": 16}, {"seed": 1}, {"num_streams": 4}, {"window": 4}, {"short": "drop"}]
    assert len({fingerprint(**one) for one in options}) == len(options)
    assert fingerprint(process_count=2) == fingerprint()

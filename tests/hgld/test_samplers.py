import itertools
import operator
import pickle
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import ConfigError, HierarchyError, InputError
from hgld.samplers import (
    ClassBalanced,
    EpochSampler,
    HierarchicalPKSampler,
    PKSampler,
    RepeatedAugmentation,
)
from hgld.samplers.batch_sampler import choose, random_words, shuffled
from hgld.samplers.shard_order import ShardOrderSampler
from tests.rows import refused


def labels_of(sizes, seed=0):
    """Return labels of ``sizes[c]`` items of each class c, in random order."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def hierarchical_labels(sizes):
    """Return (N, 2) labels of ``sizes[s][c]`` items of the c-th class of super-class s."""
    classes = [(s, n) for s, under in enumerate(sizes) for n in under]
    rows = [(c, s) for c, (s, n) in enumerate(classes) for _ in range(n)]
    return np.random.default_rng(1).permutation(np.array(rows))


SHARD, GROUP, LABEL = (np.repeat(numbers, 3) for numbers in (np.arange(24) // 8, np.arange(24) % 8, np.arange(24) % 7))

SAMPLERS = {
    "pk": partial(PKSampler, labels_of([3, 9, 4, 1, 7, 6, 5, 2]), 4, 2),
    "pk, classes": partial(PKSampler, labels_of([3, 9, 4, 1, 7, 6]), 4, 2, coverage="classes"),
    "hierarchical": partial(HierarchicalPKSampler, hierarchical_labels([[2, 3, 4], [5, 1], [3, 3, 3]]), 4, 2),
    "repeated": partial(RepeatedAugmentation, 21, 12, 3),
    "balanced": partial(ClassBalanced, labels_of([3, 9, 4]), 8),
    "shards": partial(ShardOrderSampler, SHARD, GROUP, LABEL, 4, 2, num_streams=4),
    "epoch": partial(EpochSampler, 30, 8),
}


@pytest.fixture(params=SAMPLERS)
def make(request):
    return SAMPLERS[request.param]


# -- laws of every sampler ------------------------------------------------------------------------------------


def test_parts_of_all_processes_form_the_batch_of_one_process(make):
    alone = make()
    for count in (2, 4):
        parts = [make(process_index=r, process_count=count) for r in range(count)]
        assert {len(part) for part in parts} == {len(alone)}
        for epoch, step in itertools.product(range(2), range(len(alone))):
            joined = np.concatenate([part.batch(epoch, step) for part in parts])
            assert joined.dtype == np.int64
            assert joined.tolist() == alone.batch(epoch, step).tolist()


def test_a_batch_does_not_depend_on_earlier_calls(make):
    in_order, backwards = make(), pickle.loads(pickle.dumps(make()))
    places = list(itertools.product(range(3), range(len(in_order))))
    forth = {place: in_order.batch(*place).tolist() for place in places}
    assert {place: backwards.batch(*place).tolist() for place in reversed(places)} == forth
    assert len({tuple(batch) for batch in forth.values()}) > 1


def test_epochs_differ_and_seeds_differ(make):
    sampler, other = make(), make(seed=6)
    first, second = ([sampler.batch(epoch, step).tolist() for step in range(len(sampler))] for epoch in (0, 1))
    assert first != second
    assert first != [other.batch(0, step).tolist() for step in range(len(other))]


def test_iterating_resumes_from_two_integers(make):
    sampler = make()
    whole = [batch for _ in range(2) for batch in sampler]
    assert len(whole) == 2 * len(sampler)
    assert sampler.state_dict() == {"epoch": 2, "step": 0}
    for done in {1, len(sampler), len(whole) // 2 + 1, len(whole) - 1}:
        stopped = make()
        batches = itertools.chain.from_iterable(stopped for _ in range(2))
        assert [next(batches) for _ in range(done)] == whole[:done]
        resumed = make(process_index=0, process_count=2)
        resumed.load_state_dict(pickle.loads(pickle.dumps(stopped.state_dict())))
        # a training loop does this; the sampler must keep its position
        resumed.set_epoch(resumed.state_dict()["epoch"])
        rest = [batch for _ in range(2) for batch in resumed][: len(whole) - done]
        assert rest == [batch[: len(batch) // 2] for batch in whole[done:]]


def test_positions_outside_the_epoch_are_refused(make):
    sampler = make()
    for epoch, step in ((0, len(sampler)), (0, -1), (-1, 0)):
        with pytest.raises(ConfigError, match="steps 0"):
            sampler.batch(epoch, step)
        with pytest.raises(ConfigError, match="comes from different data"):
            sampler.load_state_dict({"epoch": epoch, "step": step})


def test_process_counts_that_do_not_divide_the_batch_are_refused(make):
    with pytest.raises(ConfigError, match=r"run 1, 2, 4|4 streams of 3 processes cannot share"):
        make(process_index=0, process_count=3)
    with pytest.raises(ConfigError, match="process_index is 2 of process_count 2"):
        make(process_index=2, process_count=2)


def test_random_numbers_are_the_same_on_every_platform_and_release():
    words = [5072785436057791280, 16434814378201582345, 4915419271048200674]
    assert random_words(3, 7, 1).tolist() == words
    assert shuffled(3, 7, 1).tolist() == sorted(range(3), key=words.__getitem__)
    sampler = PKSampler(np.repeat([0, 1, 2], [3, 4, 5]), 2, 2, seed=3)
    assert [sampler.batch(0, step).tolist() for step in range(2)] == [[6, 4, 2, 0], [10, 9, 5, 3]]


# -- exact coverage ---------------------------------------------------------------------------------------------------


def check_epoch(labels, sampler, epoch):
    """Check the batches of an epoch and return them as (P, K) tables."""
    batches = [sampler.batch(epoch, step).reshape(sampler.p, sampler.k) for step in range(len(sampler))]
    for row in np.concatenate(batches):
        assert (labels[row] == labels[row[0]]).all()
        assert len(set(row.tolist())) == min((labels == labels[row[0]]).sum(), sampler.k)
    return batches


def repeated_classes(labels: np.ndarray, batches: list[np.ndarray]) -> int:
    return sum(len(batch) - len(set(labels[batch[:, 0]].tolist())) for batch in batches)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=30),
    p=st.integers(1, 8),
    k=st.integers(1, 5),
    seed=st.integers(0, 1000),
    unknown=st.integers(0, 3),
)
def test_exact_coverage_has_every_item_and_the_fewest_repeated_classes(sizes, p, k, seed, unknown):
    p = min(p, len(sizes))
    labels = np.concatenate([labels_of(sizes, seed), np.full(unknown, -1)])
    sampler = PKSampler(labels, p, k, seed=seed)
    assert sampler.left_out == unknown
    batches = check_epoch(labels, sampler, epoch=1)
    assert np.unique(batches).tolist() == np.flatnonzero(labels >= 0).tolist()
    chunks = [-(-size // k) for size in sizes]
    assert len(batches) == -(-sum(chunks) // p)
    # if a class has n more chunks than there are batches, it must repeat in at least n batches
    assert repeated_classes(labels, batches) == sum(max(0, chunk - len(batches)) for chunk in chunks)


def test_small_classes_are_repeated_dropped_or_refused():
    labels = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2, 2])
    repeat, drop = PKSampler(labels, 2, 4), PKSampler(labels, 2, 4, short="drop")
    rows = np.concatenate(check_epoch(labels, repeat, 0)).tolist()
    assert [4, 4, 5, 5] in map(sorted, rows)
    assert sorted(drop.batch(0, 0).tolist()) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert (repeat.dropped, drop.dropped, len(drop)) == (0, 2, 1)
    with pytest.raises(ConfigError, match=r"1 of 3 classes have fewer than 4 items \(label 1 has 2\)"):
        PKSampler(labels, 2, 4, short="refuse")


# -- coverage of classes -----------------------------------------------------------------------------------------


def test_batches_with_coverage_classes_have_distinct_classes_and_items():
    labels = labels_of([3, 9, 4, 1, 7, 6, 5, 2])
    batches = check_epoch(labels, PKSampler(labels, 4, 3, coverage="classes", batches_per_epoch=150), 0)
    assert (len(batches), repeated_classes(labels, batches)) == (150, 0)
    drawn = np.stack(batches)
    # on average, each of 8 classes is in half of the 150 batches, with a standard deviation of 6.1
    assert np.abs(np.bincount(labels[drawn[..., 0]].ravel()) - 75).max() < 4 * 6.1
    assert len(np.unique(drawn[labels[drawn] == 1])) == 9


# -- labels -----------------------------------------------------------------------------------------------------------


def test_labels_may_be_tensors_arrays_or_datasets():
    table = np.array([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1], [3, -1]])
    dataset = SimpleNamespace(labels=torch.from_numpy(table), levels=("fine", "coarse"))
    by_name = PKSampler(dataset, 2, 2, level="coarse")
    assert by_name.left_out == 1
    for labels, level in ((table, 1), (torch.from_numpy(table), -1)):
        assert PKSampler(labels, 2, 2, level=level).batch(0, 0).tolist() == by_name.batch(0, 0).tolist()
    for wrong, level, said in (
        (dataset, "top", "'top' is unknown; the levels are fine, coarse"),
        (table, "fine", "have no level names"),
        (table, 2, "level is 2; the labels have 2 columns, so expected -2 to 1"),
        (table.astype(float), 0, "expected integers"),
    ):
        with pytest.raises((ConfigError, InputError), match=said):
            PKSampler(wrong, 2, 2, level=level)


# -- super-classes ----------------------------------------------------------------------------------------------------


def test_every_pair_of_super_classes_comes_equally_often():
    table = hierarchical_labels([[4, 5, 6, 3], [3, 4, 5], [7, 2, 3, 3, 3], [4, 4]])
    sampler = HierarchicalPKSampler(table, 4, 2, batches_per_combination=3)
    assert len(sampler) == 6 * 3
    for epoch in range(2):
        pairs = Counter()
        for step in range(len(sampler)):
            labels = table[sampler.batch(epoch, step)].reshape(4, 2, 2)
            assert (labels == labels[:, :1]).all()  # both items of a pair have one class and one super-class
            assert len(set(labels[:, 0, 0].tolist())) == 4
            supers = Counter(labels[:, 0, 1].tolist())
            assert set(supers.values()) == {2}
            pairs[tuple(sorted(supers))] += 1
        assert pairs == dict.fromkeys(itertools.combinations(range(4), 2), 3)


def test_small_super_classes_are_completed_by_other_super_classes_or_excluded():
    table = hierarchical_labels([[4] * 6, [4], [4] * 3])
    sampler = HierarchicalPKSampler(table, 6, 2, batches_per_combination=1)
    assert sampler.left_out_combinations == 1  # super-classes 1 and 2 together have only 4 classes, and a batch needs 6
    found = {tuple(sorted(Counter(table[sampler.batch(0, s)[::2], 1].tolist()).items())) for s in range(len(sampler))}
    assert found == {((0, 5), (1, 1)), ((0, 3), (2, 3))}


def test_items_without_a_super_class_are_excluded():
    table = np.concatenate([hierarchical_labels([[3, 3], [3, 3]]), [[7, -1], [-1, 0]]])
    sampler = HierarchicalPKSampler(table, 4, 2)
    assert sampler.left_out == 2
    assert all(table[sampler.batch(0, step)].min() >= 0 for step in range(len(sampler)))


# -- other samplers ------------------------------------------------------------------------------------------------


@given(items=st.integers(4, 50), images=st.integers(1, 4), repeats=st.integers(1, 4))
def test_repeated_augmentation_has_every_image_and_repeats_images_only_to_fill_the_last_batch(items, images, repeats):
    sampler = RepeatedAugmentation(items, images * repeats, repeats, seed=3)
    seen = Counter()
    for step in range(len(sampler)):
        batch = sampler.batch(2, step).reshape(images, repeats)
        assert (batch == batch[:, :1]).all()
        assert len(set(batch[:, 0].tolist())) == images
        seen.update(batch[:, 0].tolist())
    assert len(seen) == items
    assert sum(seen.values()) - items == -items % images


def test_class_balanced_sampler_draws_classes_equally_often():
    labels = labels_of([10, 40, 160])
    sampler = ClassBalanced(labels, 1000, batches_per_epoch=20, seed=4)
    drawn = np.concatenate([sampler.batch(0, step) for step in range(20)])
    error = np.sqrt(1 / 3 * 2 / 3 / len(drawn))
    assert (np.abs(np.bincount(labels[drawn]) / len(drawn) - 1 / 3) < 4 * error).all()
    assert len(set(drawn[labels[drawn] == 0].tolist())) == 10


def test_unshuffled_epochs_end_with_a_short_batch():
    assert list(EpochSampler(10, 4, shuffle=False)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(EpochSampler(10, 4, shuffle=False, drop_last=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_data_loader_gets_no_empty_batches():
    given = []
    numbers = torch.arange(10)
    for index in range(4):
        sampler = EpochSampler(10, 4, shuffle=False, process_index=index, process_count=4)
        loader = torch.utils.data.DataLoader(numbers, batch_sampler=sampler)
        given.append([batch.tolist() for batch in loader])
        assert sampler.state_dict() == {"epoch": 1, "step": 0}
    assert given == [[[0], [4]], [[1], [5], [8]], [[2], [6]], [[3], [7], [9]]]


def test_chosen_subsets_are_equally_likely():
    rows, size, count = 20_000, 6, 3
    chosen = choose(random_words(rows * count, 1).reshape(rows, count), np.full(rows, size))
    sets = Counter(tuple(sorted(row)) for row in chosen.tolist())
    assert set(sets) == set(itertools.combinations(range(size), count))
    mean = rows / len(sets)
    assert all(abs(n - mean) <= 4.5 * np.sqrt(mean) for n in sets.values())


FOUR, TREE = labels_of([4, 4]), hierarchical_labels([[3, 3], [3, 3]])
REFUSED: list[tuple[Any, str]] = [
    (lambda: PKSampler(FOUR, 2, 2, batches_per_epoch=3), "coverage='exact' sets the length"),
    (lambda: PKSampler(FOUR, 2, 2, short="pad"), "short 'pad' is unknown; expected one of repeat, drop, refuse"),
    (lambda: PKSampler(FOUR, 2, 2, coverage="classes", batches_per_epoch=0), "batches_per_epoch is 0"),
    (lambda: PKSampler(FOUR, 0, 2), "p is 0; expected at least 1"),
    (lambda: PKSampler(FOUR, 3, 2), "only 2 classes can be sampled, but a batch needs p = 3"),
    (lambda: EpochSampler(3, 4, drop_last=True), "3 items do not fill a batch of 4"),
    (lambda: EpochSampler(4, 2, seed=1 << 64), "seed is 18446744073709551616"),
    (lambda: HierarchicalPKSampler(TREE, 3, 2), "not a multiple"),
    (lambda: HierarchicalPKSampler(TREE, 4, 2, super_classes=4), "0 combinations of 4"),
    (lambda: HierarchicalPKSampler(hierarchical_labels([[3, 3]] * 3), 6, 2), "have 6 classes together"),
    (lambda: HierarchicalPKSampler(np.array([[0, 0], [0, 1], [1, 0], [2, 1]]), 2, 1), "class 0 is in"),
    (lambda: HierarchicalPKSampler(np.repeat(np.arange(1500), 2).reshape(-1, 2), 2, 1), "expected 1 to 1000000"),
    (lambda: RepeatedAugmentation(1000, 256, 3), "choose 255 or 258"),
    (lambda: RepeatedAugmentation(5, 16, 2), "5 images, but a batch needs 8"),
    (lambda: ClassBalanced(np.array([-1]), 2), "0 classes"),
    (
        lambda: ShardOrderSampler(SHARD, GROUP, LABEL, 12, 2, num_streams=8),
        "choose num_streams=1 or 2 or 3 or 4 or 6 or 12",
    ),
    (lambda: ShardOrderSampler(SHARD, GROUP, np.full(72, -1), 4, 2, num_streams=4), "there are 0 groups"),
]


test_invalid_sampler_options_are_refused = refused(operator.call, REFUSED, (ConfigError, HierarchyError))

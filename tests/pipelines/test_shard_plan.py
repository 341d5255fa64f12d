import itertools
from collections import Counter

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from hgld.data.tar import BLOCK
from hgld.pipelines.shards.pack import plan_shards


def planned(items, k=3, shard_bytes=200_000, shard_items=12, seed=0):
    return plan_shards(items, "fine", group_size=k, shard_bytes=shard_bytes, shard_items=shard_items, seed=seed)


def items_of(labels: list[int], splits: list[str] | None = None, size: int = 3_000) -> pl.DataFrame:
    count = len(labels)
    return pl.DataFrame(
        {
            "key": [f"k{i:07d}" for i in range(count)],
            "split": splits or ["train"] * count,
            "fine": pl.Series(labels, dtype=pl.Int32),
            "size": pl.Series([size + i for i in range(count)], dtype=pl.Int64),
            "sha256": [f"{i:064x}" for i in range(count)],
        }
    )


def groups_by_hand(count, k):
    """Return the group sizes of a class according to docs/reference/dataset-files.md."""
    if count < k:
        return [count] if count else []
    sizes = [k] * (count // k)
    sizes[-1] += count % k
    return sizes


def runs_of(plan):
    """Return shard, label and length of every run of one class."""
    pairs = zip(plan["shard"], plan["fine"], strict=True)
    return [(shard, label, len(list(run))) for (shard, label), run in itertools.groupby(pairs)]


@given(
    st.lists(st.integers(-1, 6), min_size=1, max_size=80),
    st.integers(1, 5),
    st.integers(1, 20),
    st.integers(0, 3),
)
def test_every_item_is_planned_once_and_groups_stay_whole(labels, k, shard_items, seed):
    items = items_of(labels)
    plan = planned(items, k, 1_000_000, shard_items, seed)
    assert sorted(plan["key"]) == sorted(items["key"])
    by_class: dict[int, list[int]] = {}
    for _, label, length in runs_of(plan):
        by_class.setdefault(label, []).append(length)
    for label, count in Counter(labels).items():
        expected = groups_by_hand(count, k)
        assert sum(by_class[label]) == count
        assert min(by_class[label]) >= min(expected)  # adjacent groups of the same class form one run
        assert len(by_class[label]) <= len(expected)
    largest = max(max(groups_by_hand(count, k)) for count in Counter(labels).values())
    sizes = plan.group_by("shard", maintain_order=True).len()["len"].to_list()
    assert max(sizes) < shard_items + largest
    assert plan["shard"].unique(maintain_order=True).to_list() == [f"train-{n:06d}.tar" for n in range(len(sizes))]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_order_of_the_catalog_does_not_change_the_plan(labels, random):
    items = items_of(labels, [["train", "test"][label % 2] for label in labels])
    shuffled = list(range(len(items)))
    random.shuffle(shuffled)
    assert planned(items).equals(planned(items[shuffled]))


def test_item_orders_differ_by_seed_and_split_and_splits_are_independent():
    labels = [i // 5 for i in range(60)]
    train, test = (planned(items_of(labels, [split] * 60))["key"].to_list() for split in ("train", "test"))
    assert sorted(train) == sorted(test)
    assert train not in (test, planned(items_of(labels), seed=1)["key"].to_list())
    items = items_of(labels, ["train"] * 30 + ["test"] * 30)
    assert planned(items).filter(pl.col("split") == "train").equals(planned(items[:30]))


def test_shards_have_about_the_requested_size():
    size, count = 10_000, 3_000
    plan = planned(items_of([i % 100 for i in range(count)], size=size), 4, 1 << 20, count)
    item = BLOCK + -(-size // BLOCK) * BLOCK + 2 * BLOCK
    sizes = plan.group_by("shard").len()["len"].to_numpy() * item
    assert sizes.max() < (1 << 20) + 8 * item
    assert sizes.min() > 0.8 * (1 << 20)

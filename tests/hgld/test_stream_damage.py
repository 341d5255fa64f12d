from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl
import pytest

import hgld
from hgld.data.streaming import item_number
from hgld.errors import InputError
from tests.hgld.small_dataset import write_dataset
from tests.hgld.streamed_dataset import (
    K,
    P,
    all_faults,
    damage,
    grouped_items,
    is_pk,
    joined,
    key_in,
    no_image,
    same_batches,
    stream,
    tars,
    typical,
)


@pytest.fixture
def own(tmp_path):
    """Return a dataset that the test may damage, and its index."""
    return tmp_path, typical(tmp_path)


@pytest.mark.parametrize("bare", [False, True])
def test_a_damaged_image_is_replaced_by_one_of_its_class_and_reported(own, bare):
    folder, index = own
    dataset = hgld.open_dataset(folder, "train")
    number = {key: item_number(key) if bare else i for i, key in enumerate(dataset.keys)}
    label = dict(zip(number.values(), dataset.labels[:, 0].tolist(), strict=True))
    group = index.with_row_index().filter(shard="train-000002.tar", class_run=1)["index"].to_list()
    keys = damage(folder, index, [*group, 17, 101], lambda data: data[:-400])  # the image header stays valid
    # all items of this group are damaged; without an index no other items of the class can be found
    without_others = {number[key] for key in index["key"][group]}
    of = partial(stream, tars(folder), batches_per_epoch=24) if bare else partial(stream, folder)
    batches = list(of())
    assert all(is_pk(batch) for batch in batches)
    assert {key_in(fault.where) for batch in batches for fault in batch.faults} == set(keys)
    for batch in batches:
        shown = batch.indices.tolist()
        for fault in batch.faults:
            assert number[key_in(fault.where)] == fault.index
            assert (fault.index in shown, fault.replacement in shown) == (False, True)
            assert label[fault.index] == label[fault.replacement] or (bare and fault.index in without_others)
    assert any(not batch.faults for batch in batches)
    assert same_batches(joined([list(of(process_index=r, process_count=2)) for r in range(2)]), batches)


def test_corrupt_images_change_no_other_row_and_resuming_gives_the_same_batches(own):
    folder, index = own
    before = list(stream(folder))
    group = index.filter(shard="train-000001.tar", class_run=3)["key"].to_list()
    rows = [17, 101, *(index["key"].index_of(key) for key in group)]
    damage(folder, index, rows, no_image)
    whole = list(stream(folder))
    for old, new in zip(before, whole, strict=True):
        assert new.faults or same_batches([old], [new])
    one = stream(folder)
    one.load_state_dict({"epoch": 0, "step": 4})
    assert same_batches(list(one), whole[4:])


def test_complete_items_of_a_truncated_shard_are_used(own):
    folder, index = own
    path = folder / "train-000003.tar"
    path.write_bytes(path.read_bytes()[:20_000])
    lost = index.filter((pl.col("shard") == path.name) & (pl.col("offset") + pl.col("size") > 20_000))
    batches = list(stream(folder))
    assert all(is_pk(batch) for batch in batches)
    faults = {key_in(fault.where): fault.reason for batch in batches for fault in batch.faults}
    assert faults.keys() <= set(lost["key"])
    assert len(faults) > len(lost) / 2
    assert all("The file is truncated" in reason for reason in faults.values())


def test_checksums_find_damage_that_decoders_miss(own):
    folder, index = own
    keys = damage(folder, index, [40], lambda data: data[:-60] + bytes([data[-60] ^ 1]) + data[-59:])
    assert not all_faults(list(stream(folder)))
    batches = list(stream(folder, verify_reads=True))
    assert {key_in(fault.where) for fault in all_faults(batches)} == set(keys)
    assert all("do not have the SHA-256 in the index" in fault.reason for fault in all_faults(batches))


def test_corrupt_images_everywhere_and_missing_shards_are_errors(own):
    folder, index = own
    damage(folder, index, range(len(index)), lambda data: data[:-400])
    for one in (stream(folder), stream(tars(folder))):
        with pytest.raises(InputError, match=r"train-00000\d.tar: .*key 'train/\d{4}'.*hgld verify"):
            list(one)
    streams = stream(folder), stream(tars(folder))
    for shard in tars(folder):
        Path(shard).unlink()
    for one in streams:
        with pytest.raises(InputError, match=r"train-00000\d.tar: no such file"):
            list(one)


def test_an_image_too_large_for_its_batch_is_replaced_and_reported(tmp_path, monkeypatch):
    items = grouped_items([4] * 24)
    items[5] = replace(items[5], data=items[5].data + bytes(4000))  # trailing bytes after the end of the image
    index = write_dataset(tmp_path, items, per_shard=20)
    monkeypatch.setattr("hgld.data.images.MOST_BATCH_BYTES", 2 * P * K * index["size"].to_numpy().mean())
    batches = list(stream(tars(tmp_path), batches_per_epoch=16))
    assert all(is_pk(batch) for batch in batches)
    assert {(key_in(fault.where), fault.reason.partition(" bytes")[0]) for fault in all_faults(batches)} == {
        (index["key"][5], str(len(items[5].data)))
    }

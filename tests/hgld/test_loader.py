import gc
import os
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from hgld import open_dataset
from hgld.data.decode import decode_batch
from hgld.data.loader import Loader, cores_of_process
from hgld.data.views import TrainView, places
from hgld.errors import InputError
from hgld.samplers import EpochSampler, PKSampler, RepeatedAugmentation
from tests.fake_releases.pictures import jpeg, png
from tests.hgld.range_server import serve
from tests.hgld.small_dataset import Item, items_of_classes, write_dataset
from tests.hgld.streamed_dataset import joined, same_batches
from tests.interpreter import python
from tests.rows import each_row

VIEW = TrainView(24, jitter=0.2)
BROKEN = b"\xff\xd8 no image"


def written(folder, broken=(), sizes=(4, 3, 5, 4, 2, 6)):
    """Write and open a dataset with rotated images and boxes; the bytes of ``broken`` items are no image."""
    rng = np.random.default_rng(1)
    items = [
        Item(
            item.labels,
            "train",
            BROKEN if i in broken else png(rng) if i % 7 == 3 else jpeg(rng, orientation=6 if i % 5 == 2 else None),
            orientation=6 if i % 5 == 2 and i % 7 != 3 else 1,
            box=(2, 1, 30, 29) if i % 6 == 1 else None,
            suffix="png" if i % 7 == 3 else "jpg",
        )
        for i, item in enumerate(items_of_classes(sizes))
    ]
    write_dataset(folder, items)
    return open_dataset(folder, "train")


@pytest.fixture(scope="module")
def dataset(module_path):
    return written(module_path / "data")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    return written(tmp_path_factory.mktemp("loader") / "data", broken=(0, 9, 12))


def test_batch_over_the_byte_limit_is_read_image_by_image(dataset, monkeypatch):
    """If a batch has too many bytes, its images are read one by one, which gives the same batch."""
    batch = next(iter(Loader(dataset, pk(dataset), VIEW, seed=5)))
    monkeypatch.setattr("hgld.data.images.MOST_BATCH_BYTES", int(dataset.places[3].max()))
    with pytest.raises(InputError, match=r"3 images have \d+ bytes in total.* Read fewer at a time"):
        dataset.read_many([3, 1, 2])
    assert same_batches([batch], [next(iter(Loader(dataset, pk(dataset), VIEW, seed=5)))])


def pk(dataset, **options):
    return PKSampler(dataset.labels, 4, 2, seed=3, **options)


def test_batch_has_the_items_of_the_sampler_cropped_by_the_view(dataset):
    loader = Loader(dataset, pk(dataset), VIEW, seed=5)
    expected = torch.empty(8, 3, 24, 24, dtype=torch.uint8)
    for step, batch in enumerate(loader):
        items = pk(dataset).batch(0, step)
        seen = VIEW.parameters(*dataset.sizes[items].T, seed=5, epoch=0, positions=places(step, 8))
        decode_batch(dataset.encoded(items), seen, expected)
        assert torch.equal(batch.images, expected)
        assert batch.indices.tolist() == items.tolist()
        assert torch.equal(batch.labels, dataset.labels[batch.indices])
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert loader.state_dict() == {"epoch": 1, "step": 0}


def test_number_of_threads_and_prefetch_do_not_change_batches(dataset):
    first = list(Loader(dataset, pk(dataset), VIEW, workers=1, prefetch=0))
    for workers, prefetch in ((1, 3), (3, 1), (16, 2)):
        again = list(Loader(dataset, pk(dataset), VIEW, workers=workers, prefetch=prefetch))
        assert same_batches(first, again)


def test_images_from_a_failing_server_are_read_ahead_and_give_the_same_batches(dataset, monkeypatch):
    expected = list(Loader(dataset, pk(dataset), VIEW))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with serve(Path(dataset.storage.where)) as server:
        loader = Loader(open_dataset(server.url, "train"), pk(dataset), VIEW, prefetch=0)
        assert same_batches(list(loader), expected)
        server.failures[:] = [503, 500]
        server.cut_after = 2_000
        loader.load_state_dict({"epoch": 0, "step": 1})
        batches = iter(loader)
        found = [next(batches)]
        server.requests.clear()
        wait_until(lambda: len(server.requests) > 1)  # the thread reads the next batches, though nothing asks for them
        assert same_batches([*found, *batches], expected[1:])
    assert not server.failures


def wait_until(holds):
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        threading.Event().wait(0.01)


@each_row(("processes", "last"), [(2, {3}), (9, {0, 1}), (2, {4})])
def test_parts_of_processes_equal_the_batch_of_one_process(dataset, processes, last):
    """The epoch sampler ends with a shorter batch; all batches of the P x K sampler are complete."""

    def batches(**share):
        sampler = pk(dataset, **share) if last == {4} else EpochSampler(len(dataset), 18, **share)
        return list(Loader(dataset, sampler, VIEW))

    parts = [batches(process_index=r, process_count=processes) for r in range(processes)]
    assert same_batches(joined(parts), batches())
    assert {len(part[-1].indices) for part in parts} == last


@pytest.mark.slow
def test_open_iterator_ends_without_error_at_interpreter_exit(tmp_path):
    written(tmp_path / "data")
    program = """
import concurrent.futures.thread, sys, hgld
from hgld.data.views import TestView
from hgld.data.loader import Loader
from hgld.samplers import EpochSampler

dataset, view = hgld.open_dataset(sys.argv[1]), TestView(8, 8)
bare = hgld.stream(sys.argv[1] + "/train-{000000..000003}.tar", 2, 1, num_streams=2, view=view, batches_per_epoch=99)
kept = [iter(Loader(dataset, EpochSampler(len(dataset), 4), view, workers=2)), iter(bare)]
concurrent.futures.thread.kept = kept  # the interpreter closes these iterators after clearing that module
for batches in kept:
    next(batches)
"""
    assert not python("-c", program, tmp_path / "data").stderr


def test_stopped_loader_resumes_after_the_last_returned_batch(dataset):
    whole = list(Loader(dataset, pk(dataset), VIEW))
    loader = Loader(dataset, pk(dataset), VIEW, prefetch=3)
    batches = iter(loader)
    taken = [next(batches), next(batches)]
    state = loader.state_dict()
    assert state == {"epoch": 0, "step": 2}
    batches.close()
    resumed = Loader(dataset, pk(dataset), VIEW, workers=2)
    resumed.load_state_dict(state)
    resumed.set_epoch(0)  # must not move back to the beginning of the current epoch
    assert same_batches(taken + list(resumed), whole)
    assert same_batches(taken + list(loader), whole)  # the stopped loader resumes


def test_memory_of_a_batch_is_reused_only_after_its_deletion(dataset):
    loader = Loader(dataset, pk(dataset), VIEW)
    kept = [(batch.images[2:3], batch.images[2].clone()) for _ in range(6) for batch in loader]
    assert all(torch.equal(image[0], copy) for image, copy in kept)  # a slice keeps the memory of its whole batch
    loader = Loader(dataset, pk(dataset), VIEW)
    places_in_memory = set()
    for _ in range(6):
        places_in_memory |= {batch.images.data_ptr() for batch in loader}
    assert len(places_in_memory) <= 12  # fewer buffers than the 24 batches


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("hgld loader")]


def test_threads_end_with_the_iterator(dataset):
    for end in ("exhaust", "interrupt", "forget"):  # forgetting an iterator closes it
        batches = iter(Loader(dataset, pk(dataset), VIEW, workers=3))
        next(batches)
        assert threads()
        if end == "exhaust":
            list(batches)
        elif end == "interrupt":
            with pytest.raises(KeyboardInterrupt):
                batches.throw(KeyboardInterrupt)
        del batches
        gc.collect()
        assert not threads(), end


def test_corrupt_item_raises_an_error_at_its_batch(damaged):
    sampler = pk(damaged)
    expected = next(step for step in range(len(sampler)) if {0, 9, 12} & set(sampler.batch(0, step).tolist()))
    batches = iter(Loader(damaged, sampler, VIEW, prefetch=4, workers=2))
    for _ in range(expected):
        next(batches)
    with pytest.raises(
        InputError, match=r"train-00000\d\.tar: item \d+, key 'train/\d+', offset \d+: cannot be decoded"
    ):
        next(batches)


def test_damaged_items_are_replaced_by_other_items_of_their_class(damaged):
    loaders = [Loader(damaged, pk(damaged), VIEW, on_fault="replace", workers=w, prefetch=w) for w in (1, 3)]
    first, again = (list(loader) for loader in loaders)
    assert same_batches(first, again)
    wanted = pk(damaged)
    found = []
    for step, batch in enumerate(first):
        items = wanted.batch(0, step).tolist()
        # replacements have the labels of the damaged items
        assert torch.equal(batch.labels, damaged.labels[items])
        assert torch.equal(batch.labels, damaged.labels[batch.indices])
        expected = [i if i not in (0, 9, 12) else -1 for i in items]
        for fault in batch.faults:
            row = items.index(fault.index)
            expected[row] = fault.replacement
            assert f"key 'train/{fault.index:04d}'" in fault.where
            assert fault.reason.startswith("cannot be decoded as an image")
            assert batch.images[row].float().std() > 0
        assert batch.indices.tolist() == expected
        found += [fault.index for fault in batch.faults]
    assert set(found) == {0, 9, 12}


def test_corrupt_items_stay_black_with_on_fault_leave(damaged):
    replaced = list(Loader(damaged, pk(damaged), VIEW, on_fault="replace"))
    for workers in (1, 3):
        found = list(Loader(damaged, pk(damaged), VIEW, on_fault="leave", workers=workers, prefetch=workers))
        for step, (batch, other) in enumerate(zip(found, replaced, strict=True)):
            assert batch.indices.tolist() == pk(damaged).batch(0, step).tolist()
            rows = torch.isin(batch.indices, torch.tensor([0, 9, 12]))
            assert [(fault.index, fault.replacement) for fault in batch.faults] == [
                (i, -1) for i in batch.indices[rows]
            ]
            assert torch.equal(batch.images[~rows], other.images[~rows])
            assert not batch.images[rows].any()


def test_class_of_corrupt_items_is_replaced_by_other_items_of_the_batch(tmp_path):
    dataset = written(tmp_path / "data", broken=(4, 5, 6))  # all items of class 1
    batches = list(Loader(dataset, pk(dataset), VIEW, on_fault="replace"))
    assert sum(len(batch.faults) for batch in batches) >= 3
    for batch in batches:
        assert torch.equal(batch.labels, dataset.labels[batch.indices])
        assert 1 not in batch.labels[:, 0]


def test_all_views_of_a_damaged_image_get_the_same_replacement(damaged):
    loader = Loader(damaged, RepeatedAugmentation(len(damaged), 6, 3), VIEW, on_fault="replace")
    faults = [(fault.index, fault.replacement) for batch in loader for fault in batch.faults]
    assert sorted(Counter(faults).values()) == [3, 3, 3]


def test_batch_of_corrupt_items_fails(tmp_path):
    dataset = written(tmp_path / "data", broken=tuple(range(24)))
    with pytest.raises(InputError, match=r"that were tried as replacements are damaged too.* hgld verify"):
        next(iter(Loader(dataset, pk(dataset), VIEW, on_fault="replace")))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pinned_batches_reach_the_gpu(dataset):
    whole = list(Loader(dataset, pk(dataset), VIEW))
    pinned = Loader(dataset, pk(dataset), VIEW, pin_memory=True)
    moved = [batch.images.to("cuda", non_blocking=True) for batch in pinned]
    assert all(torch.equal(there.cpu(), here.images) for there, here in zip(moved, whole, strict=True))


@each_row(
    ("started", "cores"),
    [
        ({}, 12),
        ({"RANK": "0", "LOCAL_WORLD_SIZE": "4"}, 3),
        ({"SLURM_CPUS_PER_TASK": "8", "SLURM_STEP_TASKS_PER_NODE": "4"}, 8),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, 3),
    ],
)
def test_a_process_decodes_with_its_share_of_the_cores(started, cores, dataset, monkeypatch):
    for name in ("RANK", "LOCAL_WORLD_SIZE", "SLURM_CPUS_PER_TASK", "SLURM_STEP_TASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(12)))
    assert cores_of_process() == cores
    assert Loader(dataset, pk(dataset), VIEW, workers=0)._batches._workers == cores

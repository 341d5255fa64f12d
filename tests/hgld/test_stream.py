import pickle
import threading
import time

import pytest
import webdataset.filters
from torch.utils.data import DataLoader
from webdataset.compat import WebLoader
from webdataset.pipeline import DataPipeline

import hgld
from hgld.data.loader import Loader, read_ahead
from hgld.errors import ConfigError, InputError, ServiceError
from tests.hgld.range_server import serve
from tests.hgld.small_dataset import Item, write_dataset
from tests.hgld.streamed_dataset import (
    VIEW,
    K,
    P,
    grouped_items,
    joined,
    same_batches,
    stream,
    tars,
    typical,
)
from tests.rows import refused


@pytest.fixture(scope="module")
def folder(module_path):
    """Return a shared dataset, which no test may change."""
    typical(module_path)
    return module_path


@pytest.fixture(params=["directory", "bare"])
def shards(request, folder):
    """Return the same shards with and without their index."""
    return folder if request.param == "directory" else tars(folder)


# -- what a batch and an epoch are ----------------------------------------------------------------------------


def test_loader_with_the_sampler_of_a_stream_gives_the_same_batches_of_distinct_classes(folder):
    """tests/hgld/test_shard_order.py tests the batches of the sampler."""
    one = stream(folder, seed=3)
    by_index = Loader(one.dataset, one.sampler, VIEW, seed=3)
    for _ in range(2):
        batches = list(one)
        assert same_batches(list(by_index), batches)
        assert len(batches) == len(one) == 13
        for batch in batches:
            assert len(set(batch.labels[::K, 0].tolist())) == P
            assert batch.faults == ()


def test_parts_of_streaming_processes_form_the_batches_of_one_process(shards):
    parts = [list(stream(shards, process_index=r, process_count=4)) for r in range(4)]
    assert same_batches(joined(parts), list(stream(shards)))
    assert not same_batches(parts[0], parts[1])


def test_batches_depend_on_epoch_and_seed_alone(shards):
    one, again = stream(shards), stream(shards)
    first, second = list(one), list(one)
    assert not same_batches(first, second)
    assert not same_batches(first, list(stream(shards, seed=1)))
    again.set_epoch(1)
    assert same_batches(second, list(again))


def test_stream_options_set_levels_and_batches_per_epoch(folder):
    one = stream(folder, levels=["coarse"], batches_per_epoch=3)
    batches = list(one)
    assert len(batches) == len(one) == 3
    assert batches[0].labels.shape == (P * K, 1)
    assert one.dataset.levels == ("coarse",)


def test_items_without_a_class_are_excluded_and_reading_streams_may_share_a_shard(tmp_path):
    items = [*grouped_items([4] * 8), *(Item((-1, -1), "train", item.data) for item in grouped_items([3]))]
    write_dataset(tmp_path, items, per_shard=40)
    one = stream(tmp_path, num_streams=2)
    assert one.sampler.left_out == 3
    assert {i for batch in one for i in batch.indices.tolist()} == set(range(32))


# -- resuming -------------------------------------------------------------------------------------------------


def test_a_stopped_stream_resumes_with_the_same_batches(shards):
    whole, step = list(stream(shards)), 4
    one = stream(shards)
    for number, batch in enumerate(one, 1):
        assert same_batches([batch], [whole[number - 1]])
        if number == step:
            break
    state = one.state_dict()
    assert (state["epoch"], state["step"]) == (0, step)
    assert same_batches(list(one), whole[step:])  # the open stream continues
    again = stream(shards)
    again.load_state_dict(state)
    again.set_epoch(0)  # a training loop calls set_epoch at the beginning of every epoch
    assert same_batches(list(again), whole[step:])
    parts = [stream(shards, process_index=r, process_count=2) for r in range(2)]  # resume on two processes
    for part in parts:
        part.load_state_dict(state)
    assert same_batches(joined([list(part) for part in parts]), whole[step:])
    with pytest.raises(ConfigError, match="a stream with different batches"):
        stream(shards, seed=1).load_state_dict(state)


def test_invalid_positions_are_refused(folder):
    for wrong in ({}, {"epoch": -1, "step": 0}, {"epoch": 0, "step": 99}, {"epoch": 0, "step": 1.5}):
        with pytest.raises(ConfigError, match="expected whole numbers >= 0, step <= 13"):
            stream(folder).load_state_dict(wrong)
    with pytest.raises(ConfigError, match="epoch is -1"):
        stream(folder).set_epoch(-1)


def test_resuming_reads_only_the_shards_still_needed(folder):
    with serve(folder) as server:
        one = stream(server.url, num_streams=1, window=1)
        server.requests.clear()
        whole = list(one)
        every = {request.split()[1] for request in server.requests}
        one.load_state_dict({"epoch": 0, "step": len(one) - 1})
        server.requests.clear()
        assert same_batches(list(one), whole[-1:])
        assert len({request.split()[1] for request in server.requests}) < len(every) == 5


def test_streams_can_be_pickled(shards):
    one = stream(shards, batches_per_epoch=5)
    next(iter(one))
    again = pickle.loads(pickle.dumps(one))
    assert again.state_dict() == one.state_dict()
    assert same_batches(list(again), list(one))


# -- over a network -------------------------------------------------------------------------------------------


def test_stream_from_a_failing_server_gives_the_same_batches(folder, monkeypatch):
    expected = list(stream(folder))
    with serve(folder) as server:
        one = stream(server.url)
        server.failures[:] = [500, 503, 500]
        server.cut_after = 20_000
        monkeypatch.setattr(time, "sleep", lambda _: None)
        assert same_batches(list(one), expected)
        assert not server.failures
        server.failures[:] = [503] * 100
        with pytest.raises(ServiceError, match=r"train-\d+.tar.*503"):
            list(one)


# -- threads and memory ---------------------------------------------------------------------------------------


def hgld_threads() -> list[str]:
    # connection threads ("hgld http") live as long as their dataset
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("hgld") and not name.startswith("hgld http")]


def test_streams_leave_no_thread(folder, tmp_path):
    list(stream(folder, workers=2))
    for _ in stream(folder, workers=2):
        break
    typical(tmp_path)
    (tmp_path / "train-000000.tar").unlink()
    with pytest.raises(InputError):
        list(stream(tmp_path))
    assert hgld_threads() == []


def test_read_ahead_buffers_a_limited_number_of_values():
    made, ended = [], []

    def values():
        try:
            for i in range(100):
                made.append(i)
                yield i
        finally:
            ended.append(True)

    with read_ahead(values(), 3) as ahead:
        for taken in range(1, 6):
            assert next(ahead) == taken - 1
            time.sleep(0.02)
            assert len(made) <= taken + 3
    assert ended
    with read_ahead(values(), 3) as ahead:
        assert list(ahead) == list(range(100))


# -- torch and webdataset pipelines ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.enable_socket  # torch sends handles of shared memory through a Unix socket
def test_one_spawned_torch_worker_gives_the_same_batches(folder):
    expected = list(stream(folder))
    loader = DataLoader(stream(folder), batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert same_batches(list(loader), expected)


def test_several_worker_processes_are_refused(folder, monkeypatch):
    class Worker:
        num_workers = 2

    monkeypatch.setattr("hgld.data.streaming.get_worker_info", Worker)
    with pytest.raises(ConfigError, match="2 worker processes would each give every batch"):
        next(iter(stream(folder)))


def test_torch_loaders_and_webdataset_pipelines_give_the_same_batches(folder):
    one, *others = (stream(folder, batches_per_epoch=3) for _ in range(4))
    expected = list(one)
    pipeline = DataPipeline(others[0], webdataset.filters.map(lambda batch: batch))
    loaders = DataLoader(others[1], batch_size=None), WebLoader(others[2], batch_size=None, num_workers=0)
    assert all(same_batches(list(given), expected) for given in (pipeline, *loaders))


# -- refusals -------------------------------------------------------------------------------------------------


test_invalid_stream_options_are_refused = refused(
    lambda options, *, folder: stream(folder, **options),
    [
        ({"process_count": 8, "num_streams": 4}, r"4 streams of 8 processes cannot share .* choose num_streams=8"),
        ({"window": 0}, "window is 0"),
        ({"batches_per_epoch": 14}, "an epoch of this stream has 13"),
    ],
    ConfigError,
)


@pytest.mark.parametrize(("p", "processes", "expected"), [(10, 1, 5), (11, 1, 1), (6, 2, 6)])
def test_default_number_of_streams_divides_the_classes(folder, p, processes, expected):
    found = hgld.stream(folder, p, 2, process_count=processes)
    assert found.sampler.num_streams == expected


def test_k_above_the_group_size_is_refused(folder):
    with pytest.raises(ConfigError, match=r"Use k=2, or build the shards with --group-size 4"):
        hgld.stream(folder, P, 4, num_streams=4)

"""Streams from tars without an index ("bare shards"): a hostile tar neither fills the memory nor runs commands."""

import gzip
import io
import json
import tarfile
import tracemalloc
from collections.abc import Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

import hgld
from hgld.data.decode import decode_batch
from hgld.data.format import MAX_ITEM_JSON_BYTES, item_json
from hgld.data.images import EncodedImage
from hgld.data.storage import ShardStorage, Tar, open_tars
from hgld.data.streaming import BareShards, Run, item_number
from hgld.data.views import TestView, places
from hgld.errors import ConfigError, HgldError, InputError
from hgld.samplers.batch_sampler import Short
from tests.fake_releases.pictures import jpeg, png
from tests.hgld.range_server import serve
from tests.hgld.streamed_dataset import (
    VIEW,
    K,
    P,
    joined,
    same_batches,
    stream,
    tars,
    typical,
)
from tests.rows import each_row, refused

IMAGE = jpeg(np.random.default_rng(0))


@pytest.fixture(scope="module")
def folder(module_path):
    typical(module_path)
    return module_path


def facts(*labels, **others):
    return json.dumps(json.loads(item_json(labels, [""] * len(labels), "train", "", [])) | others).encode()


def write_tar(path: Path, members: Sequence[tuple[str, bytes]]) -> Tar:
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return Tar(ShardStorage(path.parent), path.name)


def classes(labels, data=IMAGE):
    """Return the members of a tar with one item per label."""
    return [m for i, c in enumerate(labels) for m in ((f"{i:04d}.jpg", data), (f"{i:04d}.json", facts(c, c // 4)))]


@contextmanager
def at_most(memory):
    """Fail if the statements below allocate this number of bytes or more."""
    with TemporaryDirectory() as folder:  # the first call imports packages, whose memory must not count
        runs([write_tar(Path(folder) / "a.tar", classes([0]))], 1, 1)
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < memory
    finally:
        tracemalloc.stop()


def runs(tars: Sequence[Tar], k: int, count: int, short: Short = "repeat") -> list[Run]:
    reader = BareShards(tars, k, short, batch=k).runs()
    try:
        return list(islice(reader, count))
    finally:
        reader.close()


# -- batches --------------------------------------------------------------------------------------------------


def test_batches_have_p_classes_of_k_items_distinct_within_a_stream(folder):
    batches = list(stream(tars(folder)))
    assert len(batches) == 6
    for batch in batches:
        labels = batch.labels.reshape(P, K, 2)
        assert (labels == labels[:, :1]).all()
        assert all(len(set(of_stream)) == 2 for of_stream in labels[:, 0, 0].reshape(4, 2).tolist())
        assert batch.faults == ()


def test_images_are_cropped_by_the_view_and_indexed_by_their_keys(folder):
    dataset = hgld.open_dataset(folder, "train")
    numbers = {item_number(key): i for i, key in enumerate(dataset.keys)}
    for process in range(2):
        batch = list(stream(tars(folder), process_index=process, process_count=2))[3]
        items = [numbers[index] for index in batch.indices.tolist()]
        assert torch.equal(batch.labels, dataset.labels[items])
        seen = places(3, P * K // 2, process * P * K // 2)
        parameters = VIEW.parameters(*dataset.sizes[items].T, seed=0, epoch=0, positions=seen)
        expected = torch.empty_like(batch.images)
        decode_batch(dataset.encoded(items), parameters, expected)
        assert torch.equal(batch.images, expected)


def test_no_shard_is_read_by_two_processes(folder):
    with serve(folder) as server:
        read, parts = [], []
        for process in range(2):
            server.requests.clear()
            url = f"{server.url}/train-{{000000..000004}}.tar"
            parts.append(list(stream(url, process_index=process, process_count=2, num_streams=2, batches_per_epoch=10)))
            read.append({request.split()[1] for request in server.requests})
    assert same_batches(joined(parts), list(stream(tars(folder), num_streams=2, batches_per_epoch=10)))
    assert read[0] | read[1] == {f"/train-{n:06d}.tar" for n in range(5)}
    assert not read[0] & read[1]


def test_bare_shards_repeat_without_end(folder):
    batches = list(stream(tars(folder), batches_per_epoch=48))
    assert len(batches) == 48  # one pass over the shards gives only 12 batches
    assert len({i for batch in batches for i in batch.indices.tolist()}) == 188


def test_equal_keys_in_two_shards_are_two_items(tmp_path):
    write_tar(tmp_path / "a.tar", classes([0, 0, 1, 1, 2, 2, 3, 3]))
    write_tar(tmp_path / "b.tar", classes([4, 4, 5, 5, 6, 6, 7, 7], jpeg(np.random.default_rng(1))))
    for batch in stream(tars(tmp_path), num_streams=2, batches_per_epoch=2, view=TestView(16, 16)):
        is_other = batch.labels[:, 0] >= 4
        assert [len(batch.images[rows].unique(dim=0)) for rows in (is_other, ~is_other)] == [1, 1]
        assert not torch.equal(batch.images[0], batch.images[-1])


def test_shards_with_different_numbers_of_levels_are_refused(tmp_path):
    write_tar(tmp_path / "a.tar", classes([0, 0, 1, 1, 2, 2, 3, 3]))
    others = [(f"{i}.{s}", d) for i in range(8) for s, d in (("jpg", IMAGE), ("json", facts(i // 2)))]
    write_tar(tmp_path / "b.tar", others)
    with pytest.raises(InputError, match=r"[12] labels.*All items of a stream need the same levels"):
        list(stream(tars(tmp_path), num_streams=2))


# -- items of a tar -------------------------------------------------------------------------------------------


def test_adjacent_members_with_one_key_are_one_item(tmp_path):
    members = [
        ("x/1.json", facts(5, 1)),
        ("x/1.jpg", IMAGE),
        ("__2__/2.PNG", png(np.random.default_rng(0))),  # webdataset reserves names with double underscores
        ("__2__/2.json", facts(5, 1)),
    ]
    tar = write_tar(tmp_path / "a.tar", [*members, ("__2__/2.txt", b"caption"), ("README", b"no item")])
    (run,) = runs([tar], 2, 1)
    one, two = run.items
    assert (one.number, one.labels, one.size) == (item_number("x/1"), (5, 1), (40, 32))
    assert one.image == EncodedImage(IMAGE, 1, None, f"{tar.where}: key 'x/1'")
    assert two.number == item_number("__2__/2")
    assert run.faults == []


def test_orientation_and_box_are_read_from_the_item(tmp_path):
    turned = jpeg(np.random.default_rng(0), orientation=6)
    members = [("1.jpg", turned), ("1.json", facts(0, box=[1, 2, 31, 40])), ("2.jpg", turned), ("2.json", facts(0))]
    boxed, whole = runs([write_tar(tmp_path / "a.tar", members)], 2, 1)[0].items
    assert (boxed.image.orientation, boxed.image.box, boxed.size) == (6, (1, 2, 31, 40), (30, 38))
    assert whole.size == (32, 40)


@each_row(
    ("members", "reason"),
    [
        ([("1.jpg", IMAGE)], "has no JSON"),
        ([("1.json", facts(0))], "has no image"),
        ([("1.jpg", IMAGE), ("1.png", IMAGE), ("1.json", facts(0))], "has a second image"),
        ([("1.jpg", IMAGE), ("1.json", facts(0)), ("1.JSON", facts(1))], "has a second JSON"),
        ([("1.jpg", IMAGE), ("1.json", bytes(MAX_ITEM_JSON_BYTES + 9))], f"more than {MAX_ITEM_JSON_BYTES:,} bytes"),
        ([("1.jpg", IMAGE), ("1.json", b"{")], "not valid JSON"),
        ([("1.jpg", b"GIF89a"), ("1.json", facts(0))], "none of JPEG, PNG, WEBP, GIF"),
        ([("é.jpg", IMAGE), ("é.json", facts(0))], "unsafe as a file name"),
        ([("1.jpg", IMAGE), ("1.json", facts(0, box=[0, 0, 41, 5]))], "has the box"),
    ],
)
def test_unusable_items_are_reported_with_the_reason(tmp_path, members, reason):
    tar = write_tar(tmp_path / "a.tar", [*members, *classes([3])])
    (run,) = runs([tar], 1, 1)
    assert reason in run.faults[0].reason
    assert run.faults[0].where.startswith(f"{tar.where}: ")
    assert [item.labels for item in run.items] == [(3, 0)]


@each_row("suffix", ["jpg", "json", "txt", "x{}"])
def test_members_of_one_key_do_not_fill_the_memory(tmp_path, suffix):
    size = 1 << 19
    members = [(f"1.{suffix.format(n)}", bytes(size)) for n in range(24)]
    tar = write_tar(tmp_path / "a.tar", [*members, *classes([3])])
    with at_most(8 * size):
        runs([tar], 1, 1)


# -- class runs -----------------------------------------------------------------------------------------------------


@each_row(
    ("labels", "lengths"),
    [
        ([0, 0, 1, 1, 1, 2], [2, 3, 1]),
        ([0] * 9, [2, 2, 2, 3]),
        ([0] * 4 + [1], [4, 1]),
        ([0, -1, 0, 1], [2, 1]),
    ],
)
def test_class_runs_have_k_to_2k_items(tmp_path, labels, lengths):
    tar = write_tar(tmp_path / "a.tar", classes(labels))
    found = runs([tar], 2, len(lengths) + 1)
    # after the last run, the first one follows again
    assert [len(run.items) for run in found] == [*lengths, lengths[0]]
    assert all(len({item.labels[0] for item in run.items}) == 1 for run in found)


def test_short_class_runs_are_dropped_or_refused(tmp_path):
    tar = write_tar(tmp_path / "a.tar", classes([0, 0, 1, 2, 2, 3]))
    found = runs([tar], 2, 3, "drop")
    assert [[item.labels[0] for item in run.items] for run in found] == [[0, 0], [2, 2], [0, 0]]
    with pytest.raises(
        InputError, match=r"a.tar: key '0002': only 1 items of class 1 are adjacent; expected at least 2"
    ):
        runs([tar], 2, 3, "refuse")


def test_tars_without_a_class_are_refused(tmp_path):
    tar = write_tar(tmp_path / "a.tar", [*classes([-1, -1]), ("x.jpg", IMAGE)])
    with pytest.raises(InputError, match=r"no usable images. Without a class: 2;.*damaged: 1;.*has no JSON"):
        runs([tar], 2, 1)


def test_tar_of_damaged_members_fails_early(tmp_path, monkeypatch):
    monkeypatch.setattr("hgld.data.streaming._MOST_BAD", 20)
    tar = write_tar(tmp_path / "a.tar", [(f"{i}.jpg", b"") for i in range(30)])
    with pytest.raises(InputError, match="21 damaged items"):
        runs([tar], 2, 1)


# -- lists of shards ------------------------------------------------------------------------------------------


def test_default_number_of_streams_is_at_most_the_number_of_shards():
    assert len(hgld.stream(["a.tar", "b.tar", "c.tar"], 8, 2, batches_per_epoch=4)) == 4


def test_shards_of_one_folder_share_its_storage():
    some = open_tars(["/data/a.tar", "/data/b.tar", "https://host/x/c.tar?key=1", "d.tar"], None)
    assert some[0].storage is some[1].storage
    assert [tar.name for tar in some] == ["a.tar", "b.tar", "c.tar", "d.tar"]
    assert some[2].where == "https://host/x/c.tar"


test_lists_that_cannot_be_streamed_are_refused = refused(
    lambda shards, options: list(stream(shards, **options)),
    [
        (["a.tar"], {}, "1 shards for num_streams=4"),
        (["a.zip"], {}, "which ends in .tar"),
        ("a-{000..003.tar", {}, "a brace is not closed"),
        ("a-{000000..99999999999}.tar", {}, "more than 100000 shards"),
        (["a.tar"], {"batches_per_epoch": None}, "pass batches_per_epoch"),
        (["a.tar"], {"levels": ["fine"]}, "levels and verify_reads need the index"),
        (["a.tar"], {"num_streams": 1, "short": "skip"}, "'skip'"),
    ],
    (ConfigError, InputError),
)


# -- hostile tars ---------------------------------------------------------------------------------------------


def header(size, kind=tarfile.REGTYPE, form=tarfile.PAX_FORMAT, **records):
    """Return the header of a member, after a pax header of the records."""
    info = tarfile.TarInfo("1.jpg")
    info.size, info.type, info.pax_headers = size, kind, records
    return info.tobuf(form)


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9" * 11}
HOSTILE = {
    "a pax header of 5 MB": header(5 << 20, tarfile.XHDTYPE) + bytes(5 << 20),
    "a member of 5 GB": header(5 << 30, form=tarfile.GNU_FORMAT),
    "a member of 2**60 bytes by pax": header(1 << 60),
    "a sparse file by pax": header(512, **SPARSE) + b"9999\n".ljust(512, b"\0"),
    "no header": b"\xff" * 512,
}


@each_row("what", HOSTILE)
def test_hostile_headers_are_reported_and_use_little_memory(what, tmp_path):
    sound = write_tar(tmp_path / "sound.tar", classes([0, 0]))
    (tmp_path / "hostile.tar").write_bytes(HOSTILE[what] + (tmp_path / "sound.tar").read_bytes())
    with at_most(4 << 20):
        found = runs([Tar(sound.storage, "hostile.tar"), sound], 2, 3)
    assert any("hostile.tar" in fault.where for run in found for fault in run.faults)
    assert {item.labels[0] for run in found for item in run.items} == {0}


def test_compressed_shards_are_refused_without_decompression(tmp_path):
    typical(tmp_path)
    squeezed = gzip.compress(Path(tars(tmp_path)[0]).read_bytes() + bytes(16 << 20))
    for path in map(Path, tars(tmp_path)):
        path.write_bytes(squeezed.ljust(path.stat().st_size, b"\0"))
    one = stream(tars(tmp_path), batches_per_epoch=2)
    with at_most(8 << 20), pytest.raises(InputError, match=r"no usable images.*Expected uncompressed tars"):
        list(one)


def test_urls_that_webdataset_would_run_as_commands_are_refused(tmp_path):
    flag = tmp_path / "flag"
    for url in (f"pipe:touch {flag} #.tar", f"pipe://touch {flag} #.tar", f"gs://b/$(touch {flag}).tar"):
        with pytest.raises(HgldError):
            next(iter(hgld.stream(url, 1, 1, num_streams=1, batches_per_epoch=1)))
    assert not flag.exists()


def test_pickles_beside_an_image_are_ignored(tmp_path):
    flag = tmp_path / "flag"
    bomb = f"cos\nsystem\n(S'touch {flag}'\ntR.".encode()
    write_tar(tmp_path / "a.tar", [("0000.pth", bomb), ("0000.pickle", bomb), *classes([0, 0])])
    (batch,) = hgld.stream([str(tmp_path / "a.tar")], 1, 2, num_streams=1, batches_per_epoch=1, view=VIEW)
    assert batch.faults == ()
    assert not flag.exists()


def test_closed_reader_closes_its_files(folder, monkeypatch):
    opened, original = [], ShardStorage.open_stream
    monkeypatch.setattr(ShardStorage, "open_stream", lambda *args: opened.append(original(*args)) or opened[-1])
    bare = BareShards(open_tars(tars(folder), None), 2, "repeat", batch=2).runs()
    next(bare)
    bare.close()
    assert opened
    assert all(file.closed for file in opened)

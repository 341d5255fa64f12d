"""A hostile tar in a webdataset pipeline cannot fill the memory, run commands or open other files."""

import gzip
import os
import struct
import tracemalloc
from importlib import import_module
from pathlib import Path

import pytest

import hgld
from hgld.data.storage import ShardStorage, open_tars
from hgld.data.streaming import BareShards
from hgld.data.tar import checksum, member_header, padding
from hgld.errors import HgldError, InputError
from tests.hgld.streamed_dataset import VIEW, stream, tars, typical
from tests.hgld.test_stream_bare import classes, runs, write_tar

MOST_MEMORY = 8 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("typical")
    typical(folder)
    return folder


@pytest.fixture(autouse=True)
def nothing_else_opens(monkeypatch):
    """Forbid shells, processes and the file opener of webdataset."""

    def refused(*arguments, **_):
        raise AssertionError(f"webdataset opened {arguments}")

    monkeypatch.setenv("GOPEN_REWRITE", "/=pipe:touch /tmp/never;")
    monkeypatch.setattr(import_module("webdataset.gopen"), "gopen", refused)
    monkeypatch.setattr("subprocess.Popen", refused)
    monkeypatch.setattr(os, "system", refused)


def header(kind: bytes, size: int, name: bytes = b"1.jpg") -> bytes:
    """Return a header with any values and a valid checksum."""
    block = bytearray(member_header(name.decode(), 0))
    block[124:136] = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    block[156:157] = kind
    block[148:156] = b"%06o\0 " % checksum(bytes(block))
    return bytes(block)


def pax(*records: tuple[str, str]) -> bytes:
    data = b""
    for key, value in records:
        body = f" {key}={value}\n".encode()
        length = len(body) + len(str(len(body) + 3))
        data += b"%d" % length + body
    return header(b"x", len(data)) + data + padding(len(data))


SPARSE = bytearray(header(b"S", 512))
SPARSE[386:410] = b"%011o\0%011o\0" % (0, 512)
SPARSE[483:495] = b"\x80" + struct.pack(">3xQ", 1 << 36)  # claimed size of the sparse file after filling its holes
SPARSE[148:156] = b"%06o\0 " % checksum(bytes(SPARSE))

HOSTILE = {
    "a pax header of 5 GB": header(b"x", 5 << 30),
    "a long name of 5 GB": header(b"L", 5 << 30),
    "a pax header of 12 MB": header(b"x", 12 << 20) + bytes(12 << 20),
    "a member of 5 GB": header(b"0", 5 << 30),
    "a member of 2**60 bytes by pax": pax(("size", str(1 << 60))) + header(b"0", 0),
    "a size for all members": pax(("size", "5"))[:156] + b"g" + pax(("size", "5"))[157:],
    "a sparse file": bytes(SPARSE) + bytes(512),
    "a sparse file by pax": pax(("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "9" * 11))
    + header(b"0", 512)
    + b"9999\n".ljust(512, b"\0"),
    "no header": os.urandom(512),
}


@pytest.mark.parametrize("what", sorted(HOSTILE))
def test_hostile_headers_are_reported_and_use_little_memory(what, tmp_path):
    sound = write_tar(tmp_path / "sound.tar", classes([0, 0]))
    (tmp_path / "hostile.tar").write_bytes(HOSTILE[what] + (tmp_path / "sound.tar").read_bytes())
    runs([sound], 2, 1)  # the first call imports packages, whose memory must not count
    tracemalloc.start()
    try:
        found = runs([type(sound)(sound.storage, "hostile.tar"), sound], 2, 3)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert any("hostile.tar" in fault.where for run in found for fault in run.faults)
    assert {item.labels[0] for run in found for item in run.items} == {0}


def test_compressed_shards_are_refused_without_decompression(tmp_path):
    typical(tmp_path)
    squeezed = gzip.compress(Path(tars(tmp_path)[0]).read_bytes() + bytes(16 << 20))
    for path in map(Path, tars(tmp_path)):
        path.write_bytes(squeezed.ljust(path.stat().st_size, b"\0"))
    one = stream(tars(tmp_path), batches_per_epoch=2)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"no usable images.*Expected uncompressed tars"):
            list(one)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()


def test_urls_that_webdataset_would_run_as_commands_are_refused(tmp_path):
    flag = tmp_path / "flag"
    for url in (f"pipe:touch {flag} #.tar", f"pipe://touch {flag} #.tar", f"gs://b/$(touch {flag}).tar"):
        with pytest.raises(HgldError):
            next(iter(hgld.stream(url, 1, 1, num_streams=1, batches_per_epoch=1)))
    assert not flag.exists()


def test_pickles_beside_an_image_are_ignored(tmp_path):
    flag = tmp_path / "flag"
    bomb = f"cos\nsystem\n(S'touch {flag}'\ntR.".encode()
    members = [("0000.pyd", bomb), ("0000.pth", bomb), ("0000.pickle", bomb), *classes([0, 0])]
    write_tar(tmp_path / "a.tar", members)
    (batch,) = hgld.stream([str(tmp_path / "a.tar")], 1, 2, num_streams=1, batches_per_epoch=1, view=VIEW)
    assert batch.faults == ()
    assert not flag.exists()


def test_closed_reader_closes_its_files(folder, monkeypatch):
    opened = []
    original = ShardStorage.open_stream

    def noted(*arguments):
        opened.append(original(*arguments))
        return opened[-1]

    monkeypatch.setattr(ShardStorage, "open_stream", noted)
    bare = BareShards(open_tars(tars(folder), None), 2, "repeat", batch=2).runs()
    next(bare)
    bare.close()
    assert opened
    assert all(file.closed for file in opened)

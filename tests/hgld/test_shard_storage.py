import os
import pickle
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hgld.data.format import FileFacts
from hgld.data.storage import MOST_OPEN_FILES, ShardStorage
from hgld.errors import ConfigError, InputError, MissingResourceError, ServiceError, StorageError
from tests.hgld.range_server import RangeServer, serve
from tests.rows import each_row

SIZE = 300_000


@pytest.fixture
def folder(tmp_path):
    """Return a folder with two files that have names of shards."""
    rng = np.random.default_rng(0)
    for name in ("train-000000.tar", "train-000001.tar"):
        (tmp_path / name).write_bytes(rng.bytes(SIZE))
    (tmp_path / "empty.json").write_bytes(b"")
    return tmp_path


@pytest.fixture
def server(folder):
    with serve(folder) as server:
        yield server


@pytest.fixture(params=["local", "memory", "http"])
def storage(request, folder, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)  # avoids the waits between attempts
    if request.param == "http":
        server: RangeServer = request.getfixturevalue("server")
        yield ShardStorage(server.url)
    elif request.param == "memory":
        memory = fsspec.filesystem("memory")
        memory.put(f"{folder}/", "/shards", recursive=True)
        yield ShardStorage("memory://shards")
        memory.rm("/shards", recursive=True)
    else:
        yield ShardStorage(folder)


@pytest.fixture
def remote(server, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return ShardStorage(server.url)


def bytes_of(folder, name, offset, size):
    return (folder / name).read_bytes()[offset : offset + size]


def test_retries_of_a_process_are_limited(server, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    storage = ShardStorage(server.url, {"limits": {"retries": 3}})
    server.failures[:] = [503] * 2
    storage.read_at("train-000000.tar", 0, 10)
    server.failures[:] = [503] * 2
    with pytest.raises(ServiceError, match=r"503, after 4 retries of 2 requests\. Try again"):
        storage.read_at("train-000000.tar", 0, 10)


# -- every type of storage ---------------------------------------------------------------------------------------------


def test_ranges_whole_files_and_streams_are_read(storage, folder):
    rng = np.random.default_rng(1)
    requests = [
        (f"train-00000{rng.integers(2)}.tar", int(offset), int(rng.integers(0, 3000)))
        for offset in rng.integers(0, SIZE - 3000, 60)
    ]
    requests += [requests[0], ("train-000000.tar", SIZE - 5, 5), ("empty.json", 0, 0)]
    expected = [bytes_of(folder, *request) for request in requests]
    assert storage.read_many(requests) == expected  # in the order of the requests
    assert [storage.read_at(*request) for request in requests[-4:]] == expected[-4:]
    assert storage.read_many([]) == []
    assert storage.read_file("train-000000.tar", SIZE) == (folder / "train-000000.tar").read_bytes()
    with pytest.raises(InputError, match=r"train-000000.tar: more than 299999 bytes"):
        storage.read_file("train-000000.tar", SIZE - 1)
    with storage.open_stream("train-000001.tar") as stream:
        assert stream.read(100) == bytes_of(folder, "train-000001.tar", 0, 100)
        assert stream.read() == bytes_of(folder, "train-000001.tar", 100, SIZE)
        assert stream.read(1) == b""


def readers(storage):
    """Return every way to read a file, as functions of its name."""
    return (
        lambda name: storage.read_at(name, 0, 1),
        lambda name: storage.read_many([("train-000000.tar", 0, 1), (name, 0, 1)]),
        lambda name: storage.read_file(name, 10),
        storage.open_stream,
        storage.table,
    )


def test_missing_files_are_refused_by_every_method(storage):
    assert storage.exists("train-000000.tar")
    assert storage.exists("empty.json")
    assert not storage.exists("train-000002.tar")
    for read in readers(storage):
        with pytest.raises(InputError, match=r"train-000002.tar: no such file"):
            read("train-000002.tar")


def test_read_beyond_the_end_of_a_file_raises_an_error_with_its_range(storage):
    message = r"train-000000.tar: only 10 bytes could be read at offset 299990; expected 20. The file is truncated"
    with pytest.raises(InputError, match=message):
        storage.read_many([("train-000000.tar", 0, 5), ("train-000000.tar", SIZE - 10, 20)])


def test_file_names_outside_the_dataset_are_refused(storage):
    for use in (storage.exists, *readers(storage)):
        for name in ("", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", "a\0", "a\nb"):
            with pytest.raises(InputError, match="not the name of a file in a dataset"):
                use(name)


# -- a disk ------------------------------------------------------------------------------------------------------------


def open_files(folder: Path) -> list[Path]:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [target for target in (link.readlink() for link in links) if target.is_relative_to(folder)]


def test_number_of_open_files_is_bounded(tmp_path):
    names = [f"train-{i:06d}.tar" for i in range(MOST_OPEN_FILES + 20)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    storage = ShardStorage(tmp_path)
    requests = [(name, 0, len(name)) for name in names]
    assert storage.read_many(requests) == [name.encode() for name in names]
    assert len(open_files(tmp_path)) == MOST_OPEN_FILES
    with ThreadPoolExecutor(8) as pool:  # threads close each other's files when the limit is reached
        assert list(pool.map(storage.read_at, *zip(*requests * 3, strict=True))) == [n.encode() for n in names] * 3
    assert len(open_files(tmp_path)) == MOST_OPEN_FILES
    del storage
    assert open_files(tmp_path) == []


def test_links_out_of_the_folder_are_not_followed(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train-000000.tar").symlink_to(tmp_path / "secret")
    (folder / "real.tar").write_bytes(b"real")
    (folder / "train-000001.tar").symlink_to("real.tar")
    storage = ShardStorage(folder)
    for use in (lambda name: storage.read_at(name, 0, 6), storage.open_stream, storage.table):
        with pytest.raises(InputError, match="a link that leads out of the folder is not followed"):
            use("train-000000.tar")
    assert storage.read_at("train-000001.tar", 0, 4) == b"real"
    (tmp_path / "link").symlink_to(folder)  # only the folder itself may be a symbolic link
    assert ShardStorage(tmp_path / "link").read_at("real.tar", 0, 4) == b"real"


def test_folders_and_pipes_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "train-000000.tar")
    (tmp_path / "train-000001.tar").mkdir()
    storage = ShardStorage(tmp_path)
    for name in ("train-000000.tar", "train-000001.tar"):
        with pytest.raises(InputError, match="this is a folder, pipe or device"):
            storage.read_at(name, 0, 1)
        assert not storage.exists(name)


def test_disk_error_is_raised_with_file_and_range(folder, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    storage = ShardStorage(folder)
    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(StorageError, match=r"train-000000.tar: 4 bytes at offset 8 cannot be read \(Input/output"):
        storage.read_many([("train-000000.tar", 8, 4), ("train-000001.tar", 0, 1)])
    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(StorageError, match=r"train-000001.tar: cannot be opened"):
        ShardStorage(folder).read_at("train-000001.tar", 8, 4)


def test_short_reads_of_the_operating_system_are_completed(folder, monkeypatch):
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 100), offset))
    wanted = ("train-000000.tar", 50, 1001)
    for storage in (ShardStorage(folder), ShardStorage(folder.as_uri())):
        assert storage.is_local
        assert storage.read_at(*wanted) == bytes_of(folder, *wanted)
        assert storage.read_many([wanted]) == [bytes_of(folder, *wanted)]


def test_a_relative_folder_is_resolved_when_the_storage_is_opened(folder, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(folder)
    storage = ShardStorage(".")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert storage.exists("train-000000.tar")
    assert storage.table("train-000000.tar") == folder / "train-000000.tar"


# -- URLs --------------------------------------------------------------------------------------------------------------


@each_row("url", ["pipe://cat", "simplecache::http://a/b", "ssh://a/b"])
def test_schemes_that_run_code_are_refused(url):
    with pytest.raises(ConfigError, match="cannot be read; expected a folder, or a URL"):
        ShardStorage(url)
    assert ShardStorage("pipe:cat x").is_local  # without "//" this is a valid folder name


def test_url_scheme_without_its_package_raises_an_error_with_the_package(monkeypatch):
    def missing(*_, **__):
        raise ImportError("Please install s3fs to access S3")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(MissingResourceError, match=r"s3://bucket/set: Please install s3fs"):
        ShardStorage("s3://bucket/set").exists("dataset.json")


def test_neighbouring_ranges_share_one_request(server, remote):
    remote.read_at("train-000000.tar", 0, 1)
    server.requests.clear()
    remote.read_many([("train-000000.tar", i * 1000, 900) for i in (5, 3, 4, 200)])
    assert sorted(server.requests) == [
        "GET /train-000000.tar bytes=200000-200899",
        "GET /train-000000.tar bytes=3000-5899",
    ]


def test_temporary_failures_are_retried(server, remote, folder):
    server.failures += [503, 429, 500]
    assert remote.read_at("train-000000.tar", 9, 9) == bytes_of(folder, "train-000000.tar", 9, 9)
    server.failures += [503]
    assert remote.exists("train-000000.tar")
    server.failures += [502, 502]  # one failure for HEAD, one for GET
    with remote.open_stream("train-000000.tar") as stream:
        assert stream.read(5) == bytes_of(folder, "train-000000.tar", 0, 5)


def test_permanent_failures_are_reported_with_their_status(server, remote):
    server.failures += [500] * 6
    with pytest.raises(ServiceError, match=r"/train-000000.tar: status 500, after several attempts"):
        remote.read_at("train-000000.tar", 0, 9)
    assert len(server.requests) == 6
    server.failures += [403]
    with pytest.raises(ServiceError, match=r"status 403. Check the URL and the credentials"):
        remote.read_at("train-000000.tar", 0, 9)
    assert len(server.requests) == 7
    for use in (remote.exists, remote.open_stream):
        server.failures += [401, 401]
        with pytest.raises(ServiceError, match="status 401"):
            use("train-000000.tar")
        server.failures.clear()


def test_an_unreachable_server_is_an_error_not_a_missing_file(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with serve(tmp_path) as server:
        url = server.url
    storage = ShardStorage(url)
    message = r"dataset.json: the server cannot be reached \(Connection refused\), after several attempts"
    for use in (lambda: storage.exists("dataset.json"), lambda: storage.open_stream("dataset.json")):
        with pytest.raises(ServiceError, match=message):
            use()


def test_retries_request_only_failed_ranges(server, remote, folder):
    requests = [("train-000000.tar", i * 100_000, 10) for i in range(3)]
    remote.read_at(*requests[0])
    server.requests.clear()
    server.failures += [503]
    assert remote.read_many(requests) == [bytes_of(folder, *request) for request in requests]
    assert len(server.requests) == 4


def test_reading_resumes_after_the_last_byte_of_a_closed_connection(server, remote, folder):
    server.cut_after = 60_000
    with remote.open_stream("train-000000.tar") as stream:
        assert stream.read() == bytes_of(folder, "train-000000.tar", 0, SIZE)
    assert remote.read_at("train-000000.tar", 0, 80_000) == bytes_of(folder, "train-000000.tar", 0, 80_000)
    assert server.requests[-1].endswith("bytes=60000-79999")


def test_query_of_a_signed_url_is_sent_for_every_file_but_not_shown_in_messages(server, folder):
    storage = ShardStorage(f"{server.url}/?signature=secret")
    assert storage.where == server.url
    assert "secret" not in repr(storage)
    assert storage.read_at("train-000000.tar", 0, 3) == bytes_of(folder, "train-000000.tar", 0, 3)
    assert server.requests[-1].startswith("GET /train-000000.tar?signature=secret ")
    server.failures += [403]
    with pytest.raises(ServiceError) as caught:
        storage.read_at("train-000001.tar", 0, 3)
    assert "secret" not in str(caught.value)


def test_error_messages_of_a_service_are_shown_without_secrets(monkeypatch):
    url = "memory://me:s3cret@shards/set?signature=s1gned"

    def refuse(*args, **options):
        raise PermissionError(f"{url} is not for you")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", refuse)
    with pytest.raises(ServiceError, match="is not for you") as caught:
        ShardStorage(url).read_at("train-000000.tar", 0, 1)
    shown = "".join(traceback.format_exception(caught.value))
    assert not any(secret in shown.partition("PermissionError:")[2] for secret in ("s3cret", "s1gned"))


def test_remote_table_with_too_many_bytes_in_the_manifest_is_refused():
    with pytest.raises(
        InputError, match=r"2,000,000,000,000 bytes according to dataset.json; a table at a URL may have"
    ):
        ShardStorage("http://127.0.0.1:9").table("index.parquet", FileFacts(bytes=2 * 10**12, sha256="0" * 64))


def test_file_names_are_quoted_in_urls(server, remote, folder):
    (folder / "a%2e%2e%2fb?c#d.tar").write_bytes(b"odd")
    assert remote.read_at("a%2e%2e%2fb?c#d.tar", 0, 3) == b"odd"


def test_http_headers_from_storage_options_are_sent(server):
    storage = ShardStorage(server.url, {"headers": {"X-Token": "t"}})
    for reader in (storage, pickle.loads(pickle.dumps(storage))):
        assert reader.read_at("train-000000.tar", 0, 1)
        assert server.headers["X-Token"] == "t"
        assert server.headers["Accept-Encoding"] == "identity"
        server.headers = {}


def test_requests_use_the_proxy_of_the_environment(server, folder, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    storage = ShardStorage("http://data.example.org/sets/")
    with pytest.raises(InputError, match="no such file"):
        storage.read_at("train-000000.tar", 0, 9)
    assert server.requests[-1].startswith("GET http://data.example.org/sets/train-000000.tar ")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert ShardStorage(server.url).read_at("train-000000.tar", 0, 9) == bytes_of(folder, "train-000000.tar", 0, 9)
    assert server.requests[-1].startswith("GET /train-000000.tar ")

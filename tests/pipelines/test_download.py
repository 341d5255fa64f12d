"""Downloads from a server that interrupts transfers, sends wrong data or refuses requests."""

import contextlib
import hashlib
import random
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hgld.errors import ConfigError, InputError, ServiceError, StorageError
from hgld.files import file_lock
from hgld.pipelines.download import Downloader, RemoteFile, download_gldv2
from hgld.pipelines.shards.sources.gldv2 import checksum_name, metadata_names, parse_checksum
from tests.hgld import lying_server as lies
from tests.hgld.range_server import RangeServer
from tests.rows import each_row

DATA = random.Random(0).randbytes(700_000)
MD5 = hashlib.md5(DATA).hexdigest()


@pytest.fixture
def serve(tmp_path_factory):
    """Return ``serve(files)``, which starts a server for a new folder with these files (bytes by path)."""
    with contextlib.ExitStack() as running:

        def run(files: Mapping[str, bytes]) -> RangeServer:
            folder = tmp_path_factory.mktemp("served")
            for path, data in files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(data)
            return running.enter_context(RangeServer(folder))

        yield run


@pytest.fixture
def server(serve):
    return serve({"a.tar": DATA})


def downloader(**given):
    return Downloader(**{"backoff": 0.001, "timeout": 5.0, **given})


def one(server: RangeServer, tmp_path: Path, md5: str | None = MD5, **given: Any) -> RemoteFile:
    return RemoteFile(f"{server.url}/a.tar", tmp_path / "sub" / "a.tar", md5, **given)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_downloaded_file_is_verified_and_not_downloaded_twice(server, tmp_path):
    file = one(server, tmp_path)
    with pytest.raises(ConfigError, match="is not a URL"):
        downloader().fetch([RemoteFile("ftp://example.org/a", tmp_path / "a")])
    (first,) = downloader().fetch([file])
    assert (first.bytes, first.received, first.outcome, first.checked) == (len(DATA), len(DATA), "fetched", True)
    assert file.path.read_bytes() == DATA
    (second,) = downloader().fetch([file])
    assert (second.outcome, second.received) == ("there", 0)
    assert len(server.requests) == 1
    assert left_in(tmp_path) == ["a.tar"]


def test_interrupted_transfer_resumes_after_the_last_received_byte(server, tmp_path):
    server.planned["a.tar"] = [lies.cut_after(300_000), lies.cut_after(100_000), lies.status(503)]
    (got,) = downloader().fetch([one(server, tmp_path)])
    assert got.path.read_bytes() == DATA
    assert got.received == len(DATA)  # resuming transfers no byte twice
    asked = [request.split()[-1] for request in server.requests]
    assert asked == ["all", "bytes=300000-", "bytes=400000-", "bytes=400000-"]


@pytest.mark.parametrize(
    ("kept", "received"), [(DATA, 0), (DATA + b"more", len(DATA)), (b"x" * 100, 2 * len(DATA) - 100)]
)
def test_partial_file_of_an_earlier_run_is_used_only_if_its_bytes_match(server, tmp_path, kept, received):
    file = one(server, tmp_path)
    file.path.parent.mkdir()
    file.part.write_bytes(kept)
    (got,) = downloader().fetch([file])
    assert (got.received, got.path.read_bytes()) == (received, DATA)


@pytest.mark.parametrize("answer", [None, lies.whole, lies.wrong_range])
def test_file_replaced_on_the_server_is_not_appended_to_the_old_partial_file(server, tmp_path, answer):
    changed = DATA[::-1]
    server.planned["a.tar"] = [lies.cut_after(300_000), lies.status(404)]
    with pytest.raises(ServiceError, match=r"1 of 1 files could not be fetched:\n.*HTTP 404[\s\S]*bytes are kept"):
        downloader().fetch([one(server, tmp_path)])
    assert left_in(tmp_path) == ["a.tar.part"]
    (server.folder / "a.tar").write_bytes(changed)
    server.planned["a.tar"] = [answer] if answer else []
    (got,) = downloader().fetch([one(server, tmp_path, hashlib.md5(changed).hexdigest() if answer else None)])
    assert (got.path.read_bytes(), got.checked) == (changed, answer is not None)


def test_file_with_a_wrong_checksum_is_downloaded_once_more_and_then_refused(server, tmp_path):
    server.planned["a.tar"] = [lies.other_bytes]
    (got,) = downloader().fetch([one(server, tmp_path)])
    assert got.path.read_bytes() == DATA
    got.path.write_bytes(b"rotten")  # the checksum differs, so the file is downloaded again
    server.planned["a.tar"] = [lies.other_bytes] * 2
    with pytest.raises(ServiceError, match=rf"bytes have the MD5 [0-9a-f]{{32}}, but the published MD5 is {MD5}"):
        downloader().fetch([one(server, tmp_path)])
    assert not got.path.exists()
    assert got.path.with_name("a.tar.part").stat().st_size == 0


REFUSED = [
    (lies.status(403), {}, "responded with HTTP 403"),
    (lies.status(302, f"Location: http://{'a' * 300}/"), {}, r"a\.tar does not lead to a file"),
    (lies.endless, {"md5": None, "most_bytes": 1_000_000}, "more bytes than the 1,000,000 expected"),
    (lies.gzip, {"md5": None}, "was sent compressed"),
    (lies.without_length, {"md5": None}, "without its length and has no checksum"),
    (lies.whole, {"most_bytes": 1000}, "has 700,000 bytes; expected at most 1,000"),
]


@pytest.mark.parametrize(("answer", "given", "said"), REFUSED, ids=[said for _, _, said in REFUSED])
def test_invalid_response_is_refused_without_a_retry(server, tmp_path, answer, given, said):
    server.planned["a.tar"] = [answer] * 9
    with pytest.raises(ServiceError, match=said):
        downloader().fetch([one(server, tmp_path, **given)])
    assert len(server.requests) == 1
    assert not (tmp_path / "sub" / "a.tar").exists()


def test_only_attempts_without_progress_count_towards_the_retry_limit(server, tmp_path):
    server.planned["a.tar"] = [lies.status(503)] * 9
    with pytest.raises(ServiceError, match="status 503; given up after several attempts"):
        downloader(retries=3).fetch([one(server, tmp_path)])
    assert len(server.requests) == 3
    server.planned["a.tar"] = [lies.cut_after(80_000)] * 8
    (got,) = downloader(retries=3).fetch([one(server, tmp_path)])
    assert got.path.read_bytes() == DATA
    server.planned["a.tar"] = [lies.cut_after(80_000)] * 9
    with pytest.raises(ServiceError, match="given up after several attempts"):  # without a checksum, from zero again
        downloader(retries=3).fetch([RemoteFile(f"{server.url}/a.tar", tmp_path / "b.tar")])


def test_error_messages_hide_user_and_password(server, tmp_path):
    url = server.url.replace("//", "//me:s3cret@") + "/a.tar"
    server.planned["a.tar"] = [lies.status(403)]
    with pytest.raises(ServiceError, match=rf"{server.url}/a\.tar responded with HTTP 403") as caught:
        downloader().fetch([RemoteFile(url, tmp_path / "a.tar")])
    assert "s3cret" not in str(caught.value)


def test_retry_after_header_is_obeyed(server, tmp_path, monkeypatch):
    waits: list[float] = []
    one_by_one = downloader()
    monkeypatch.setattr(one_by_one._stop, "wait", waits.append)
    server.planned["a.tar"] = [lies.status(503, "Retry-After: 7"), lies.status(429, "Retry-After: x")]
    one_by_one.fetch([one(server, tmp_path)])
    assert waits[0] == 7
    assert waits[1] < 1


def test_stalled_transfer_is_interrupted_and_resumed(server, tmp_path):
    server.planned["a.tar"] = [lies.trickle]
    (got,) = downloader(timeout=0.2).fetch([one(server, tmp_path)])
    assert got.path.read_bytes() == DATA


def test_second_download_of_a_file_in_progress_is_refused(server, tmp_path):
    file = one(server, tmp_path)
    file.path.parent.mkdir()
    with file_lock(file.part), pytest.raises(StorageError, match="being written by another process"):
        downloader().fetch([file])


def test_unreachable_server_fails_without_retries(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ServiceError, match=r"cannot be reached .* Check the address"):
        downloader(backoff=60).fetch([RemoteFile(f"http://127.0.0.1:{port}/a", tmp_path / "a")])


def test_files_are_downloaded_in_parallel_and_a_failure_does_not_stop_other_files(serve, tmp_path):
    files = {f"{n}.tar": bytes([n]) for n in range(8)}
    told: list[tuple] = []
    in_company: list[bool] = []
    another = threading.Event()

    def answer_in_company(asked):
        """Answer the first request only after another has arrived, which proves that downloads run in parallel."""
        in_company.append(another.wait(3))  # wait less than the client's timeout
        asked.honest()

    def answer_another(asked):
        another.set()
        asked.honest()

    server = serve(files)
    server.planned = {"0.tar": [answer_in_company], "1.tar": [answer_another], "3.tar": [lies.status(404)]}
    wanted = [RemoteFile(f"{server.url}/{name}", tmp_path / name) for name in files]
    with pytest.raises(ServiceError, match="1 of 8 files"):
        downloader(workers=4, progress=lambda *step: told.append(step)).fetch(wanted)
    assert in_company == [True]
    assert left_in(tmp_path) == sorted((set(files) - {"3.tar"}) | {"3.tar.part"})
    assert ("files", 8, 8) in told


def test_interrupted_download_ends_soon_and_keeps_received_bytes(serve, tmp_path):
    def stop(task: str, done: int, total: int | None) -> None:
        if task == "files":
            while not (tmp_path / "b.tar.part").is_file():
                time.sleep(0.01)
            raise KeyboardInterrupt

    names = ("a.tar", "b.tar", "c.tar")
    server = serve(dict(zip(names, (b"small", DATA, DATA), strict=True)))
    server.planned["b.tar"] = [lies.trickle]
    wanted = [RemoteFile(f"{server.url}/{name}", tmp_path / name) for name in names]
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        downloader(progress=stop, timeout=60, workers=1).fetch(wanted)
    assert time.monotonic() - began < 5
    assert left_in(tmp_path) == ["a.tar", "b.tar.part"]
    assert downloader(timeout=0.5).fetch(wanted)[0].outcome == "there"


# -- GLDv2 ----------------------------------------------------------------------------------------------------------


def gldv2_site(tars: int = 3) -> dict[str, bytes]:
    site = {f"index/images_{n:03d}.tar": random.Random(n).randbytes(50_000) for n in range(tars)}
    digests = [hashlib.md5(data).hexdigest() for data in site.values()]
    sums = {checksum_name("index", n): f"{md5}  images_{n:03d}.tar\n".encode() for n, md5 in enumerate(digests)}
    return site | sums | {name: name.encode() for name in metadata_names(["index"])}


@each_row("text", ["", "abc  images_000.tar", f"{'0' * 32}  images_001.tar"])
def test_invalid_checksum_file_is_refused(text):
    with pytest.raises(InputError, match=r"x\.txt says .* expected 32 hex digits and images_000\.tar"):
        parse_checksum(text, "images_000.tar", "x.txt")
    assert parse_checksum(f"{'A' * 32} *./images_000.tar\n", "images_000.tar", "x.txt") == "a" * 32


def test_gldv2_tars_and_lists_are_downloaded_and_verified(serve, tmp_path):
    server = serve(gldv2_site())
    server.planned["index/images_001.tar"] = [lies.cut_after(100)]
    fetched = download_gldv2(tmp_path, "index", [2, 1], downloader(), has_lists=True, base_url=server.url)
    assert [f.path.relative_to(tmp_path).as_posix() for f in fetched] == [
        *metadata_names(["index"]),
        "index/images_001.tar",
        "index/images_002.tar",
    ]
    assert [f.checked for f in fetched] == [False] * 3 + [True] * 2
    server.planned["index/images_000.tar"] = [lies.other_bytes] * 2
    with pytest.raises(ServiceError, match=r"images_000\.tar: the received bytes have the MD5"):
        download_gldv2(tmp_path, "index", [0], downloader(), base_url=server.url)


def test_download_command_reports_outcomes(output, json_of, serve, tmp_path):
    where = ("--out", tmp_path, "--base-url", serve(gldv2_site(4)).url)
    told = json_of("download", "gldv2", "--split", "index", "--tars", "0-2,3", *where)
    assert [file["outcome"] for file in told["files"]] == ["fetched"] * 4
    out = output("download", "gldv2", "--split", "index", "--tars", "0", "--metadata", *where)
    assert "4 files" in out
    assert "1 there already" in out
    assert out.endswith(f"next: hgld build-shards gldv2 --source {tmp_path} --out SHARDS\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gldv2", "--split", "index"), "give --tars, --metadata"),
        (("gldv2", "--split", "index", "--tars", "99-100"), "its tars are 0-99"),
        (("sop", "--split", "index", "--tars", "0"), "hgld datasets sop"),
    ],
)
def test_download_command_refuses_invalid_arguments(refusal, tmp_path, arguments, said):
    assert said in refusal("download", *arguments, "--out", str(tmp_path))
    assert not left_in(tmp_path)

"""Reading from a malicious server ends in time, with little memory and a one-line error."""

import hashlib
import math
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hgld import stream
from hgld.data.dataset import open_dataset
from hgld.data.http_files import Deadline, HttpLimits, _Watch
from hgld.data.storage import READING, ReadingPolicy, ShardStorage
from hgld.errors import ConfigError, HgldError, InputError, ServiceError
from hgld.pipelines.download import Downloader, RemoteFile
from hgld.pipelines.web import AnswerError, PoliteClient
from tests.hgld.lying_server import LIES
from tests.hgld.range_server import Asked, serve
from tests.hgld.small_dataset import write_dataset
from tests.hgld.streamed_dataset import VIEW, grouped_items

SHORT = {"connect": 2, "headers": 0.4, "silence": 0.4, "whole": 0.8, "slowest": 1 << 22, "attempts": 2}
DEADLINE = 20.0  # seconds per reading on a busy machine; the limits above sum to two seconds
MOST_MEMORY = 100 << 20  # maximum bytes by which a reading may increase memory; some servers never stop sending


@pytest.fixture(scope="module")
def folder(module_path):
    write_dataset(module_path, grouped_items([4] * 16), per_shard=16)
    return module_path


@pytest.fixture
def server(folder):
    with serve(folder) as server:
        yield server


def first_of_stream(url):
    next(iter(stream(url, 8, 2, view=VIEW, num_streams=4, storage_options={"limits": SHORT})))


def first_of_bare_shards(url):
    urls = f"{url}/train-{{000000..000003}}.tar"
    options = {"view": VIEW, "num_streams": 4, "batches_per_epoch": 4, "storage_options": {"limits": SHORT}}
    next(iter(stream(urls, 8, 2, **options)))


def opened(url):
    open_dataset(url, "train", storage_options={"limits": SHORT})


def one_range(url):
    ShardStorage(url, {"limits": SHORT}).read_at("train-000000.tar", 512, 700)


def several_ranges(url):
    requests = [("train-000000.tar", 0, 500), ("train-000001.tar", 0, 500)] * 2
    ShardStorage(url, {"limits": SHORT}).read_many(requests)


def downloaded(url, out, folder):
    data = (folder / "train-000000.tar").read_bytes()
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    downloader = Downloader(retries=2, timeout=0.4, backoff=0.01)
    downloader.fetch([RemoteFile(f"{url}/train-000000.tar", out / "a.tar", md5, most_bytes=len(data))])


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def lied_to(server, read, lie, about=".tar"):
    """Read from a lying server and return the error message, or an empty string if the lie did no harm."""
    read_before = peak()
    server.lie, server.about = LIES[lie], about
    began = time.monotonic()
    message = ""
    try:
        read(server.url)
    except HgldError as error:
        message = str(error)
    assert time.monotonic() - began < DEADLINE
    assert peak() - read_before < MOST_MEMORY
    if not message and lie in _HARMLESS:
        return ""
    assert server.url in message
    assert len(message) < 1500
    assert " at 0x" not in message
    assert "s3cret" not in message
    return message


_HARMLESS = ("endless_trailer",)  # all bytes arrive correctly, and hgld ignores the trailing lines

# Lies that hgld detects at once, without an index.
_QUICK = [
    *("endless", "long", "ranges_ignored", "wrong_range", "no_range", "gzip", "redirect_loop", "redirect_in_disguise")
]
_FOR_RANGES = ("wrong_range", "no_range")  # these responses are valid for a request of the whole file


@pytest.mark.parametrize("lie", _QUICK)
def test_responses_that_do_not_match_the_request_are_refused(lie, server):
    message = lied_to(server, one_range, lie)
    assert "Try again later" not in message  # a retry would get the same invalid response
    assert server.count == 1 or lie == "redirect_loop"


_PARTLY = ("trickle", "silence", "reset", "endless_whole")  # lies that differ if there are several requests
_READINGS = [  # function that reads, part of the names of the affected files, lies
    (one_range, ".tar", [lie for lie in LIES if lie not in (*_QUICK, "other_bytes")]),
    (several_ranges, ".tar", ("short", *_PARTLY)),
    (first_of_stream, ".tar", ("trickle", "other_bytes")),
    (first_of_bare_shards, ".tar", ("silence", "redirect_elsewhere")),
    (opened, "index.parquet", ("endless_whole", "other_bytes")),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("read", "about", "lie"),
    [pytest.param(read, about, lie, id=f"{read.__name__}-{lie}") for read, about, lies in _READINGS for lie in lies],
)
def test_every_reading_from_a_lying_server_ends_in_time_with_one_error(read, about, lie, server):
    lied_to(server, read, lie, about)


@pytest.mark.slow
@pytest.mark.parametrize("lie", [lie for lie in LIES if lie not in _FOR_RANGES])
def test_downloads_from_a_lying_server_end_with_a_complete_file_or_one_error(lie, server, folder, tmp_path):
    message = lied_to(server, lambda url: downloaded(url, tmp_path, folder), lie)
    assert (tmp_path / "a.tar").exists() is (message == "")
    assert not message or "received bytes are kept" in message


@pytest.mark.parametrize("verb", ["verify", "index"])
def test_subcommands_for_local_folders_refuse_urls(verb, refusal):
    assert "'http://127.0.0.1:9/set' is a URL" in refusal(verb, "http://127.0.0.1:9/set")


# -- redirects, credentials and certificates -----------------------------------------------------------------------


def redirecting(target: str) -> Callable[[Asked], None]:
    return lambda asked: asked.head("Content-Length: 0", f"Location: {target}", status="307 Elsewhere")


def test_redirects_to_allowed_hosts_carry_no_credentials(server, folder):
    seen = []
    with serve(folder) as other:
        server.lie = redirecting(f"{other.url}/train-000000.tar?signature=s3cret")
        host = other.url.removeprefix("http://")
        options = {"headers": {"Authorization": "Bearer s3cret"}, "limits": SHORT}
        with pytest.raises(ServiceError, match=r"redirects to another host.*--allow-redirects-to HOST") as caught:
            ShardStorage(server.url, options).read_at("train-000000.tar", 0, 9)
        assert "s3cret" not in str(caught.value)
        assert other.count == 0

        def look(asked):
            seen.append(dict(asked.handler.headers))
            asked.honest()

        other.lie = look
        before = READING.set(ReadingPolicy(allow_redirects_to=(host,)))
        try:
            allowed = ShardStorage(server.url, options)
        finally:
            READING.reset(before)
        expected = (folder / "train-000000.tar").read_bytes()[:9]
        assert allowed.read_at("train-000000.tar", 0, 9) == expected
        assert "Authorization" not in seen[0]


def test_public_host_names_that_resolve_to_private_addresses_are_refused(server, monkeypatch):
    port = int(server.url.rpartition(":")[2])
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: resolve("127.0.0.1", *rest, **more))
    url = f"http://data.example.org:{port}"
    with pytest.raises(
        ServiceError, match=r"data.example.org resolves to the private address 127.0.0.1.*--allow-private"
    ):
        ShardStorage(url, {"limits": SHORT}).read_at("train-000000.tar", 0, 9)
    named = ShardStorage(url, {"limits": SHORT, "allow_private": ["data.example.org"]})
    assert len(named.read_at("train-000000.tar", 0, 9)) == 9


def test_user_and_password_are_sent_to_the_host_but_not_shown_in_messages(server, folder):
    seen = []
    server.lie = lambda asked: (seen.append(asked.handler.headers["Authorization"]), asked.honest())[1]
    storage = ShardStorage(server.url.replace("//", "//me:s3cret@"), {"limits": SHORT})
    assert storage.read_at("train-000000.tar", 0, 9) == (folder / "train-000000.tar").read_bytes()[:9]
    assert seen == ["Basic bWU6czNjcmV0"]
    server.lie = LIES["redirect_to_a_file"]
    with pytest.raises(ServiceError) as caught:
        storage.read_at("train-000000.tar", 0, 9)
    assert "s3cret" not in str(caught.value) + repr(storage)


def test_untrusted_certificate_ends_the_connection(folder, tmp_path):
    """A self-signed certificate of 127.0.0.1 is trusted only with ``ca_file``, and only for this address."""
    certificate = Path(__file__).with_name("localhost.pem")
    with serve(folder, certificate) as server:
        options = {"limits": SHORT, "ca_file": str(certificate)}
        elsewhere = server.url.replace("127.0.0.1", "localhost")
        for url, given in ((server.url, {"limits": SHORT}), (elsewhere, options)):
            with pytest.raises(ServiceError, match=r"connection is not safe .*certificate") as caught:
                ShardStorage(url, given).read_at("train-000000.tar", 0, 9)
            assert url in str(caught.value)
        with pytest.raises(ServiceError, match=r"connection is not safe .*Check the address and the certificate"):
            downloaded(server.url, tmp_path, folder)
        client = PoliteClient((server.url,), rate=1000)
        with pytest.raises(AnswerError, match=r"connection is not safe .*certificate"):
            client.page(server.url)
        assert client.requests == 1  # the client does not retry, because the certificate would still be untrusted
        expected = (folder / "train-000000.tar").read_bytes()[:9]
        assert ShardStorage(server.url, options).read_at("train-000000.tar", 0, 9) == expected


def test_only_requested_bytes_extend_the_deadline():
    limits = HttpLimits(whole=100, slowest=10)
    deadline = Deadline(limits)
    watch = _Watch(limits, deadline, asked=50)
    watch.in_headers = False
    for _ in range(3):
        watch.came(1_000_000)
    assert deadline.left() <= 100 + 50 / 10


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"limits": {"slowest": 0}}, "limits of http.*: slowest is 0; expected a number above 0"),
        ({"limits": {"headers": math.nan}}, "limits of http.*: headers is nan; expected a number above 0"),
        ({"limits": {"attempts": 2.5}}, "limits of http.*: attempts is 2.5; expected a whole number"),
        ({"limits": 5}, "limits.*: .*must be a mapping, not int; expected keywords connect, headers"),
        ({"client_kwargs": {}}, "storage options of http.*: client_kwargs; expected only headers"),
        ({"headers": {"Authorization": "Bearer s3cret\n"}}, "header Authorization of http"),
    ],
)
def test_invalid_options_of_http_are_refused_without_secrets(option, said):
    with pytest.raises(ConfigError, match=said) as caught:
        ShardStorage("http://127.0.0.1:9", option).exists("dataset.json")
    assert "s3cret" not in str(caught.value)


# -- bytes of the index ------------------------------------------------------------------------------------------------


def test_changed_shard_fails_its_checksum(folder):
    with serve(folder) as server:
        dataset = open_dataset(server.url, "train")
        server.lie = LIES["other_bytes"]
        message = rf"item 3, key 'train/0003': {server.url}/train-000000.tar: .* do not have the SHA-256 in the index"
        with pytest.raises(InputError, match=message):
            dataset.read_many([3, 4])
        unverified = open_dataset(server.url, "train", verify_reads=False)
        assert unverified.read(3) != open_dataset(folder, "train", verify_reads=True).read(3)

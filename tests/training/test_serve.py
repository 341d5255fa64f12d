"""The page of ``hgld serve``: the matches of a photo, its bounds, and the page in a browser."""

import html
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
import webbrowser
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import urlopen

import pytest
from starlette.testclient import TestClient

from hgld import open_dataset
from hgld.cli.search_commands import _matches_page
from hgld.local_server import serving, show_page
from hgld.training.inference import serve
from hgld.training.inference.embedder import trained_embedder
from hgld.training.inference.kept import embed_once
from hgld.training.inference.search import search
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.hgld.test_images import GREEDY
from tests.rows import each_row
from tests.training.untrained_run import write_run

TOKEN = {"X-Hgld-Token": "secret"}
HOSTILE = "<img src=x onerror=alert(1)>\u202e.jpg"


@pytest.fixture(scope="module")
def searcher(module_path):
    write_dataset(module_path / "data", items_of_classes([3] * 6, ("test",), per_coarse=3))
    write_run(module_path / "run")
    dataset = open_dataset(module_path / "data")
    with (
        pytest.MonkeyPatch.context() as patch,
        trained_embedder(module_path / "run", data="", device="cpu") as embedder,
    ):
        patch.setenv("XDG_CACHE_HOME", str(module_path / "cache"))
        embedded = embed_once(embedder, dataset)
        gallery = embedded.vectors, embedded.positions(len(dataset))
        yield serve.Searcher(embedder, dataset, gallery, {"k": 5, "calibration": None})


@pytest.fixture
def client(searcher):
    return TestClient(serve.application(searcher, "secret"), base_url="http://127.0.0.1:8123")


def tiles(text):
    """Return the classes of the matches, best first."""
    return [json.loads(html.unescape(found)) for found in re.findall(r'data-classes="(.*?)"', text)]


def test_photo_finds_itself_and_a_class_restricts_the_search(client, searcher):
    photo = searcher.dataset.read(4)
    answer = client.post("/api/search", params={"name": HOSTILE}, content=photo, headers=TOKEN)
    assert answer.status_code == 200
    found = tiles(answer.text)
    own = searcher.dataset.hierarchy.names[0][int(searcher.dataset.labels[4, 0])]
    assert len(found) == 5
    assert found[0]["fine"] == own
    assert answer.text.count("data:image/jpeg") == 6
    assert html.escape(HOSTILE, quote=False) in answer.text.replace("&#34;", '"')
    other = {"level": "coarse", "class": "1" if found[0]["coarse"] == "0" else "0"}
    restricted = client.post("/api/search", params=other, content=photo, headers=TOKEN).text
    assert {classes["coarse"] for classes in tiles(restricted)} == {other["class"]}


@each_row(
    ("change", "status", "said"),
    [
        ({"headers": {}}, 403, "token"),
        ({"headers": TOKEN | {"Origin": "http://evil.example"}}, 403, "own page"),
        ({"headers": TOKEN | {"Host": "evil.example"}}, 403, "own address"),
        ({"content": b"not an image"}, 422, "error"),
        ({"content": b""}, 422, "error"),
        ({"content": GREEDY["pixels of a JPEG"][0]()}, 422, "pixels"),
        ({"content": bytes(serve.MOST_BYTES + 1)}, 413, "limit is 32 MiB"),
        ({"params": {"level": "kind", "class": "x"}}, 422, "unknown level"),
        ({"params": {"level": "coarse", "class": "x"}}, 422, "unknown class"),
    ],
)
def test_requests_that_are_foreign_too_large_or_wrong_are_refused(client, searcher, change, status, said):
    asked = {"content": searcher.dataset.read(0), "headers": TOKEN, "params": {}} | change
    answer = client.post("/api/search", **asked)
    assert answer.status_code == status
    assert said in answer.text


def test_page_has_no_data_and_allows_only_its_own_script_and_server(client):
    answer = client.get("/")
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]+)"', answer.text)
    assert {"default-src 'none'", "connect-src 'self'", "img-src data:"} <= set(policy.split("; "))
    assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"
    assert "data:image" not in answer.text
    assert "test-000000" not in answer.text
    assert client.get("/api/search", headers=TOKEN).status_code == 405


def test_browser_gets_the_token_from_a_private_file(monkeypatch):
    given: list[str] = []
    monkeypatch.setattr(webbrowser, "open", given.append)
    show_page("http://127.0.0.1:1/#secret-token")
    assert "secret-token" not in given[0]
    file = Path(unquote(urlsplit(given[0]).path))
    assert "url=http://127.0.0.1:1/#secret-token" in file.read_text()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)] == [0o600, 0o700]


@pytest.mark.slow
def test_click_on_a_class_of_a_search_page_shows_only_its_images_until_the_next_click(searcher, chromium, tmp_path):
    photos = [searcher.dataset.read(4), searcher.dataset.read(13)]
    found = search(searcher.embedder, photos, searcher.dataset, gallery=searcher.gallery, k=18).found
    page_text = _matches_page(found, [], searcher.dataset, {})
    (tmp_path / "found.html").write_text(page_text, encoding="utf-8")
    shown = (
        "[...document.querySelectorAll('[data-classes]')].filter(one => !one.hidden).map(one => one.dataset.classes)"
    )
    chromium.open((tmp_path / "found.html").as_uri())
    chromium.until(f"{shown}.length === 36")
    button = "document.querySelectorAll('.matches')[1].querySelectorAll('nav button')[1]"
    chromium.run(f"{button}.focus()")
    chromium.press("Enter")
    chromium.until(f"{shown}.length === 18 + 3")  # all matches of the first photo, and one class of the second
    name = chromium.run(f"{button}.dataset.class")
    assert {json.loads(one)["fine"] for one in chromium.run(shown)[18:]} == {name}
    assert chromium.run("document.querySelectorAll('.matches output')[1].textContent") == "3 of 18 shown"
    chromium.press("Enter")
    chromium.until(f"{shown}.length === 36")
    assert chromium.errors == []


@pytest.mark.slow
def test_dropped_photo_shows_its_matches_and_a_click_on_a_class_searches_it(searcher, chromium):
    addresses: list[str] = []
    server = serving(partial(serve.application, searcher), 0, addresses.append)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not addresses:
            time.sleep(0.02)
        chromium.open(addresses[0])
        chromium.until("document.querySelector('#photos') !== null && location.hash === ''")
        photo = list(searcher.dataset.read(4))
        drop = (
            f"(() => {{ const files = new DataTransfer(); files.items.add(new File([new Uint8Array({photo})], "
            f"{json.dumps(HOSTILE)})); document.body.dispatchEvent(new DragEvent('drop', "
            "{ dataTransfer: files, bubbles: true })); })()"
        )
        chromium.run(drop)
        chromium.until("document.querySelectorAll('.matches img').length === 6")
        chromium.until("document.querySelector('[role=status]').textContent.endsWith('found.')")
        assert chromium.run("document.querySelector('.matches h2').textContent") == HOSTILE
        chromium.run("document.querySelector('.matches nav button').focus()")
        chromium.press("Enter")
        chromium.until("document.querySelector('.matches nav button').getAttribute('aria-pressed') === 'true'")
        shown = chromium.run("[...document.querySelectorAll('[data-classes]')].map(one => one.dataset.classes)")
        assert len({json.loads(one)["coarse"] for one in shown}) == 1
        for width in (420, 1280):
            chromium.resize(width, 900)
            chromium.until(f"window.innerWidth === {width} && document.documentElement.scrollWidth <= {width}")
        assert (chromium.errors, chromium.dialogs) == ([], [])
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.slow
def test_command_prints_its_address_as_json_and_ends_after_ctrl_c(tmp_path):
    write_dataset(tmp_path / "data", items_of_classes([3] * 6, ("test",), per_coarse=3))
    write_run(tmp_path / "run")
    command = [sys.executable, "-m", "hgld", "serve", str(tmp_path / "run"), "--data", str(tmp_path / "data"), "--json"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with subprocess.Popen([*command, "--device", "cpu"], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        assert address.startswith("http://127.0.0.1:")
        with urlopen(address) as page:  # an address on this machine
            assert b"<html" in page.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)

"""The page of a search: its pictures in it, nothing to load, names that are text."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from hgld import open_dataset
from hgld.errors import StorageError
from hgld.training.inference import search as module
from hgld.training.inference.search import Match, QueryMatches, write_search_page
from tests.fake_releases.pictures import jpeg
from tests.hgld.small_dataset import items_of_classes, write_dataset


@pytest.fixture
def found(tmp_path):
    write_dataset(tmp_path / "data", items_of_classes([3], ["test"]))
    dataset = open_dataset(tmp_path / "data", "test")
    query = tmp_path / "<b>&query.jpg"
    query.write_bytes(jpeg(np.random.default_rng(0), orientation=6))
    names = {"fine": "<script>alert(1)</script>", "coarse": None}
    matches = tuple(Match(rank, 1 / rank, dataset.keys[i], i, names) for rank, i in ((1, 2), (2, 0)))
    return [QueryMatches(str(query), matches)], dataset


def pictures(page):
    uris = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page)
    return [Image.open(io.BytesIO(base64.b64decode(uri))) for uri in uris]


def test_it_holds_the_pictures_and_loads_nothing(found, tmp_path):
    write_search_page(tmp_path / "page.html", *found)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    query, *items = pictures(page)
    assert query.size == (32, 40)  # upright
    assert [picture.size for picture in items] == [(40, 32)] * 2
    assert not re.search(r"(src|href)=\"(?!data:)|url\(|@import|<script", page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&lt;b&gt;&amp;query.jpg" in page
    assert page.count("unknown") == 2
    expected = np.asarray(found[1].image(2), dtype=float)
    assert np.abs(np.asarray(items[0], dtype=float) - expected).mean() < 4


def test_it_stays_small(found, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOST_BYTES", 1500)
    write_search_page(tmp_path / "page.html", *found)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert 1 <= len(pictures(page)) < 3
    assert "no room on this page" in page


def test_what_has_no_room_is_not_opened(found, tmp_path, monkeypatch):
    answers, dataset = found
    opened = []
    monkeypatch.setattr(type(dataset), "image", lambda self, index: opened.append(index))
    monkeypatch.setattr(module, "_MOST_BYTES", 1)
    write_search_page(tmp_path / "page.html", answers, dataset)
    assert opened == []
    assert (tmp_path / "page.html").read_text(encoding="utf-8").count("no room on this page") == 2


def test_where_it_cannot_be_written_is_named(found, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/page\.html"):
        write_search_page(tmp_path / "file" / "page.html", *found)

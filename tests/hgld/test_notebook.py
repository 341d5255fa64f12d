"""Notebook views are complete HTML of limited size that escapes names; trees are shown as text."""

import re
from html.parser import HTMLParser

import numpy as np

import hgld
from hgld.evaluation.report import RetrievalReport
from tests.hgld.small_dataset import Item, items_of_classes, write_dataset

EVIL = "<script>alert(1)</script>\x1b[2J\"'><img src=x onerror=alert(2)>"
TEXT = {"p", "b", "br", "div", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"}


class Visible(HTMLParser):
    """Parser that collects the text and the tags of a page."""

    def __init__(self):
        super().__init__()
        self.said, self.tags = [], []

    def handle_data(self, data):
        self.said.append(data)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, attrs))


def drawn(thing) -> Visible:
    page = Visible()
    page.feed(thing._repr_html_())
    for tag, attributes in page.tags:
        assert tag in {*TEXT, "figure", "img"}
        for name, value in attributes:
            assert name in {"style", "title", "alt", "src"}
            assert name != "src" or re.fullmatch(r"data:image/jpeg;base64,[A-Za-z0-9+/=]+", value)
    assert "\x1b" not in "".join(page.said)
    return page


def images_of(page: Visible) -> list[dict[str, str]]:
    return [dict(attributes) for tag, attributes in page.tags if tag == "img"]


def test_notebook_view_of_a_report_shows_values_and_settings():
    columns = {"AP/fine": np.full(50, 0.5), f"H-AP/{EVIL}": np.full(50, np.nan)}
    report = RetrievalReport.from_columns(columns, {EVIL: EVIL, "levels": ["fine"]}, of_set={"NMI": 0.25})
    page = drawn(report)
    assert {"AP/fine", "0.5000", "0.2500", "undefined", "50", "Settings (3)"} <= set(page.said)
    assert sum(EVIL[:8] in text for text in page.said) == 3


def test_notebook_view_of_a_dataset_shows_sample_images_with_class_names_of_all_levels(tmp_path):
    items = items_of_classes([30, 20])
    items[0] = Item((0, 0), "train", b"not a picture")
    write_dataset(tmp_path, items)
    dataset = hgld.open_dataset(tmp_path, "train")
    names = ((EVIL, "b"), ("c" * 9000,))
    dataset.hierarchy = hgld.Hierarchy(("fine", "coarse"), names, dataset.hierarchy.parents)
    page = drawn(dataset)
    assert "small, train: 50 items" in page.said
    assert "12 of 50 items, evenly spaced." in page.said
    shown = images_of(page)
    assert len(shown) == 11  # the first image is corrupt: the page shows the error instead
    assert any("train/0000" in text and "shard" not in text for text in page.said)
    assert shown[0]["alt"].startswith("<script>alert(1)</script>\\x1b[2J")
    assert len(dataset._repr_html_()) < 100_000


def test_notebook_views_of_empty_and_remote_datasets_show_no_images(tmp_path):
    write_dataset(tmp_path, items_of_classes([3]))
    dataset = hgld.open_dataset(tmp_path)
    assert len(images_of(drawn(dataset))) == 3
    assert not images_of(drawn(dataset.select([])))
    dataset.storage.is_local = False
    at_url = drawn(dataset)
    assert not images_of(at_url)
    assert not any("evenly spaced" in text for text in at_url.said)

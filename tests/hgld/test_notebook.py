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
    """Parser that checks the tags of a page, and collects its text and its images."""

    def __init__(self):
        super().__init__()
        self.said, self.images = [], []

    def handle_data(self, data):
        assert "\x1b" not in data
        self.said.append(data)

    def handle_starttag(self, tag, attrs):
        assert tag in {*TEXT, "figure", "img"}
        for name, value in attrs:
            assert name in {"style", "title", "alt", "src"}
            assert name != "src" or re.fullmatch(r"data:image/jpeg;base64,[A-Za-z0-9+/=]+", value)
        self.images += [dict(attrs)] * (tag == "img")


def drawn(thing):
    page = Visible()
    page.feed(thing._repr_html_())
    return page


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
    assert {"small, train: 50 items", "12 of 50 items, evenly spaced."} <= set(page.said)
    assert len(page.images) == 11  # the first image is corrupt: the page shows the error instead
    assert any("train/0000" in text and "shard" not in text for text in page.said)
    assert page.images[0]["alt"].startswith("<script>alert(1)</script>\\x1b[2J")
    assert len(dataset._repr_html_()) < 100_000


def test_notebook_views_of_empty_and_remote_datasets_show_no_images(tmp_path):
    write_dataset(tmp_path, items_of_classes([3]))
    dataset = hgld.open_dataset(tmp_path)
    assert len(drawn(dataset).images) == 3
    assert not drawn(dataset.select([])).images
    dataset.storage.is_local = False
    assert not drawn(dataset).images

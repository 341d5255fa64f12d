"""Colours that the colour-blind can tell apart, the data of the icicle, and the icicle in a browser."""

import itertools
import json
import re
import time

import numpy as np
import pytest
from hypothesis import given

from hgld import Hierarchy
from hgld.html_page import PAGES
from hgld.report_page.figures import GRADES, SERIES, grade_color
from hgld.tree_drawing import icicle
from tests.hgld.small_dataset import items_of_classes, write_dataset
from tests.hgld.small_trees import hierarchies
from tests.pipelines.headless_chromium import CHROMIUM, Page
from tests.rows import each_row

# Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of color vision deficiency", 2009,
# severity 1; applied to linear RGB. Grey keeps the luminance.
SIGHTS = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
    "grey": np.tile([0.2126, 0.7152, 0.0722], (3, 1)),
}
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]])


def lab(color, sight):
    """Return a colour in CIELAB, where distances are differences that people see."""
    rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = XYZ @ np.clip(np.array(SIGHTS[sight]) @ linear, 0, 1) / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@each_row("sight", SIGHTS)
def test_neighbouring_grades_can_be_told_apart_with_any_number_of_levels(sight):
    for levels in range(1, 10):
        colors = [lab(grade_color(grade, levels), sight) for grade in range(levels + 1)]
        assert min(np.linalg.norm(one - other) for one, other in itertools.pairwise(colors)) >= 24


def test_page_and_figures_have_the_same_colours():
    theme, page = ((PAGES / name).read_text().split("@media")[0] for name in ("theme.css", "page.css"))
    assert dict(re.findall(r"--(g\d):(#\w+)", theme)) == {f"g{i}": color for i, color in enumerate(GRADES)}
    assert dict(re.findall(r"--(s\d):(#\w+)", page)) == {f"s{i}": color for i, color in enumerate(SERIES)}


@given(hierarchies())
def test_icicle_has_every_class_with_its_parent_items_and_mean_measure(tree):
    rng = np.random.default_rng(tree.num_classes[0])
    labels = tree.expand(rng.integers(0, tree.num_classes[0], 20))
    share = rng.choice([0.0, 0.25, 1.0, np.nan], 20)
    shown = rng.integers(0, 20, 5)
    data = icicle(tree.levels, lambda c, label: tree.names[c][label], labels, "images", {"error": share}, shown=shown)
    for item, path in zip(shown, data["paths"], strict=True):
        places = zip(map(int, path.split()), data["levels"], strict=True)
        named = [None if i < 0 else level["names"][i] for i, level in places]
        assert named == [None if label < 0 else tree.names[c][label] for c, label in enumerate(labels[item].tolist())]
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    present = [sorted({*labels[:, c].tolist()} - {-1}) for c in range(len(tree.levels))]
    for c, level in enumerate(data["levels"]):
        assert level["names"] == [tree.names[c][label] for label in present[c]]
        for i, label in enumerate(present[c]):
            of = labels[:, c] == label
            assert level["items"][i] == of.sum()
            known = share[of & ~np.isnan(share)]
            expected = pytest.approx(known.mean(), abs=1e-4) if len(known) else None
            assert data["measures"]["error"][c][i] == expected
            above = labels[of, c + 1][0] if c + 1 < len(tree.levels) else -1
            assert level["parents"][i] == (-1 if above < 0 else present[c + 1].index(above))


ODD = ["#1b2530", "url(#a)", "$x$", "x" * 200, "שלום \u202eabc", "🏰 castle", "</script><b>owned", "a  b"]


def test_tree_of_a_dataset_shows_an_image_of_every_class_and_tree_of_a_taxonomy_shows_none(output, tmp_path):
    write_dataset(tmp_path / "data", items_of_classes([3] * 4, ("test",), per_coarse=2))
    output("show", tmp_path / "data", "--html", tmp_path / "data.html")
    text = (tmp_path / "data.html").read_text()
    shown = re.findall(r'data-path="(.*?)".*?<img src="data:image/jpeg.*?alt="(.*?)"', text)
    assert sorted(shown) == [(f"{c} {c // 2}", str(c)) for c in range(4)]
    output("show", tmp_path / "data" / "hierarchy.parquet", "--html", tmp_path / "tree.html")
    assert "<img" not in (tmp_path / "tree.html").read_text()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_icicle_of_50000_classes_opens_zooms_and_finds_odd_names(output, tmp_path):
    names = (*ODD, *(f"leaf {i}" for i in range(50_000 - len(ODD))))
    parents = (np.arange(50_000) % 2_000).astype(np.int32), (np.arange(2_000) % 30).astype(np.int32)
    groups = tuple(f"group {i}" for i in range(2_000)), tuple(f"top {i}" for i in range(30))
    Hierarchy(("leaf", "group", "top"), (names, *groups), parents).to_parquet(tmp_path / "tree.parquet")
    printed = output("show", tmp_path / "tree.parquet", "--html", tmp_path / "tree.html")
    assert printed.splitlines()[-1] == f"the page: {tmp_path / 'tree.html'}"
    status = "document.querySelector('[role=status]').textContent"
    crumbs = "[...document.querySelectorAll('.icicle nav button')].map(b => b.textContent).join(' > ')"
    with Page(tmp_path / "profile", 1280, 900) as shown:
        shown.open((tmp_path / "tree.html").as_uri())
        shown.until("performance.getEntriesByName('icicle drawn').length === 1")
        assert shown.run(status) == "all · 50,000 classes · 30 classes below"
        shown.run("document.querySelector('canvas').focus()")
        for key, said in (
            ("ArrowDown", "top: top 0 ·"),
            ("ArrowRight", "top: top 1 ·"),
            ("Enter", "top: top 1 · 1,675 classes · 67 classes below"),
            ("ArrowDown", "group: group 1 ·"),
            ("Escape", "all ·"),
        ):
            shown.press(key)
            shown.until(f"{status}.startsWith({json.dumps(said)})")
        for name in ODD:
            shown.run(
                "document.querySelector('.icicle input').focus(); document.querySelector('.icicle input').value = ''"
            )
            shown.write(name.strip())
            shown.press("Enter")
            shown.until(f"{status}.startsWith({json.dumps(f'leaf: {name} ')})")
            assert shown.run(crumbs).startswith("all > top ")
        box = "(r => [r.left + r.width / 2, r.top + 60])(document.querySelector('canvas').getBoundingClientRect())"
        shown.press("Escape")  # empties the search
        shown.press("Home")
        shown.until(f"{crumbs} === 'all'")
        for _ in range(20):  # a busy browser may draw the canvas elsewhere after its place was read
            for kind in ("mousePressed", "mouseReleased"):
                shown.mouse(kind, *shown.run(box))
            if shown.run(f"{crumbs}.startsWith('all > top ')"):
                break
            time.sleep(0.5)
        shown.until(f"{crumbs}.startsWith('all > top ')", 5)
        assert not shown.errors
        assert shown.run("document.querySelector('b')") is None

"""Legends of the report's maps: as many columns as fit, so that no name is cut off."""

import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.report_page import embedding_map
from hgld.report_page.figures import DOTS, SERIES, Figures
from hgld.report_page.runs import Items

NAMES = st.lists(st.text("abcdefgh ij", min_size=1, max_size=22), min_size=1, max_size=len(SERIES) + 1)


@given(NAMES)
def test_more_columns_never_where_fewer_do_not_fit(names):
    columns = embedding_map.legend_columns(names)
    assert 1 <= columns <= 3
    longer = [name + "ab" for name in names]
    assert embedding_map.legend_columns(longer) <= columns


@pytest.mark.parametrize("longest", [4, 14, 22])
def test_a_legend_stays_within_its_figure(longest):
    matplotlib.use("agg")
    from matplotlib.figure import Figure

    labels = np.arange(len(SERIES)).repeat(3)
    places = np.random.default_rng(0).random((len(labels), 2))
    drawing = Figure(figsize=embedding_map._SIZE, layout="constrained")
    with matplotlib.rc_context({"legend.fontsize": 8.0}):
        axes = drawing.subplots()
        embedding_map._scatter(places, labels, lambda label: chr(97 + label) * longest)(axes)
        drawing.draw_without_rendering()
        legend = axes.get_legend()
        assert legend is not None
        box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= drawing.bbox.width


@pytest.mark.parametrize("named", [False, True])
def test_every_dot_of_a_map_has_its_own_name(monkeypatch, named):
    monkeypatch.setattr(embedding_map, "tsne", lambda points: points[:, :2])
    fine = np.arange(60) % 20
    labels = np.stack([fine, np.where(fine < 4, -1, fine % 13)], axis=1)
    points = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    items = Items(points, labels, [f"test/{i}" for i in range(60)] if named else None)
    maps, missing = embedding_map.draw_maps(Figures(), items, ["fine", "coarse"], "{}-{}".format, "run", "test")
    assert not missing
    above, below = maps
    assert len(above.dots) == 20
    assert set(above.dots) == {f"1-{-1 if c < 4 else c % 13} › 0-{c}" for c in range(20)}
    said = "test/" if named else "item "
    of_dots = [int(name.rpartition(said)[2]) for name in below.dots]
    assert list(below.dots) == [f"0-{fine[i]} › {said}{i}" for i in of_dots]
    across = points[:, 0] / np.linalg.norm(points, axis=1)
    assert np.array_equal(np.argsort(_places(below)), np.argsort(across[of_dots]))
    assert len(_places(above)) == 20


def _places(drawn):
    """The horizontal places of a map's dots, in the order in which its page has them; its script knows their ids."""
    script = (Path(embedding_map.__file__).parent / "templates" / "maps.js").read_text(encoding="utf-8")
    known = re.compile(script.partition(".filter((use) => /")[2].partition("/.test(")[0])
    assert all(known.search(name) for name in re.findall(rf'id="([^"]*-{DOTS}-[^"]*)"', str(drawn.svg)))
    groups = str(drawn.svg).split(f'id="{drawn.name}-{DOTS}-')[1:]
    return [float(x) for group in groups for x in re.findall(r'<use [^>]*x="([^"]+)"', group.split("legend_1")[0])]

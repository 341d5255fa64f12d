"""Legends of the report's maps: as many columns as fit, so that no name is cut off."""

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.report_page import embedding_map
from hgld.report_page.figures import SERIES

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

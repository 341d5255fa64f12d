"""Builds and report pages without figures and maps: drawing takes most of a small one's time."""

from typing import Any

import numpy as np
import pytest
from markupsafe import Markup

from hgld.pipelines.hierarchy.groups import cluster
from hgld.report_page import embedding_map
from hgld.report_page.figures import Figure, Figures


def without_pictures(patch: pytest.MonkeyPatch) -> None:
    """Leave out t-SNE of a hierarchy's names."""
    patch.setattr(cluster, "name_map", lambda rows: np.zeros((len(rows), 2), dtype=np.float32))


def without_figures(patch: pytest.MonkeyPatch) -> None:
    """Leave out the figures of a report page, and t-SNE; titles and notes stay."""

    def draw(self: Figures, name: str, title: str, draw: Any, *, term: str = "", note: str = "", **__: Any) -> Figure:
        self.terms[term] = None
        return Figure(name, title, term, note, Markup())

    patch.setattr(Figures, "draw", draw)
    patch.setattr(embedding_map, "tsne", lambda points: points[:, :2])

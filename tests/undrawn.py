"""Report pages without figures and maps, because drawing takes most of the time of a small page."""

from typing import Any

import pytest
from markupsafe import Markup

from hgld.report_page import embedding_map
from hgld.report_page.figures import Figure, Figures


def without_figures(patch: pytest.MonkeyPatch) -> None:
    """Omit the figures and the t-SNE of a report page; titles and notes stay."""

    def draw(self: Figures, name: str, title: str, draw: Any, *, term: str = "", note: str = "", **__: Any) -> Figure:
        self.terms[term] = None
        return Figure(name, title, term, note, Markup())

    patch.setattr(Figures, "draw", draw)
    patch.setattr(embedding_map, "tsne", lambda points: points[:, :2])

"""Report pages without figures and maps, because drawing takes most of the time of a small page."""

from typing import Any

import pytest
from markupsafe import Markup

from hgld.report_page import embedding_map
from hgld.report_page.figures import Figure, Figures


def without_figures(patch: pytest.MonkeyPatch, *, drawn: int = 0) -> None:
    """Omit the figures after the first ``drawn``, and the t-SNE of a report page; titles and notes stay."""
    whole, names = Figures.draw, []

    def draw(self: Figures, name: str, title: str, draw: Any, *, term: str = "", note: str = "", **more: Any) -> Figure:
        names.append(name)
        if len(names) <= drawn:
            return whole(self, name, title, draw, term=term, note=note, **more)
        self.terms[term] = None
        return Figure(name, title, term, note, Markup())

    patch.setattr(Figures, "draw", draw)
    patch.setattr(embedding_map, "tsne", lambda points: points[:, :2])

"""``{dataset-cards}``: the card of every dataset that hgld can shard, and how to obtain its files."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from hgld.pipelines.shards.cards import DataCard, load_card
from hgld.pipelines.shards.sources import OWN_DATA, SOURCES


class DatasetCards(SphinxDirective):
    """Directive with one section per dataset."""

    def run(self) -> list[nodes.Node]:
        return [self._card(source, load_card(source)) for source in SOURCES if source not in OWN_DATA]

    def _card(self, source: str, card: DataCard) -> nodes.section:
        # --out is no dash.
        section = nodes.section(ids=[f"dataset-{source}"], names=[source], support_smartquotes=False)
        section += nodes.title("", f"{card.title} ", nodes.literal(text=source))
        obtain = "\n".join(f"- {step}" for step in card.obtain)
        written = {"": _before_headings(card.text), **card.sections}
        for heading, text in {**written, "Obtain": obtain, "Protocol": card.protocol}.items():
            section += [nodes.rubric(text=heading)] if heading else []
            section += self.parse_text_to_nodes(text)
        return section


def _before_headings(card: str) -> str:
    """Return the text of a card between its title and its first section."""
    _, _, text = card.split("---", 2)[2].strip().partition("\n")
    return text.partition("\n## ")[0]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Make it known to Sphinx."""
    app.add_directive("dataset-cards", DatasetCards)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""``{paper-tables}``: the tables and figures of the papers with their commands, and the papers' statements."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from hgld.published import PAPERS
from hgld.published.experiments import all_experiments
from hgld.published.statements import all_statements


class PaperTables(SphinxDirective):
    """Directive with one section per paper: its experiments, then its statements."""

    def run(self) -> list[nodes.Node]:
        keys = dict.fromkeys(one.paper for one in all_experiments())
        return [self._section(key) for key in keys]

    def _section(self, key: str) -> nodes.section:
        title = PAPERS[key].name if key in PAPERS else "Datasets"
        section = nodes.section(ids=[nodes.make_id(f"paper {title}")], names=[title], support_smartquotes=False)
        section += nodes.title(text=title)
        items = nodes.definition_list()
        for one in (one for one in all_experiments() if one.paper == key):
            told: list[nodes.Node] = [nodes.paragraph(text=f"{one.shows}.")]
            if one.why:
                told.append(nodes.paragraph(text=f"Cannot be repeated: {one.why}."))
            else:
                told.append(nodes.literal_block(text=one.commands, language="none", classes=["wrapped"]))
            items += nodes.definition_list_item("", nodes.term(text=one.table), nodes.definition("", *told))
        section += items
        # The page of the recipes shows reasons beside the values of config fields.
        here = [one for one in all_statements() if one.paper == key and (one.ours or not one.because)]
        said = [one.text for one in here if not one.is_plain]
        if said:
            section += nodes.rubric(text="Statements that need a word")
            section += nodes.bullet_list("", *(nodes.list_item("", nodes.paragraph(text=text)) for text in said))
        return section


def setup(app: Sphinx) -> ExtensionMetadata:
    """Make it known to Sphinx."""
    app.add_directive("paper-tables", PaperTables)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""``{recipe-list}``: every recipe of training, by family."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from hgld.training.recipes.table import FAMILIES, Family


class RecipeList(SphinxDirective):
    """Directive with one section per family of recipes: command, hardware and published values of each."""

    def run(self) -> list[nodes.Node]:
        return [self._section(family) for family in FAMILIES]

    def _section(self, family: Family) -> nodes.section:
        title = family.title.split(": ")[0]
        section = nodes.section(ids=[nodes.make_id(f"recipes {title}")], names=[title])
        section += nodes.title(text=title)
        section += self.parse_text_to_nodes(f"{family.title}.\n{family.text}")
        items = nodes.definition_list()
        for recipe in family.recipes:
            term = nodes.term("", "", nodes.literal(text=recipe.name), ids=[f"recipe-{recipe.name}"])
            told = [
                nodes.paragraph(text=recipe.line),
                nodes.literal_block(text=recipe.facts_of(recipe()), language="none", classes=["wrapped"]),
            ]
            items += nodes.definition_list_item("", term, nodes.definition("", *told))
        section += items
        return section


def setup(app: Sphinx) -> ExtensionMetadata:
    """Make it known to Sphinx."""
    app.add_directive("recipe-list", RecipeList)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

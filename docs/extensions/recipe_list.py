"""``{recipe-list}``: every recipe of training, by family."""

import sys
from itertools import groupby

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from hgld.training.recipes import RECIPES
from hgld.training.recipes.recipe import Recipe


class RecipeList(SphinxDirective):
    """A section a module of recipes; every recipe with its command, hardware and published figures."""

    def run(self) -> list[nodes.Node]:
        families = groupby(RECIPES.values(), key=lambda recipe: recipe.place.partition(":")[0])
        return [self._family(module, list(recipes)) for module, recipes in families]

    def _family(self, module: str, recipes: list[Recipe]) -> nodes.section:
        summary, _, rest = (sys.modules[module].__doc__ or "").partition("\n")
        title = summary.split(": ")[0].rstrip(".")
        section = nodes.section(ids=[nodes.make_id(f"recipes {module}")], names=[title])
        section += nodes.title(text=title)
        section += self.parse_text_to_nodes(f"{summary}\n{rest}")
        items = nodes.definition_list()
        for recipe in recipes:
            _, _, facts = (recipe.__doc__ or "").partition("\n\n")
            term = nodes.term("", "", nodes.literal(text=recipe.name), ids=[f"recipe-{recipe.name}"])
            told = [
                nodes.paragraph(text=recipe.line),
                nodes.literal_block(text=facts, language="none", classes=["wrapped"]),
            ]
            items += nodes.definition_list_item("", term, nodes.definition("", *told))
        section += items
        return section


def setup(app: Sphinx) -> ExtensionMetadata:
    """Make it known to Sphinx."""
    app.add_directive("recipe-list", RecipeList)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Remove the empty last line of doctest blocks, and show CSV blocks as plain text."""

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata


def _drop_last_empty_lines(app: Sphinx, document: nodes.document) -> None:
    for block in document.findall(nodes.literal_block):
        if block.rawsource == block.astext():  # the block has no markup, so its text can change
            block.rawsource = block.rawsource.rstrip()
            block.children = [nodes.Text(block.rawsource)]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Make it known to Sphinx."""
    app.add_lexer("csv", TextLexer)  # Pygments does not know csv
    app.connect("doctree-read", _drop_last_empty_lines)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Show notebooks as pages: Sphinx reads their text, code and outputs as Markdown."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pygments.lexer import bygroups, using
from pygments.lexers.python import PythonLexer
from pygments.lexers.shell import BashLexer
from pygments.token import Operator, Whitespace
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata


class _CellLexer(PythonLexer):
    """Lexer of Python with shell lines."""

    _shell = (r"^(\s*)(!)((?:.*\\\n)*.+\n)", bygroups(Whitespace, Operator, using(BashLexer)))
    tokens = PythonLexer.tokens | {"root": [_shell, *PythonLexer.tokens["root"]]}


def markdown_of(notebook: dict[str, Any]) -> str:
    """Return a notebook as MyST Markdown; figures are data URIs, so that a page needs no further file."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _cell(cell))


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield _fence("cell", source)
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            yield _printed("".join(output["text"]))
        for kind, data in output.get("data", {}).items():
            text = "".join(data)
            if kind == "text/html":
                yield _fence("{raw} html", f'<div class="output">{text}</div>')
            elif kind == "image/jpeg":
                yield f"![](data:{kind};base64,{text})"
            else:
                yield _printed(text)


def _printed(text: str) -> str:
    return _fence("{code-block} text", f":class: output\n\n{text.rstrip()}")


def _fence(language: str, text: str) -> str:
    ticks = "`" * max(3, *(len(run) + 1 for run in "".join(c if c == "`" else " " for c in text).split() or [""]))
    return f"{ticks}{language}\n{text}\n{ticks}"


def _read(app: Sphinx, name: str, content: list[str]) -> None:
    if Path(app.env.doc2path(name)).suffix == ".ipynb":
        content[0] = markdown_of(json.loads(content[0]))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Make it known to Sphinx."""
    app.add_lexer("cell", _CellLexer)
    app.add_source_suffix(".ipynb", "markdown")
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

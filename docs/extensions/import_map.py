"""Directive ``{import-map}``: matrix of imports between packages, drawn from the code at each build of the site."""

import ast
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

ROOT = Path(__file__).parents[2]
_CELL = 22


def package_of(path: Path) -> str:
    """Return the package of a file, with at most two names."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:2] if len(parts) > 2 else parts[:1])


def read_imports() -> dict[str, set[str]]:
    """Return the packages that each package imports, lazy imports included."""
    found: dict[str, set[str]] = {}
    for folder in ("hgld", "pipelines", "training"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.relative_to(ROOT).parts[1] in ("pipelines", "training", "data_cards"):
                continue  # skip links, because the loop reads the linked folders too
            own = found.setdefault(package_of(path), set())
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    up = path.relative_to(ROOT).parent.parts[: 1 - node.level or None] if node.level else ()
                    name = ".".join([*up, *([node.module] if node.module else [])])
                elif isinstance(node, ast.Import):
                    name = node.names[0].name
                else:
                    continue
                name = name.removeprefix("hgld.") if name.startswith(("hgld.pipelines", "hgld.training")) else name
                file = ROOT / (name.replace(".", "/") + ".py")
                folder_named = ROOT / name.replace(".", "/")
                if file.is_file():
                    own.add(package_of(file))
                elif folder_named.is_dir() and name:
                    own.add(package_of(folder_named / "__init__.py"))
    return {package: (others & found.keys()) - {package} for package, others in found.items()}


def draw(imports: dict[str, set[str]]) -> str:
    """Return a matrix as SVG: a dot if the package of the row imports the package of the column."""
    names = sorted(imports)
    left, top = 170, 150
    width, height = left + _CELL * len(names) + 10, top + _CELL * len(names) + 10
    parts = [f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" font-size="12" fill="currentColor">']
    parts.append("<title>Which package imports which</title>")
    for row, name in enumerate(names):
        y, x = top + _CELL * row + 15, left + _CELL * row + 14
        parts.append(f'<text x="{left - 8}" y="{y}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<text x="{x}" y="{top - 8}" transform="rotate(-60 {x} {top - 8})">{escape(name)}</text>')
        for column, other in enumerate(names):
            if other in imports[name]:
                parts.append(f'<circle cx="{left + _CELL * column + 11}" cy="{y - 4}" r="5"/>')
    return "".join([*parts, "</svg>"])


class ImportMap(SphinxDirective):
    """The matrix of imports."""

    def run(self) -> list[nodes.Node]:
        return [nodes.raw("", draw(read_imports()), format="html")]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Make it known to Sphinx."""
    app.add_directive("import-map", ImportMap)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Support for this project's docstrings: short references, options of configs, properties with a colon."""

import builtins
import dataclasses
import pkgutil
import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain
from sphinx.environment import BuildEnvironment
from sphinx.util.typing import ExtensionMetadata

_OURS = ("hgld",)
_TYPE = ":type: "
_FLAG = re.compile(r"(--[a-z][a-z-]*)")


def _leave_builtins(app: Sphinx, document: nodes.document) -> None:
    """Leave built-in types without a link; Sphinx would link ``bytes`` to any attribute of that name."""
    for node in list(document.findall(pending_xref)):
        if node.get("refdomain") == "py" and hasattr(builtins, node["reftarget"]):
            node.replace_self(node.children)


def _find_name(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement) -> nodes.Element | None:
    """Resolve a name in its module: a link if a page shows it, plain text if it only exists."""
    domain = env.domains["py"]
    name = node.get("reftarget", "")
    if not isinstance(domain, PythonDomain) or node.get("refdomain") != "py":
        return None
    module, within, kind = node.get("py:module"), node.get("py:class"), node["reftype"]
    found = [full for full, _ in domain.find_obj(env, module, within, name, kind, searchmode=1)]
    shown = [full for full in found if not domain.objects[full].aliased]
    if "." not in name and len(shown) == 1:
        return domain.resolve_xref(env, node["refdoc"], app.builder, kind, shown[0], node, text)
    return text if any(map(_exists, (name, f"{module}.{name}", f"{module}.{within}.{name}"))) else None


def _exists(name: str) -> bool:
    """Tell whether a dotted name exists in hgld."""
    try:
        return name.split(".")[0] in _OURS and pkgutil.resolve_name(name) is not None
    except (ImportError, AttributeError, ValueError):
        return False


def _keep_first_line(app: Sphinx, what: str, name: str, documented: object, options: Any, lines: list[str]) -> None:
    """Restore a property's first line ``words: more words``, because napoleon reads the first words as a type."""
    for number, line in enumerate(lines):
        if what == "property" and line.startswith(_TYPE):
            lines[0] = f"{line.removeprefix(_TYPE)}: {lines[0]}"
            del lines[number]
            return


def _list_options(app: Sphinx, what: str, name: str, documented: object, options: Any, lines: list[str]) -> None:
    """List the fields of a config with their flags' help."""
    if what == "class" and dataclasses.is_dataclass(documented):
        helped = [field for field in dataclasses.fields(documented) if "help" in field.metadata]
        units = (f" In {field.metadata['unit']}." if field.metadata["unit"] else "" for field in helped)
        texts = (_FLAG.sub(r"``\1``", field.metadata["help"]) + unit for field, unit in zip(helped, units, strict=True))
        lines += ["", *(f":param {field.name}: {text}" for field, text in zip(helped, texts, strict=True))]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Make it known to Sphinx."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("doctree-read", _leave_builtins)
    app.connect("missing-reference", _find_name)
    app.connect("autodoc-process-docstring", _list_options)
    app.connect("autodoc-process-docstring", _keep_first_line, priority=900)  # after napoleon, whose priority is 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}

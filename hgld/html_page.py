"""HTML pages of one file: templates whose values are escaped, and the one script that a page may run."""

import base64
import hashlib
from pathlib import Path

import jinja2
from markupsafe import Markup


def page_templates(folder: Path) -> jinja2.Environment:
    """Return the templates of a folder: every value is escaped, and one that is not given is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def own_text(file: Path) -> Markup:
    """Return a file that ships with hgld, a style or a script, to stand in a page as it is."""
    return Markup(file.read_text(encoding="utf-8"))  # noqa: S704 - a file of ours


def script_hash(script: str) -> str:
    """Return the source that a page's content security policy allows: this script and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")

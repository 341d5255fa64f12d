"""Configuration of Sphinx, which builds the site: ``python -m sphinx -W -n docs site``.

The docstrings are reStructuredText, and Sphinx checks their references. The guides are Markdown (MyST).
Pages load no file from other servers: the theme includes its fonts and scripts, and formulas are MathML.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import hgld

project = "hgld"
author = "The hgld maintainers"
project_copyright = author
version = release = hgld.__version__

extensions = [
    "extensions.code_blocks",
    "extensions.command_reference",
    "extensions.dataset_cards",
    "extensions.docstrings",
    "extensions.import_map",
    "extensions.mathml",
    "extensions.notebooks",
    "extensions.paper_tables",
    "extensions.recipe_list",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    *(() if "HGLD_DOCS_WITHOUT_SOURCE" in os.environ else ("sphinx.ext.viewcode",)),
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
nitpicky = True
# References into hgld are checked; references to Python, torch and polars would need a network.
nitpick_ignore_regex = [("py:.*", r"(?!hgld)\w+\..*|Image|Side|Graph|DiGraph|Axes")]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

# Every page has the whole navigation tree; without the entries of objects, a test builds the site in less time.
toc_object_entries = "HGLD_DOCS_WITHOUT_SOURCE" not in os.environ
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
# Name of this version (a tag or dev), if the site is published beside other versions (docs/versions.py).
published = os.environ.get("HGLD_DOCS_VERSION", "")
html_title = f"hgld {published or version}"
html_context = {"published": published}
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        *("sidebar/brand.html", "sidebar/search.html", "sidebar/scroll-start.html", "sidebar/navigation.html"),
        *("versions.html", "sidebar/scroll-end.html"),
    ]
}
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_last_updated_fmt = None  # a date would change the bytes of each build

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"
copybutton_selector = "div:not(.output) > div.highlight pre"

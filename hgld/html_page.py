"""HTML pages of one style, from templates with escaped values; tables and images for notebooks."""

import base64
import functools
import hashlib
import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup

from hgld.errors import InputError
from hgld.terminal import printable
from hgld.version import __version__

if TYPE_CHECKING:
    from PIL.Image import Image

    from hgld.data.dataset import ShardDataset

PAGES = Path(__file__).with_name("templates")  # templates, style and scripts of all pages
THUMBNAIL = 112  # pixels of a thumbnail's longer side
MOST_PICTURE_BYTES = 1_500_000
_QUALITY = 76


@functools.cache  # cached, because compiling templates takes most of the time of a small page
def _environment(folder: Path) -> jinja2.Environment:
    """Return the templates of a folder and of all pages: they escape every value, and fail if a value is missing."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, PAGES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["thousands"] = "{:,}".format
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}  # keeps the order of keys, which pages show
    return made


def render_page(template: Path, scripts: Iterable[str | Path] = (), **values: object) -> str:
    """Return a page: one HTML file that loads nothing and runs only hgld's own scripts.

    Args:
        template: template of the page, which extends ``page.html``.
        scripts: script files that the page contains: names in ``hgld/templates``, or paths. Each script has its own
            scope.
        values: variables of the template, among them ``title``.
    """

    def read(file: str | Path) -> str:
        return (PAGES / file).read_text(encoding="utf-8")

    blocks = "".join(f"{{\n{read(file)}}}\n" for file in scripts)
    script = f'"use strict";\n{blocks}' if blocks else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    values |= {"script": Markup(script), "style": Markup(read("theme.css") + read("page.css"))}  # noqa: S704 - of hgld
    values |= {"script_hash": f"sha256-{digest}", "version": __version__}
    return _environment(template.parent).get_template(template.name).render(values)


def render_part(template: str, **values: object) -> str:
    """Return a part of a page, from a template in ``hgld/templates`` that pages include."""
    return _environment(PAGES).get_template(template).render(values)


def data_uri(image: "Image", longest: int = THUMBNAIL) -> str:
    """Return an image as a JPEG in a ``data:`` URI, its longer side at most ``longest`` pixels."""
    image.thumbnail((longest, longest))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")


class Thumbnails:
    """Thumbnails of a dataset's images as data URIs, up to a total size that fits a page.

    Args:
        dataset: dataset with the images; None for galleries without images.
        most_bytes: largest size of all data URIs together.
    """

    def __init__(self, dataset: "ShardDataset | None", most_bytes: int = MOST_PICTURE_BYTES) -> None:
        self._dataset, self._most = dataset, most_bytes
        self._index = {} if dataset is None else {key: i for i, key in enumerate(dataset.keys.to_list())}
        self._made: dict[str, str] = {}
        self.bytes = self.left_out = 0
        self.unreadable: list[str] = []

    def __len__(self) -> int:
        return len([uri for uri in self._made.values() if uri])

    def uri(self, key: str | None) -> str:
        """Return the image of an item; empty if there is no image or the page has reached its size limit."""
        if self._dataset is None or key is None or key not in self._index:
            return ""
        if self.bytes >= self._most:
            self.left_out += 1
            return ""
        if key not in self._made:
            self._made[key] = self._encoded(key)
        made = self._made[key]
        if self.bytes + len(made) > self._most:
            self.left_out += 1
            return ""
        self.bytes += len(made)  # the page stores an image again each time it shows it, so every use counts
        return made

    def source(self, key: str | None) -> str:
        """Return the source path of an item's image, or its key if the path is unknown."""
        if self._dataset is None or key is None or key not in self._index:
            return key or ""
        return self._dataset.sources[self._index[key]]

    def _encoded(self, key: str) -> str:
        assert self._dataset is not None
        try:
            image = self._dataset.image(self._index[key])
        except InputError as error:
            self.unreadable.append(str(error))
            return ""
        return data_uri(image)


# -- notebooks --------------------------------------------------------------------------------------------------------
#
# HTML for notebooks has a limited size, inline styles, no scripts, and loads nothing.

_MOST_TEXT = 160
_TILE = f"margin:0;width:{THUMBNAIL}px;font-size:.8em;line-height:1.3"
_PICTURE = f"display:flex;width:{THUMBNAIL}px;height:{THUMBNAIL}px;align-items:center;justify-content:center;"
_PICTURE += "background:rgba(127,127,127,.15);overflow:hidden;overflow-wrap:anywhere"


def one_line(text: object) -> str:
    """Return escaped text on one line of at most 160 characters, with control characters escaped."""
    plain = " ".join(printable(str(text)).split())
    return html.escape(plain if len(plain) <= _MOST_TEXT else plain[: _MOST_TEXT - 1] + "…")


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table whose first column is text; all other columns are numbers."""

    def line(tag: str, cells: Sequence[object], style: str = "") -> str:
        sides = ("left", *["right"] * len(cells))
        shown = (
            f'<{tag} style="text-align:{side}{style}">{one_line(c)}</{tag}>'
            for side, c in zip(sides, cells, strict=False)
        )
        return f"<tr>{''.join(shown)}</tr>"

    head, body = line("th", header), "".join(line("td", row, ";white-space:nowrap") for row in rows)
    return f'<div style="overflow-x:auto"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def picture_sheet(heading: Sequence[object], tiles: Iterable[tuple[str, Sequence[object]]], note: str = "") -> str:
    """Return HTML of images with lines of text below them, in rows as wide as the page.

    Args:
        heading: lines above the images, the first one bold.
        tiles: for every image, its ``data:`` URI (or a text to show in its place) and the lines below it.
        note: a line below all images.
    """
    first, *others = map(one_line, heading)
    parts = [f"<p><b>{first}</b>{''.join(f'<br>{line}' for line in others)}</p>"]
    parts.append('<div style="display:flex;flex-wrap:wrap;gap:10px">')
    for uri, said in tiles:
        lines = [one_line(line) for line in said]
        shown = f'<img src="{html.escape(uri)}" alt="{"; ".join(lines)}" style="max-width:100%;max-height:100%">'
        picture = shown if uri.startswith("data:") else one_line(uri)
        line = '<div style="overflow:hidden;text-overflow:ellipsis;white-space:nowrap" title="{0}">{0}</div>'
        parts.append(f'<figure style="{_TILE}"><div style="{_PICTURE}">{picture}</div>')
        parts.append("".join(line.format(text) for text in lines) + "</figure>")
    return "".join([*parts, "</div>", f"<p>{one_line(note)}</p>" if note else ""])

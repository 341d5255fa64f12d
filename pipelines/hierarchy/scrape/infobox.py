"""Parser of the Wikidata infobox on a Commons category page, which states the classes of a landmark.

The published pipeline gets names from this infobox. `Template:Wikidata Infobox` puts the table ``id="wdinfobox"`` on
the page; its row "Instance of" has the names. beautifulsoup4 uses lxml here. Broken pages (open cells, thousands of
stray ``<``) take lxml milliseconds; they would take Python's html.parser minutes.
"""

import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote

import lxml  # noqa: F401  # if lxml is missing, fail now and not at the first page, hours later
from bs4 import BeautifulSoup, UnusualUsageWarning
from bs4.element import NavigableString, PageElement, Tag

from hgld.errors import InputError

INFOBOX_ID = "wdinfobox"
MAX_BYTES = 1 << 20  # maximum bytes of a page; a category page of 200 files and 200 subcategories has about 0.3 MB
MAX_TAGS = 50_000  # maximum tags of a page; such a category page has about 8,000, and 50,000 nested tags take 0.8 s

_LINE_TAGS = frozenset({"br", "dd", "div", "dl", "dt", "li", "ol", "p", "table", "td", "th", "tr", "ul"})
_SKIPPED_CLASSES = frozenset({"reference", "mw-editsection", "penicon"})  # footnote marks and edit links
_WORD = re.compile(r"[^\W_]")  # a name has at least one letter or digit, not only dashes and bullets
_SEPARATORS = re.compile(r"[,;،、·•|]")
_HIDDEN = re.compile(r"display\s*:\s*none", re.IGNORECASE)
_CATEGORY_LINK = re.compile(r"(?:^|[/=])category(?::|%3a)([^?&#]+)", re.IGNORECASE)
_CATEGORY_NAME = re.compile(r"\s*category:(.*)", re.IGNORECASE | re.DOTALL)
_ITEM_LINK = re.compile(
    r"^(?:https?:)?//(?:www\.|m\.)?wikidata\.org/(?:wiki|entity)/(?:Special:EntityPage/)?(Q[1-9][0-9]{0,11})(?:#.*)?$"
)
_SOFT_REDIRECT = "this category is located at"
# number of matching texts to check: a notice is at the top of the page, and later prose may use the same words
_MOST_NOTICES = 5


@dataclass(frozen=True)
class Infobox:
    """The parsed infobox of a category page.

    Attributes:
        names: the values of the "Instance of" row as written, in the page's order, each once.
        item: Wikidata id of the infobox's subject (``Q12345``); None if the infobox does not link to exactly one item.
        redirected_to: title of the category that the page redirects to, or whose page the server sent instead
            (``Category:Name``, with spaces); None if there is no redirect.
        present: True if the page has the infobox; an infobox without the row "Instance of" gives no ``names``.
        exists: False if MediaWiki says that nobody has written the page. (It serves a page for every category with
            members, and answers 404 for a category without members.)
    """

    names: tuple[str, ...] = ()
    item: str | None = None
    redirected_to: str | None = None
    present: bool = False
    exists: bool = True


def instance_of(html: bytes, *, rows: tuple[str, ...] = ("Instance of",)) -> Infobox:
    """Read the infobox of a category page.

    Args:
        html: the page as served; bytes that are not UTF-8 become U+FFFD.
        rows: possible headings of the row, in the languages of the pages; letter case, white space and a final colon
            make no difference.

    Returns:
        The parsed infobox. Escaped markup in a name stays text.

    Raises:
        InputError: the page has more than ``MAX_BYTES`` or ``MAX_TAGS``.
    """
    tags = html.count(b"<")
    if len(html) > MAX_BYTES or tags > MAX_TAGS:
        raise InputError(
            f"a category page has {len(html):,} bytes and {tags:,} tags; expected at most {MAX_BYTES:,} and "
            f"{MAX_TAGS:,}. Look at what the server sends for it, or use --route api."
        )
    page = _parse(html)
    redirected_to = _redirect(page)
    box = page.find("table", id=INFOBOX_ID)
    if box is None:
        exists = page.find("div", class_="noarticletext") is None
        return Infobox((), None, redirected_to, present=False, exists=exists)
    cell = _cell(box, frozenset(_heading(row) for row in rows))
    names = () if cell is None else tuple(dict.fromkeys(_values(cell)))
    return Infobox(names, _item(box), redirected_to, present=True)


def _parse(html: bytes) -> BeautifulSoup:
    text = html.decode("utf-8", errors="replace").replace("\0", "\ufffd")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnusualUsageWarning)  # the page may look like XML or a file name
        return BeautifulSoup(text, "lxml")


def _heading(text: str) -> str:
    return " ".join(text.split()).rstrip(" :：").casefold()


def _rows(box: Tag) -> Iterator[Tag]:
    """Yield the rows of the infobox itself, without the rows of nested tables."""
    for part in [box, *box.find_all(["thead", "tbody", "tfoot"], recursive=False)]:
        yield from part.find_all("tr", recursive=False)


def _cell(box: Tag, headings: frozenset[str]) -> Tag | None:
    """Return the value cell of the first row that has one of the headings."""
    for row in _rows(box):
        head, cell = row.find("th", recursive=False), row.find("td", recursive=False)
        if head is not None and cell is not None and _heading(_text(head)) in headings:
            return cell
    return None


# -- values ---------------------------------------------------------------------------------------------------


def _values(cell: Tag) -> Iterator[str]:
    """Yield the values of a cell: its lines or list items if there are several, else the parts between commas.

    Class labels may have commas. So commas inside a link, a parenthesis or a list item do not separate values.
    """
    lines = [line for line in _lines(cell) if _WORD.search("".join(text for text, _ in line))]
    listed = len(lines) > 1 or cell.find("li") is not None
    for line in lines:
        whole = "".join(text for text, _ in line)
        for value in [whole] if listed else _between_commas(line):
            if _WORD.search(value):
                yield " ".join(value.split())


def _lines(cell: Tag) -> list[list[tuple[str, bool]]]:
    """Return the visible text of a cell by lines: pieces of text, each with True if it is in a link."""
    lines: list[list[tuple[str, bool]]] = [[]]
    links = 0
    for node, opens in _walk(cell):
        if isinstance(node, Tag):
            links += (1 if opens else -1) if node.name == "a" else 0
            if node.name in _LINE_TAGS:
                lines.append([])
        else:
            lines[-1].append((str(node), links > 0))
    return lines


def _between_commas(line: Iterable[tuple[str, bool]]) -> Iterator[str]:
    value, depth = "", 0
    for text, linked in line:
        for character in text:
            depth += 0 if linked else (character == "(") - (character == ")")
            if not linked and depth <= 0 and _SEPARATORS.match(character):
                yield value
                value = ""
            else:
                value += character
    yield value


def _text(tag: Tag) -> str:
    return "".join(str(node) for node, _ in _walk(tag) if not isinstance(node, Tag))


def _walk(root: Tag) -> Iterator[tuple[PageElement, bool]]:
    """Yield the visible content under ``root`` in order: every tag when it opens (True) and closes (False), and text.

    A page may be nested to any depth, so a stack replaces recursion.
    """
    stack: list[tuple[PageElement, bool]] = [(child, True) for child in reversed(root.contents)]
    while stack:
        node, opens = stack.pop()
        if isinstance(node, Tag):
            if opens and _is_hidden(node):
                continue
            yield node, opens
            if opens:
                stack.append((node, False))
                stack.extend((child, True) for child in reversed(node.contents))
        elif type(node) is NavigableString:  # not a subclass: subclasses are comments, scripts and styles
            yield node, True


def _is_hidden(tag: Tag) -> bool:
    classes = tag.get_attribute_list("class")
    return (
        not _SKIPPED_CLASSES.isdisjoint(classes)
        or tag.has_attr("hidden")
        or _HIDDEN.search(str(tag.get("style", ""))) is not None
    )


# -- links ----------------------------------------------------------------------------------------------------


def _item(box: Tag) -> str | None:
    """Return the item that the infobox's own links (edit icons, identifiers) agree on; None if they do not agree.

    The values in the rows link to other items, such as countries and architects. Their links show a label, or an id in
    a row with a heading.
    """
    items = set()
    for row in _rows(box):
        headed = row.find("th", recursive=False) is not None
        for link in row.find_all("a", href=_ITEM_LINK):
            item = _ITEM_LINK.sub(r"\1", str(link["href"]))
            text = _text(link).strip()
            if not text or (item in text and not headed):
                items.add(item)
    return items.pop() if len(items) == 1 else None


def _redirect(page: BeautifulSoup) -> str | None:
    """Return the target of a redirect: from a redirect page, from the template's box, or from a followed redirect."""
    notice = page.find(class_="redirectMsg")
    link = notice.find("a", href=True) if notice is not None else _soft_redirect(page)
    if link is None and page.find(class_="mw-redirectedfrom") is not None:
        link = page.find("link", rel="canonical", href=True)
    if link is None:
        return None
    address = _CATEGORY_LINK.search(str(link.get("href", "")))
    if address is not None:
        return _title(unquote(address[1]))
    text = _CATEGORY_NAME.match(_text(link))  # MediaWiki writes a link to the page itself without an address
    return None if link.has_attr("href") or text is None else _title(text[1])


def _soft_redirect(page: BeautifulSoup) -> Tag | None:
    """Return the link directly after the words of `Template:Category redirect`."""
    for words in page.find_all(string=re.compile(_SOFT_REDIRECT, re.IGNORECASE), limit=_MOST_NOTICES):
        if not _heading(words).endswith(_SOFT_REDIRECT):
            continue
        following = words.find_next(string=_WORD)
        link = None if following is None else following.find_parent("a")
        if link is not None:
            return link
    return None


def _title(name: str) -> str | None:
    words = " ".join(name.replace("_", " ").split())
    return f"Category:{words[:1].upper()}{words[1:]}" if words else None

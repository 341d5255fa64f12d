"""Conversion of category URLs, as people and data sets write them, to MediaWiki's canonical titles."""

import re
import unicodedata
from urllib.parse import parse_qs, quote, unquote_to_bytes, urlsplit

_HOSTS = {"commons.wikimedia.org", "commons.m.wikimedia.org", "www.commons.wikimedia.org"}
# MediaWiki's own rules (MediaWikiTitleCodec): characters that count as spaces, are dropped, or are forbidden.
_SPACES = re.compile("[ _\u00a0\u1680\u180e\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_DIRECTION_MARKS = re.compile("[\u200e\u200f\u202a-\u202e]")
_PERCENT = re.compile("%[0-9A-Fa-f]{2}")
_FORBIDDEN = re.compile(rf"[#<>\[\]|{{}}\x00-\x1f\x7f\ud800-\udfff\ufffd]|{_PERCENT.pattern}|~~~")
_MAX_BYTES = 255
_MAX_URL = 8192


def category_title(url: str) -> str | None:
    """Return the canonical title (``Category:...``) of a Commons category URL; None for other URLs.

    http, https, protocol-relative and mobile URLs, ``/wiki/TITLE`` and ``index.php?title=TITLE`` all name the same
    page. Fragments and other query parameters are ignored.

    >>> category_title("http://commons.m.wikimedia.org/wiki/category:Ch%C3%A2teau_d%27If#map")
    "Category:Château d'If"
    >>> category_title("https://commons.wikimedia.org/w/index.php?title=Category:Notre-Dame&action=edit")
    'Category:Notre-Dame'
    >>> category_title("https://en.wikipedia.org/wiki/Category:Castles") is None
    True
    """
    text = url.strip()
    if len(text) > _MAX_URL:
        return None
    try:
        parts = urlsplit(text)
        host = parts.hostname
    except ValueError:  # the host has an unbalanced bracket
        return None
    if parts.scheme not in {"http", "https", ""} or host not in _HOSTS:
        return None
    if parts.path.startswith("/wiki/"):
        return canonical_category(_decode(parts.path.removeprefix("/wiki/")))
    if parts.path in {"/w/index.php", "/w/", "/w", "/"}:
        titles = parse_qs(parts.query).get("title", [])
        return canonical_category(titles[-1]) if titles else None
    return None


def canonical_category(text: str) -> str | None:
    """Return the canonical form of a title in the category namespace, or None if the text is not such a title.

    The rules are MediaWiki's. Underscores and all kinds of spaces become one space, and direction marks are removed.
    The text is in Unicode NFC, its first letter is a capital, and it has at most 255 bytes.

    >>> canonical_category(" category : eiffel_Tower ")
    'Category:Eiffel Tower'
    """
    cleaned = _SPACES.sub(" ", _DIRECTION_MARKS.sub("", unicodedata.normalize("NFC", text))).strip()
    namespace, colon, name = cleaned.partition(":")
    name = name.strip()
    if not colon or namespace.strip().lower() != "category" or not name or _FORBIDDEN.search(name):
        return None
    capital = name[0].title()  # not upper(): Wikimedia leaves Georgian letters as they are
    title = f"Category:{capital if len(capital) == 1 else name[0]}{name[1:]}"
    return title if len(title.encode(errors="replace")) - len("Category:") <= _MAX_BYTES else None


def page_url(api_url: str, title: str, language: str) -> str:
    """Return the URL of a page's HTML on the wiki whose action API is at ``api_url``.

    Wikimedia's wikis ask robots to use ``/wiki/``. Other wikis may have other short URLs, but ``index.php`` is always
    in the folder of ``api.php``.
    """
    name = quote(title.replace(" ", "_"), safe="/:,()!'*;@")
    base = api_url.removesuffix("api.php")
    if api_url.endswith(".org/w/api.php"):
        query = "" if language == "en" else f"?uselang={quote(language, safe='')}"
        return f"{base.removesuffix('w/')}wiki/{name}{query}"
    query = "" if language == "en" else f"&uselang={quote(language, safe='')}"
    return f"{base}index.php?title={name}{query}"


def _decode(path: str) -> str:
    """Decode percent codes; text that is not UTF-8 is windows-1252, as in MediaWiki."""
    raw = unquote_to_bytes(path)
    if _PERCENT.search(raw.decode("ascii", errors="replace")):
        raw = unquote_to_bytes(raw)  # a title has no percent codes, so the link was encoded twice
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("cp1252", errors="replace")

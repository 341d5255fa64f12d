"""Text of reports as Markdown, HTML and LaTeX, escaped for each."""

import html
import math
from collections.abc import Sequence

from hgld.terminal import printable

_LATEX = {c: f"\\{c}" for c in "&%$#_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\n": " ", "\r": " "}
_LATEX_TABLE = str.maketrans(_LATEX)
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0}th,td{border-bottom:1px solid #ccc;padding:.25rem .75rem;"
    "text-align:left}td:nth-child(n+2){font-variant-numeric:tabular-nums}"
)


def number(value: float, digits: int, undefined: str = "undefined") -> str:
    """A number with ``digits`` behind the point, or a word for NaN."""
    return undefined if math.isnan(value) else f"{value:.{digits}f}"


def latex(text: str) -> str:
    """Text for LaTeX: special characters are printed as they are."""
    return printable(text).translate(_LATEX_TABLE)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of text; the first column is aligned left, the others right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *([markdown(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown(text: str) -> str:
    """Text for one cell or one line of Markdown; HTML in it stays text, and what commands terminals is spelled."""
    escaped = html.escape(printable(text), quote=False).replace("\\", "\\\\").replace("|", "\\|")
    return " ".join(escaped.splitlines())


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table of text."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"


def html_page(title: str, body: str) -> str:
    """An HTML page, without scripts and without anything to load, around a body that is HTML already."""
    name = html.escape(title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>\n'
        f"<style>{_STYLE}</style></head>\n<body>\n<h1>{name}</h1>\n{body}</body></html>\n"
    )

"""Published results: rows of papers' tables, search in them, and papers' tables with the user's runs."""

from hgld.published.paper_table import OwnResults, PaperTable, find_table, lay_out
from hgld.published.results import PAPERS, Paper, PublishedValue, published_values, search_values

__all__ = [
    "PAPERS",
    "OwnResults",
    "Paper",
    "PaperTable",
    "PublishedValue",
    "find_table",
    "lay_out",
    "published_values",
    "search_values",
]

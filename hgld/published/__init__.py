"""Published results: the rows of the papers' tables, how to find one, and a paper's table with one's own runs in it."""

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

"""Published results: the rows of the papers' tables, how to find one, and a paper's table with one's own runs in it."""

from hgld.published.paper_table import OwnResults as OwnResults
from hgld.published.paper_table import PaperTable as PaperTable
from hgld.published.paper_table import find_table as find_table
from hgld.published.paper_table import lay_out as lay_out
from hgld.published.results import PAPERS as PAPERS
from hgld.published.results import Paper as Paper
from hgld.published.results import PublishedValue as PublishedValue
from hgld.published.results import published_values as published_values
from hgld.published.results import search_values as search_values

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

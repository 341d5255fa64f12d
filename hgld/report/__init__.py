"""Reports of evaluations, and whether two of them really differ."""

from hgld.report.comparison import Comparison as Comparison
from hgld.report.comparison import compare as compare
from hgld.report.retrieval import RetrievalReport as RetrievalReport

__all__ = ["Comparison", "RetrievalReport", "compare"]

"""hgld: hierarchies, datasets, rank losses and metrics for hierarchical image retrieval.

Names are handed on lazily (PEP 562), so that the command line starts without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hgld.hierarchy import Hierarchy as Hierarchy
    from hgld.relevance import graded_relevance as graded_relevance
    from hgld.relevance import shared_levels as shared_levels

__version__ = "0.1.0"

_EXPORTS = {
    "Hierarchy": "hgld.hierarchy",
    "graded_relevance": "hgld.relevance",
    "shared_levels": "hgld.relevance",
}

__all__ = ["Hierarchy", "__version__", "graded_relevance", "shared_levels"]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'hgld' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""Rank losses, decomposability and proxy losses, and their compositions.

``loss(embeddings, labels)`` and ``loss(embeddings, labels, ref_embeddings, ref_labels)``; functions of (scores, grades)
beneath. Names are handed on lazily (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hgld.losses.rank_loss import RankLoss as RankLoss

_EXPORTS = {
    "RankLoss": "hgld.losses.rank_loss",
}

__all__ = ["RankLoss"]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'hgld.losses' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

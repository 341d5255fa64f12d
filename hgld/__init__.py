"""hgld: hierarchies, datasets, rank losses and metrics for hierarchical image retrieval.

Names are handed on lazily (PEP 562), so that the command line starts without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from hgld.version import __version__ as __version__

if TYPE_CHECKING:
    from pathlib import Path

    from hgld import data as data
    from hgld import distributed as distributed
    from hgld import losses as losses
    from hgld import metrics as metrics
    from hgld import samplers as samplers
    from hgld.data.dataset import open_dataset as open_dataset
    from hgld.data.streaming import stream as stream
    from hgld.evaluation.evaluate import evaluate as evaluate
    from hgld.evaluation.report import RetrievalReport as RetrievalReport
    from hgld.hierarchy import Hierarchy as Hierarchy
    from hgld.label_audit.audit import audit as audit
    from hgld.prediction.calibration import calibrate as calibrate
    from hgld.prediction.predict import predict as predict
    from hgld.relevance import graded_relevance as graded_relevance
    from hgld.relevance import shared_levels as shared_levels


def load_model(path_or_url: "str | Path", which: 'Literal["best", "last"]' = "best") -> "tuple[Any, Any]":
    """Load a trained model and its config: a run's folder, or ``hf:USER/NAME``.

    See ``load_model`` of :mod:`hgld.training.inference.embedder`, which is imported here.
    """
    return import_module("hgld.training.inference.embedder").load_model(path_or_url, which)


_EXPORTS = {
    "RetrievalReport": "hgld.evaluation.report",
    "audit": "hgld.label_audit.audit",
    "calibrate": "hgld.prediction.calibration",
    "evaluate": "hgld.evaluation.evaluate",
    "Hierarchy": "hgld.hierarchy",
    "graded_relevance": "hgld.relevance",
    "open_dataset": "hgld.data.dataset",
    "predict": "hgld.prediction.predict",
    "shared_levels": "hgld.relevance",
    "stream": "hgld.data.streaming",
}

_NAMESPACES = ("data", "distributed", "losses", "metrics", "samplers")

__all__ = [
    "Hierarchy",
    "RetrievalReport",
    "__version__",
    "audit",
    "calibrate",
    "data",
    "distributed",
    "evaluate",
    "graded_relevance",
    "load_model",
    "losses",
    "metrics",
    "open_dataset",
    "predict",
    "samplers",
    "shared_levels",
    "stream",
]


if not TYPE_CHECKING:  # a checker that saw it would take every misspelt name for a good one

    def __getattr__(name: str) -> Any:
        if name in _EXPORTS:
            return getattr(import_module(_EXPORTS[name]), name)
        if name in _NAMESPACES:
            return import_module(f"hgld.{name}")
        raise AttributeError(f"module 'hgld' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""hgld: hierarchies, datasets, rank losses and metrics for hierarchical image retrieval.

Names are imported lazily (PEP 562), so that the command line starts without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from hgld.version import __version__ as __version__

if TYPE_CHECKING:
    from hgld import data as data
    from hgld import distributed as distributed
    from hgld import losses as losses
    from hgld import metrics as metrics
    from hgld import samplers as samplers
    from hgld.data.dataset import load_dataset as load_dataset
    from hgld.data.dataset import open_dataset as open_dataset
    from hgld.data.streaming import stream as stream
    from hgld.evaluation.evaluate import evaluate as evaluate
    from hgld.evaluation.report import RetrievalReport as RetrievalReport
    from hgld.hierarchy import Hierarchy as Hierarchy
    from hgld.label_audit.audit import audit as audit
    from hgld.prediction.calibration import calibrate as calibrate
    from hgld.prediction.predict import predict as predict
    from hgld.prediction.search import search as search
    from hgld.relevance import graded_relevance as graded_relevance
    from hgld.relevance import shared_levels as shared_levels
    from hgld.training.inference.model import Model
    from hgld.training.runs import train as train


def load_model(source: Any, which: 'Literal["best", "last"]' = "best", **options: Any) -> "Model":
    """Load any model that embeds images: a run, a library's network, an ONNX file, or a torch module with a transform.

    :mod:`hgld.training.inference.model` has the implementation, and describes the arguments of ``load_model``.
    """
    return import_module("hgld.training.inference.model").load_model(source, which, **options)


_EXPORTS = {
    "RetrievalReport": "hgld.evaluation.report",
    "audit": "hgld.label_audit.audit",
    "calibrate": "hgld.prediction.calibration",
    "evaluate": "hgld.evaluation.evaluate",
    "Hierarchy": "hgld.hierarchy",
    "graded_relevance": "hgld.relevance",
    "load_dataset": "hgld.data.dataset",
    "open_dataset": "hgld.data.dataset",
    "predict": "hgld.prediction.predict",
    "search": "hgld.prediction.search",
    "shared_levels": "hgld.relevance",
    "stream": "hgld.data.streaming",
    "train": "hgld.training.runs",
}

_NAMESPACES = ("data", "distributed", "losses", "metrics", "samplers")

__all__ = sorted([*_EXPORTS, *_NAMESPACES, "__version__", "load_model"])  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # if type checkers saw __getattr__, they would accept misspelt names

    def __getattr__(name: str) -> Any:
        if name in _EXPORTS:
            return getattr(import_module(_EXPORTS[name]), name)
        if name in _NAMESPACES:
            return import_module(f"hgld.{name}")
        raise AttributeError(f"module 'hgld' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

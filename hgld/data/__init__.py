"""Reading of dataset directories: files, bytes, images, datasets and batches."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hgld.data.batch import Batch as Batch
    from hgld.data.batch import collate as collate
    from hgld.data.batch import normalize as normalize
    from hgld.data.dataset import ShardDataset as ShardDataset
    from hgld.data.dataset import open_dataset as open_dataset
    from hgld.data.loader import Loader as Loader
    from hgld.data.streaming import ShardStream as ShardStream
    from hgld.data.streaming import stream as stream
    from hgld.data.views import TestView as TestView
    from hgld.data.views import TrainView as TrainView

_EXPORTS = {
    "Batch": "hgld.data.batch",
    "Loader": "hgld.data.loader",
    "ShardDataset": "hgld.data.dataset",
    "ShardStream": "hgld.data.streaming",
    "TestView": "hgld.data.views",
    "TrainView": "hgld.data.views",
    "collate": "hgld.data.batch",
    "normalize": "hgld.data.batch",
    "open_dataset": "hgld.data.dataset",
    "stream": "hgld.data.streaming",
}

__all__ = list(_EXPORTS)  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept every misspelt name

    def __getattr__(name: str) -> Any:
        if name not in _EXPORTS:
            raise AttributeError(f"module 'hgld.data' has no attribute {name!r}")
        return getattr(import_module(_EXPORTS[name]), name)

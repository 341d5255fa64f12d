"""Retrieval metrics as a torchmetrics metric; imported only on request, because torchmetrics is optional."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import Metric  # pyright: ignore[reportMissingImports]

from hgld.errors import ConfigError

if TYPE_CHECKING:
    from hgld.evaluation.running import Retrieval


class TorchRetrieval(Metric):
    """A :class:`hgld.metrics.Retrieval` for ``torchmetrics.MetricCollection`` and ``LightningModule.log``.

    A call updates the metric and returns the values of the batch, in which every item queries the other items;
    :meth:`compute` evaluates all batches together.

    Args:
        retrieval: metric to update and compute; it gathers the batches of all processes itself.
        value: name of the metric that :meth:`compute` returns as a scalar; None: a dict of all metrics.
    """

    full_state_update = True
    higher_is_better = True

    def __init__(self, retrieval: "Retrieval", value: str | None = None) -> None:
        super().__init__(sync_on_compute=False)
        self.retrieval, self.value = retrieval, value

    def update(self, *args: Any, **kwargs: Any) -> None:
        self.retrieval.update(*args, **kwargs)

    def compute(self) -> Tensor | dict[str, Tensor]:
        return self._tensors(self.retrieval.compute())

    def _tensors(self, found: dict[str, float]) -> Tensor | dict[str, Tensor]:
        if self.value is None:
            return {name: torch.tensor(value) for name, value in found.items()}
        if found and self.value not in found:
            raise ConfigError(f"metric {self.value!r} is not computed; computed metrics: {', '.join(found)}.")
        return torch.tensor(found.get(self.value, torch.nan))  # NaN if a batch has no value

    def reset(self) -> None:
        super().reset()
        self.retrieval.reset()

    def forward(self, *args: Any, **kwargs: Any) -> Tensor | dict[str, Tensor]:
        self.update(*args, **kwargs)
        self._forward_cache = self._tensors(self.retrieval.of_batch(*args, **kwargs))
        return self._forward_cache

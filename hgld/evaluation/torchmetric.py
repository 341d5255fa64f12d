"""Retrieval metrics as a metric of torchmetrics; imported where one is asked for."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import Metric  # pyright: ignore[reportMissingImports]

if TYPE_CHECKING:
    from hgld.evaluation.running import Retrieval


class TorchRetrieval(Metric):
    """A :class:`hgld.metrics.Retrieval` for ``torchmetrics.MetricCollection`` and ``LightningModule.log``.

    A call is an update and returns nothing: a batch has no value of its own, as its gallery are the other batches.

    Args:
        retrieval: what is updated and computed; it gathers the processes' batches itself.
        value: the metric that :meth:`compute` returns as a scalar; None: all of them, by name.
    """

    full_state_update = True
    higher_is_better = True

    def __init__(self, retrieval: "Retrieval", value: str | None = None) -> None:
        super().__init__(sync_on_compute=False)
        self.retrieval, self.value = retrieval, value

    def update(self, *args: Any, **kwargs: Any) -> None:
        self.retrieval.update(*args, **kwargs)

    def compute(self) -> Tensor | dict[str, Tensor]:
        values = {name: torch.tensor(value) for name, value in self.retrieval.compute().items()}
        return values if self.value is None else values[self.value]

    def reset(self) -> None:
        super().reset()
        self.retrieval.reset()

    def forward(self, *args: Any, **kwargs: Any) -> None:
        self.update(*args, **kwargs)

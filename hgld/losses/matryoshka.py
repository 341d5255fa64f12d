"""A loss of several prefixes of the embeddings, each of which is then an embedding of its own."""

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from hgld.errors import ConfigError, InputError
from hgld.losses.calls import reads_labels


class MatryoshkaLoss(nn.Module):
    """The weighted mean of a loss over prefixes of the embeddings (Kusupati et al., NeurIPS 2022, Eq. 1).

    The first ``dims[0]`` numbers of an embedding, the first ``dims[1]``, ... are each normalised and given to the loss,
    as if they were the whole. So short prefixes make fast first searches, and one model serves every size.

    Args:
        losses: one loss, which every prefix shares, or one a prefix (proxies must be of a prefix's own size).
        dims: sizes of the prefixes, ascending; the last one is usually D.
        weights: of the prefixes; equal if None.

    Raises:
        ConfigError: dims that do not ascend, lists of other lengths or weights that are not above 0,
            or a loss that does not return a scalar.

    >>> import torch
    >>> from hgld.losses import MatryoshkaLoss, SupHAP
    >>> _ = torch.manual_seed(0)
    >>> labels = torch.tensor([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1]])
    >>> MatryoshkaLoss(SupHAP(), dims=(2, 8))(torch.randn(6, 8), labels).shape
    torch.Size([])
    """

    def __init__(
        self,
        losses: nn.Module | Sequence[nn.Module],
        dims: Sequence[int],
        weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        parts = [losses] if isinstance(losses, nn.Module) else list(losses)
        for loss in parts:
            if getattr(loss, "reduction", "mean") == "none":
                raise ConfigError(f"{type(loss).__name__} has reduction='none'; a mean over prefixes needs scalars.")
        self.dims = tuple(dims)
        self.weights = (1.0,) * len(self.dims) if weights is None else tuple(map(float, weights))
        if not self.dims or self.dims[0] < 1 or sorted(set(self.dims)) != list(self.dims):
            raise ConfigError(f"dims are {self.dims}; expected the sizes of prefixes, ascending.")
        if len(parts) not in (1, len(self.dims)) or len(self.weights) != len(self.dims):
            raise ConfigError(
                f"there are {len(parts)} losses and {len(self.weights)} weights for the prefixes {self.dims}; expected "
                "one loss, or one of each per prefix."
            )
        if not all(weight > 0 for weight in self.weights):
            raise ConfigError(f"weights are {self.weights}; expected numbers above 0.")
        self.losses = nn.ModuleList(parts)

    @reads_labels
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_embeddings: Tensor | None = None,
        ref_labels: Tensor | None = None,
        self_index: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch; arguments and errors are those of the loss.

        Raises:
            InputError: embeddings shorter than the last prefix.
        """
        if embeddings.shape[1] < self.dims[-1]:
            raise InputError(f"embeddings have {embeddings.shape[1]} dimensions; the prefixes are {self.dims}.")
        total = embeddings.new_zeros(())
        for i, (dim, weight) in enumerate(zip(self.dims, self.weights, strict=True)):
            loss = self.losses[i if len(self.losses) > 1 else 0]
            references = None if ref_embeddings is None else ref_embeddings[:, :dim]
            value = loss(embeddings[:, :dim], labels, references, ref_labels, self_index)
            total = total + weight * cast(Tensor, value)
        return total / sum(self.weights)

    def extra_repr(self) -> str:
        return f"dims={self.dims}, weights={self.weights}"

"""Similarity mixup: virtual items between two items of a class."""

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError
from hgld.losses.calls import reads_labels
from hgld.losses.rank_loss import Reduction, label_column, on_device, unit_rows


class SiMix(nn.Module):
    """Similarity mixup (Patel et al., "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", CVPR 2022).

    For every pair of a batch's items of one finest class, a virtual item between them joins the batch as query and
    gallery item. Its scores are the mixture of the scores of both; since a score is an inner product, mixing the unit
    vectors, without normalising again, is the same, and the wrapped loss must have ``normalize=False``. A class of K
    items gives K (K - 1) / 2 virtual ones: meant for batches of few items a class. In ``eval`` mode nothing is mixed.
    How many virtual items there are depends on the labels: torch.compile breaks its graph here, not in the loss, and a
    GPU is waited for where the labels lie on it. Labels on the CPU, with embeddings on a GPU, are not waited for.

    Args:
        loss: a rank loss with ``normalize=False``.

    Attributes:
        loss: the loss.
        reduction: of the loss; ``none`` gives the virtual queries' values too, after those of the batch.

    Raises:
        ConfigError: a loss that normalises.

    >>> from hgld.losses import SmoothRecall
    >>> loss = SiMix(SmoothRecall(normalize=False))
    """

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        if getattr(loss, "normalize", True):
            raise ConfigError(
                f"{type(loss).__name__} normalises, which would undo the mixing of scores; give it normalize=False "
                "(SiMix normalises the real items itself)."
            )
        self.loss = loss
        self.reduction: Reduction = getattr(loss, "reduction", "mean")

    @reads_labels
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_embeddings: Tensor | None = None,
        ref_labels: Tensor | None = None,
        self_index: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the loss of the batch and its virtual items; arguments and errors as in :meth:`RankLoss.forward`.

        References are not mixed; virtual queries are none of them.
        """
        queries = unit_rows(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)))
        if self.training:
            virtual, virtual_labels = mix_positives(queries, labels)
            queries, labels = torch.cat([queries, virtual]), torch.cat([labels, virtual_labels])
            if self_index is not None:
                self_index = torch.cat([self_index, self_index.new_full((len(virtual),), -1)])
        if ref_embeddings is not None:
            ref_embeddings = unit_rows(ref_embeddings.to(queries.dtype))
        return self.loss(queries, labels, ref_embeddings, ref_labels, self_index)


def mix_positives(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mix a virtual item for every pair of items of one finest class.

    Args:
        embeddings: (B, D) floating.
        labels: (B, L) or (B,) integers, finest level first; items of unknown finest label are not mixed.

    Returns:
        a x_i + (1 - a) x_j, a drawn uniformly from [0, 1] by torch's generator, (V, D), and the labels of the i: (V, L)
        or (V,).
    """
    finest = label_column(labels, 0)
    same = (finest[:, None] == finest) & (finest >= 0)
    first, second = same.triu(diagonal=1).nonzero(as_tuple=True)
    share = torch.rand(len(first), 1, dtype=embeddings.dtype, device=embeddings.device)
    first_at, second_at = on_device(first, embeddings.device), on_device(second, embeddings.device)
    return share * embeddings[first_at] + (1 - share) * embeddings[second_at], labels[first]

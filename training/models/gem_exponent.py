"""The exponent of GeM for another resolution than the training's: p*.

A network trained at one resolution is tested at a higher one with a larger p, because what an image shows then fills
fewer of the places (Berman et al., "MultiGrain: a unified image embedding for classes and instances", 2019, section
4.3). p* is the one by which views of an image find each other best; no label of a class is looked at.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hgld.errors import ConfigError, InputError
from training.models.embedding_model import EmbeddingModel
from training.models.pooling import GeM

_ROWS = 1024  # queries at a time


@torch.no_grad()
def best_gem_p(
    model: EmbeddingModel,
    batches: Iterable[tuple[Tensor, Tensor]],
    candidates: Sequence[float] = tuple(range(1, 11)),
) -> tuple[float, dict[float, float]]:
    """Choose p at the resolution of the images that are given.

    The paper takes 5 random views of each of 2,000 training images, at the size of the test. The model is left as it
    is; ``model.pooling = GeM(p, learned=False)`` takes the choice.

    Args:
        model: with GeM pooling; in evaluation mode meanwhile.
        batches: (B, 3, H, W) normalised images where the model computes, and the (B,) integers of the image that each
            is a view of. An image without another view is no query.
        candidates: exponents above 0.

    Returns:
        the best p, the smallest of equals; and for every candidate the mean over the views of the share of an image's
        other views among as many nearest ones.

    Raises:
        ConfigError: the model pools otherwise, or a candidate is not above 0.
        InputError: no image has two views.
    """
    if not isinstance(model.pooling, GeM):
        raise ConfigError("p* is the exponent of GeM, and this model pools otherwise; take pooling gem.")
    if not candidates:
        raise ConfigError("there are no candidates for p; expected numbers above 0.")
    pools = {float(p): GeM(p, learned=False) for p in sorted(candidates)}
    embedded: dict[float, list[Tensor]] = {p: [] for p in pools}
    instances: list[Tensor] = []
    was_training = model.training
    model.eval()
    try:
        for images, views_of in batches:
            maps = model.backbone(images)
            for p, pool in pools.items():
                rows = model.projection(model.norm(pool.to(maps.device)(maps)))
                embedded[p].append(normalize(rows.float(), dim=1).cpu())
            instances.append(views_of.cpu())
    finally:
        model.train(was_training)
    if not instances:
        raise InputError("there are no images to choose p by.")
    numbers = torch.cat(instances)
    scores = {p: _views_found(torch.cat(rows), numbers) for p, rows in embedded.items()}
    return max(scores, key=scores.__getitem__), scores


def _views_found(embeddings: Tensor, instances: Tensor) -> float:
    """Mean over queries of the share of the n other views that are among the n nearest items."""
    number, counts = instances.unique(return_inverse=True, return_counts=True)[1:]
    others = counts[number] - 1
    most = int(others.max())
    if most == 0:
        raise InputError("no image has two views; give several views of each, for instance 5.")
    found = torch.zeros(len(instances), dtype=torch.float64)
    for start in range(0, len(instances), _ROWS):
        rows = torch.arange(start, min(start + _ROWS, len(instances)))
        scores = embeddings[rows] @ embeddings.T
        scores[torch.arange(len(rows)), rows] = -torch.inf
        nearest = number[scores.topk(most).indices] == number[rows, None]
        counted = torch.arange(most) < others[rows, None]
        found[rows] = (nearest & counted).sum(1).double() / others[rows].clamp(min=1)
    return float(found[others > 0].mean())

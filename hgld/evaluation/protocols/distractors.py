"""Galleries with distractors: items that make retrieval harder and are relevant to no query."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hgld.errors import InputError
from hgld.evaluation.evaluate import evaluate
from hgld.evaluation.report import RetrievalReport


def stack_gallery(gallery: Tensor | np.ndarray, distractors: Tensor | np.ndarray) -> Tensor | np.ndarray:
    """Stack distractors behind the embeddings of a gallery, whose indices stay.

    Args:
        gallery: (G, D).
        distractors: (N, D).

    Returns:
        (G + N, D): an array if both are arrays, else a tensor on the gallery's device.

    Raises:
        InputError: the dimensions differ.
    """
    if gallery.ndim != 2 or distractors.ndim != 2 or gallery.shape[1] != distractors.shape[1]:
        raise InputError(
            f"gallery embeddings have shape {tuple(gallery.shape)}, distractors {tuple(distractors.shape)}; expected "
            "two tables of as many dimensions."
        )
    if isinstance(gallery, np.ndarray) and isinstance(distractors, np.ndarray):
        return np.concatenate([gallery, distractors])
    device = gallery.device if isinstance(gallery, Tensor) else "cpu"
    return torch.cat([torch.as_tensor(gallery), torch.as_tensor(distractors).to(device)])


def with_distractors(
    gallery: Tensor | np.ndarray,
    labels: Tensor | np.ndarray,
    distractors: Tensor | np.ndarray,
    distractor_labels: Tensor | np.ndarray | None = None,
) -> tuple[Tensor | np.ndarray, np.ndarray]:
    """Return a gallery with distractors behind it, and the labels of both.

    Args:
        gallery: (G, D).
        labels: (G, L) integers, finest level first; (G,) for one level.
        distractors: (N, D).
        distractor_labels: (N, L); None: unknown at every level, which matches nothing.

    Raises:
        InputError: dimensions or levels differ.
    """
    known = _as_array(labels)
    unknown = np.full((len(distractors), *known.shape[1:]), -1)
    more = unknown if distractor_labels is None else _as_array(distractor_labels)
    if known.ndim != more.ndim or known.shape[1:] != more.shape[1:]:
        raise InputError(
            f"gallery labels have shape {known.shape}, distractor labels {more.shape}; expected as many levels."
        )
    return stack_gallery(gallery, distractors), np.concatenate([known, more])


def evaluate_with_distractors(
    embeddings: Tensor | np.ndarray,
    labels: Tensor | np.ndarray,
    distractors: Tensor | np.ndarray,
    distractor_labels: Tensor | np.ndarray | None = None,
    gallery_embeddings: Tensor | np.ndarray | None = None,
    gallery_labels: Tensor | np.ndarray | None = None,
    **options: Any,
) -> RetrievalReport:
    """Evaluate with further items in the gallery that query nothing.

    Without a gallery of its own every item queries the others and the distractors (leave-one-out). With
    ``distractor_labels`` the further items may be relevant, as in DyML's test sets, where the queries are part
    of the gallery.

    Args:
        embeddings: (Q, D) of the queries.
        labels: (Q, L) integers, finest level first; (Q,) for one level.
        distractors: (N, D).
        distractor_labels: (N, L); None: unknown at every level, which matches nothing.
        gallery_embeddings: (G, D); None for leave-one-out.
        gallery_labels: (G, L).
        **options: keyword arguments of :func:`hgld.evaluate`: levels, metrics, alpha, device and so on.

    Returns:
        the report; its settings say how many distractors there were.

    Raises:
        InputError: shapes that do not fit together, and whatever :func:`hgld.evaluate` refuses.
    """
    leave_one_out = gallery_embeddings is None
    if leave_one_out != (gallery_labels is None):
        raise InputError("gallery embeddings and gallery labels come together: one of them is missing.")
    base = (
        (embeddings, labels)
        if gallery_embeddings is None or gallery_labels is None
        else (gallery_embeddings, gallery_labels)
    )
    gallery, known = with_distractors(*base, distractors, distractor_labels)
    if leave_one_out:
        options["self_index"] = np.arange(len(embeddings))
    report = evaluate(embeddings, labels, gallery, known, **options)
    protocol = ("leave-one-out" if leave_one_out else "query against gallery") + " with distractors"
    return replace(report, settings=report.settings | {"protocol": protocol, "distractors": len(distractors)})


def _as_array(labels: Tensor | np.ndarray) -> np.ndarray:
    return labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)

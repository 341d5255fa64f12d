"""Calls of losses: with labels of any kind, and in pytorch-metric-learning's order of arguments."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hgld.errors import ConfigError, InputError
from hgld.labels import class_numbers

# -- arguments by the names of other libraries -------------------------------------------------------------------------

_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


class KnownArguments:
    """Base of losses that answer an argument of another library by hgld's own name for it.

    Attributes:
        other_names: arguments of pytorch-metric-learning, each with what to give here.
    """

    other_names: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _answering(cls.__init__)


def _answering(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def answer(self: KnownArguments, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError as error:
            found = _UNEXPECTED.search(str(error))
            if found is None or found[1] not in self.other_names:
                raise
            said = f"{type(self).__name__} has no argument {found[1]!r}; give {self.other_names[found[1]]}."
            raise ConfigError(said) from error

    return answer


# -- calls -------------------------------------------------------------------------------------------------------------


def reads_labels(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Let a loss's ``forward`` take what people have, and hand it tensors.

    Labels may be anything that :func:`hgld.labels.class_numbers` reads; names get numbers call by call, so a loss that
    keeps something of a class (``keeps_classes``: proxies, weights, a memory) takes numbers alone. Arguments may
    stand in pytorch-metric-learning's order: ``loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)``. The
    indices of a miner reach losses of pairs (``takes_pairs``); a rank is over the whole gallery, so other losses
    refuse them.
    """

    @functools.wraps(forward)
    def read(self: nn.Module, embeddings: Tensor, labels: Any, *references: Any, **named: Any) -> Any:
        if not isinstance(embeddings, Tensor):
            raise InputError(f"embeddings are {type(embeddings).__name__}; expected a tensor: torch.as_tensor(...).")
        references, named = _own_order(self, references, named)
        ref_labels = references[1] if len(references) > 1 else named.get("ref_labels")
        if not (isinstance(labels, Tensor) and isinstance(ref_labels, Tensor | None)):
            labels, ref_labels = _as_tensors(self, embeddings, labels, ref_labels)
            if len(references) > 1:
                references = (references[0], ref_labels, *references[2:])
            elif ref_labels is not None:
                named["ref_labels"] = ref_labels
        return forward(self, embeddings, labels, *references, **named)

    return read


def _own_order(loss: nn.Module, references: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict]:
    """Bring pytorch-metric-learning's arguments into hgld's order."""
    is_given = bool(references) and (references[0] is None or isinstance(references[0], tuple | list))
    theirs = is_given and (references[0] is not None or "ref_emb" in named or _is_embedding(references))
    if not theirs and not named.keys() & {"indices_tuple", "ref_emb"}:
        return references, named
    indices = named.pop("indices_tuple", None)
    if theirs:
        indices, references = references[0], references[1:]
    if "ref_emb" in named:
        named["ref_embeddings"] = named.pop("ref_emb")
    if indices is None:
        return references, named
    if not getattr(loss, "takes_pairs", False):
        raise InputError(
            f"{type(loss).__name__} got the indices of a miner (indices_tuple), which pick pairs; it ranks all items "
            "or compares them with proxies, so leave the miner out. hgld.losses.Contrastive, CalibrationLoss and "
            "Triplet take them, and hgld.losses.wrap(loss, miner) calls a loss of pytorch-metric-learning with one."
        )
    return references, {**named, "indices_tuple": indices}


def _is_embedding(references: Sequence[Any]) -> bool:
    return len(references) > 1 and isinstance(references[1], Tensor) and references[1].is_floating_point()


def _as_tensors(loss: nn.Module, embeddings: Tensor, labels: Any, ref_labels: Any) -> tuple[Tensor, Tensor | None]:
    sides = [labels] if ref_labels is None else [labels, ref_labels]
    keeping = next((type(part).__name__ for part in loss.modules() if getattr(part, "keeps_classes", False)), None)
    numbers, _ = class_numbers(*sides, what=("labels", "ref_labels"), numbered_for=keeping)
    found = [torch.from_numpy(side).to(embeddings.device) for side in numbers]
    return found[0], found[1] if len(found) > 1 else None


# -- pairs that a miner picked ----------------------------------------------------------------------------------------


def chosen_pairs(indices: Sequence[Tensor], shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Return (Q, G) bool of positive and of negative pairs that pytorch-metric-learning's miners picked.

    Args:
        indices: anchors, positives, anchors, negatives; or triplets (anchor, positive, negative), whose pairs count.
        shape: (Q, G).

    Raises:
        InputError: no such tuple.
    """
    if len(indices) not in (3, 4):
        raise InputError(f"indices_tuple has {len(indices)} parts; expected 4 of pairs or 3 of triplets.")
    anchor, positive, second, negative = indices if len(indices) == 4 else (*indices[:2], indices[0], indices[2])
    masks = []
    for rows, columns in ((anchor, positive), (second, negative)):
        mask = torch.zeros(shape, dtype=torch.bool, device=rows.device)
        mask[rows, columns] = True
        masks.append(mask)
    return masks[0], masks[1]

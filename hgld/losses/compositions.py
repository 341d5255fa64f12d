"""Losses made of losses: a rank term and a decomposability term, and one binary loss over all levels."""

from typing import Literal, TypedDict, Unpack, get_args

from torch import Tensor, nn

from hgld.errors import ConfigError
from hgld.losses.pair_loss import CalibrationLoss
from hgld.losses.proxies import NormSoftmax
from hgld.losses.rank_metric import Method
from hgld.losses.surrogate_loss import SupAP, SupHAP, SupNDCG, SupRecall
from hgld.relevance import RelevanceKind

Decomposability = Literal["pair", "proxy"]


class SupOptions(TypedDict, total=False):
    """The options of the rank term, by the names and with the defaults of :class:`SupAP`."""

    tau: float
    rho: float
    delta: float
    offset: float | None
    normalize: bool
    exclude_self: bool
    method: Method


class Composition(nn.Module):
    """(1 - lambda) x rank loss + lambda x decomposability loss.

    A rank loss of a batch says nothing of scores across batches; the second term lets the scores of different batches
    mean the same, so that a good order within batches is one over the whole set.

    Args:
        rank: the rank loss.
        decomposability: any loss behind the same call, with proxies or of pairs.
        lambda_: weight of the second term (0.1 in ROADMAP and the HAPPIER family; gains are stable below 0.5).

    Raises:
        ConfigError: ``lambda_`` outside 0..1, or a loss that does not return a scalar.
    """

    def __init__(self, rank: nn.Module, decomposability: nn.Module, lambda_: float = 0.1) -> None:
        super().__init__()
        if not 0 <= lambda_ <= 1:
            raise ConfigError(f"lambda_ is {lambda_}; expected the weight of the second term, in 0..1.")
        _refuse_tables(rank, decomposability)
        self.rank = rank
        self.decomposability = decomposability
        self.lambda_ = lambda_

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_embeddings: Tensor | None = None,
        ref_labels: Tensor | None = None,
        self_index: Tensor | None = None,
    ) -> Tensor:
        """Loss of a batch; arguments and errors are those of :meth:`RankLoss.forward`."""
        terms = self.terms(embeddings, labels, ref_embeddings, ref_labels, self_index)
        return (1 - self.lambda_) * terms["rank"] + self.lambda_ * terms["decomposability"]

    def terms(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_embeddings: Tensor | None = None,
        ref_labels: Tensor | None = None,
        self_index: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The two terms, not yet weighted, by their names."""
        args = (embeddings, labels, ref_embeddings, ref_labels, self_index)
        return {"rank": self.rank(*args), "decomposability": self.decomposability(*args)}

    def extra_repr(self) -> str:
        return f"lambda_={self.lambda_}"


class ROADMAP(Composition):
    """Sup-AP with the pair loss (Ramzi et al., NeurIPS 2021, Eq. 12) or, as mostly reported, with the proxy loss.

    Args:
        num_classes: of the level, for ``proxy``.
        dim: D, dimension of the embeddings, for ``proxy``.
        lambda_: weight of the second term.
        decomposability: ``pair`` (:class:`CalibrationLoss`) or ``proxy`` (:class:`NormSoftmax`).
        level: column of the labels, 0 the finest.
        temperature: of the proxies.
        options: of the rank term; the pair term takes ``normalize`` and ``exclude_self`` from them.

    Raises:
        ConfigError: ``proxy`` without sizes, or what the parts refuse.

    The thresholds of the pair loss are the published 0.9 and 0.6: for others, give :class:`Composition` the parts.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        lambda_: float = 0.1,
        *,
        decomposability: Decomposability = "pair",
        level: int = 0,
        temperature: float = 0.05,
        **options: Unpack[SupOptions],
    ) -> None:
        second = _second_term(decomposability, num_classes, dim, level, temperature, options)
        super().__init__(SupAP(level=level, **options), second, lambda_)


class RODRecall(Composition):
    """Sup-R@k with a decomposability term (Ramzi et al., "Optimization of Rank Losses for Image Retrieval", 2023).

    Args:
        num_classes: of the level, for ``proxy``.
        dim: D, dimension of the embeddings, for ``proxy``.
        lambda_: weight of the second term.
        k: the cutoffs that recall is averaged over.
        temperature_k: of the sigmoid at the cutoffs.
        decomposability: ``proxy`` (:class:`NormSoftmax`) or ``pair`` (:class:`CalibrationLoss`).
        level: column of the labels, 0 the finest.
        temperature: of the proxies.
        options: of the rank term; the pair term takes ``normalize`` and ``exclude_self`` from them.

    Raises:
        ConfigError: ``proxy`` without sizes, or what the parts refuse.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        lambda_: float = 0.1,
        *,
        k: tuple[int, ...] = (1, 2, 4, 8, 16),
        temperature_k: float = 1.0,
        decomposability: Decomposability = "proxy",
        level: int = 0,
        temperature: float = 0.05,
        **options: Unpack[SupOptions],
    ) -> None:
        second = _second_term(decomposability, num_classes, dim, level, temperature, options)
        super().__init__(SupRecall(k, temperature_k, level=level, **options), second, lambda_)


class HAPPIER(Composition):
    """Sup-H-AP with proxies of the finest classes (Ramzi et al., "Hierarchical Average Precision Training", ECCV 2022).

    Args:
        num_classes: finest classes, for ``proxy``.
        dim: D, dimension of the embeddings, for ``proxy``.
        alpha: exponent of the relevance: 1 is HAPPIER; HAPPIER_F has 5 on Stanford Online Products, 3 on iNaturalist.
        lambda_: weight of the second term.
        relevance: see :func:`hgld.graded_relevance`.
        decomposability: ``proxy`` (:class:`NormSoftmax`) or ``pair`` (:class:`CalibrationLoss`), on the finest level.
        temperature: of the proxies.
        options: of the rank term; the pair term takes ``normalize`` and ``exclude_self`` from them.

    Raises:
        ConfigError: ``proxy`` without sizes, or what the parts refuse.

    >>> import torch
    >>> labels = torch.tensor([[0, 0], [0, 0], [1, 0], [2, 1]])  # finest first
    >>> HAPPIER(num_classes=3, dim=4)(torch.eye(4), labels).shape
    torch.Size([])
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        alpha: float = 1.0,
        lambda_: float = 0.1,
        *,
        relevance: RelevanceKind = "population",
        decomposability: Decomposability = "proxy",
        temperature: float = 0.05,
        **options: Unpack[SupOptions],
    ) -> None:
        second = _second_term(decomposability, num_classes, dim, 0, temperature, options)
        super().__init__(SupHAP(alpha, relevance=relevance, **options), second, lambda_)


class RODNDCG(Composition):
    """Sup-NDCG with a decomposability term on the finest level (Ramzi et al., 2023).

    Args:
        num_classes: finest classes, for ``proxy``.
        dim: D, dimension of the embeddings, for ``proxy``.
        lambda_: weight of the second term.
        decomposability: ``proxy`` (:class:`NormSoftmax`) or ``pair`` (:class:`CalibrationLoss`).
        temperature: of the proxies.
        options: of the rank term; the pair term takes ``normalize`` and ``exclude_self`` from them.

    Raises:
        ConfigError: ``proxy`` without sizes, or what the parts refuse.
    """

    def __init__(
        self,
        num_classes: int | None = None,
        dim: int | None = None,
        lambda_: float = 0.1,
        *,
        decomposability: Decomposability = "proxy",
        temperature: float = 0.05,
        **options: Unpack[SupOptions],
    ) -> None:
        second = _second_term(decomposability, num_classes, dim, 0, temperature, options)
        super().__init__(SupNDCG(**options), second, lambda_)


class SumOverLevels(nn.Module):
    """A binary loss summed over all levels: the sigma baselines of HAPPIER.

    Args:
        losses: one loss, which every level shares, or one a level, finest first (proxies must be of a level's own).
            Each sees one column of the labels, as (B,): its ``level`` stays 0.

    Raises:
        ConfigError: no loss, a graded one, or one that does not return a scalar.
    """

    def __init__(self, *losses: nn.Module) -> None:
        super().__init__()
        _refuse_tables(*losses)
        if not losses or any(getattr(loss, "graded", False) or getattr(loss, "level", 0) for loss in losses):
            raise ConfigError("SumOverLevels takes one binary loss, or one a level, each with level=0.")
        self.losses = nn.ModuleList(losses)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_embeddings: Tensor | None = None,
        ref_labels: Tensor | None = None,
        self_index: Tensor | None = None,
    ) -> Tensor:
        """Loss of a batch; arguments and errors are those of :meth:`RankLoss.forward`.

        Raises:
            ConfigError: another number of losses than levels.
        """
        columns = labels[:, None] if labels.ndim == 1 else labels
        references = ref_labels[:, None] if ref_labels is not None and ref_labels.ndim == 1 else ref_labels
        num_levels = columns.shape[1]
        if len(self.losses) not in (1, num_levels):
            raise ConfigError(
                f"there are {len(self.losses)} losses and the labels have {num_levels} levels; give one, or one a "
                "level."
            )
        total = embeddings.new_zeros(())
        for level in range(num_levels):
            loss = self.losses[level if len(self.losses) > 1 else 0]
            gallery = None if references is None else references[:, level]
            total = total + loss(embeddings, columns[:, level], ref_embeddings, gallery, self_index)
        return total


def _second_term(
    decomposability: str, num_classes: int | None, dim: int | None, level: int, temperature: float, options: SupOptions
) -> nn.Module:
    if decomposability not in get_args(Decomposability):
        expected = ", ".join(get_args(Decomposability))
        raise ConfigError(f"decomposability {decomposability!r} is unknown; expected one of {expected}.")
    if decomposability == "pair":
        return CalibrationLoss(
            level=level, normalize=options.get("normalize", True), exclude_self=options.get("exclude_self", False)
        )
    if num_classes is None or dim is None:
        raise ConfigError("decomposability 'proxy' needs num_classes and dim, one proxy a class; 'pair' needs neither.")
    return NormSoftmax(num_classes, dim, temperature, level=level)


def _refuse_tables(*losses: nn.Module) -> None:
    for loss in losses:
        if getattr(loss, "reduction", "mean") == "none":
            raise ConfigError(f"{type(loss).__name__} has reduction='none'; a sum of losses needs scalars.")

"""Options of an evaluation; imports nothing heavy, because the help of ``hgld evaluate`` is made of them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hgld.errors import ConfigError
from hgld.evaluation.metric_kinds import offered_names
from hgld.settings import setting

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from hgld.evaluation.metric import GainFunction

DEFAULT_METRICS = ("R@1", "AP", "mAP@R", "H-AP", "NDCG", "ASI")

Progress = Callable[[str, int, int | None], None]
Share = Callable[[Callable[[range], Any], int], Any]


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise ValueError("names separated by commas, none of them empty")
    return names


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise ValueError("numbers separated by commas") from None


def _expansion(text: str) -> tuple[float, int]:
    try:
        alpha, k = text.split(",")
        return float(alpha), int(k)
    except ValueError:
        raise ValueError("two numbers, for instance 2,10") from None


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(map(int, text.split(",")))
    except ValueError:
        sizes = ()
    if not sizes or sizes[0] < 1 or sorted(set(sizes)) != list(sizes):
        raise ValueError("whole numbers above 0, ascending, separated by commas")
    return sizes


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Options that every evaluation takes, beside its embeddings and their relevance.

    The fields that ``hgld evaluate`` has as flags say themselves what they are; the others are:

    Attributes:
        backend: ``native`` (compiled, the CPU alone) or ``torch``; None takes ``native`` on the CPU.
        part: consecutive queries to rank, where several processes share the work: the report's ``per_query`` and means
            are theirs alone, its settings those of the whole. None: all.
        share: called with a function that ranks consecutive queries, and their number, to have several processes rank
            a share each; returns the report of all. None: this process ranks them.
        progress: called with a task, the number of queries done and their total.
    """

    metrics: Iterable[Any] = setting(
        DEFAULT_METRICS,
        "Metrics; a binary one without a level stands for every level: R@1, AP/LEVEL, mAP@R, H-AP, NDCG, ASI, ...",
        metavar="A,B,C",
        parse=_names,
        offered=offered_names,
        common=True,
    )
    alpha: float = setting(1.0, "Exponent of population and total relevance.")
    relevance: Literal["population", "total", "weighted_ap", "exponential"] = setting(
        "population", "Gain of a shared level in H-AP, H-R@k and H-P@k."
    )
    count_query: bool = setting(
        True,
        "In leave-one-out with population relevance count the query in its own class, as published H-AP does; it is "
        "never ranked.",
    )
    weights: Sequence[float] | None = setting(
        None,
        "Weights of the levels in wAP and weighted_ap relevance, coarsest first.  [default: equal]",
        flag="level-weights",
        metavar="X,Y,Z",
        parse=_numbers,
    )
    normalize: bool = setting(True, "Rank by cosine similarities, or by dot products.")
    query_expansion: tuple[float, int] | None = setting(
        None, "Alpha query expansion before ranking; papers take 2,10.", metavar="ALPHA,K", parse=_expansion
    )
    prefixes: tuple[int, ...] = setting(
        (),
        "Evaluate embeddings truncated to these dimensions too, ascending: 32,64,128.",
        flag="truncate-dim",
        metavar="M,N,...",
        parse=_sizes,
    )
    codes: tuple[str, ...] = setting(
        (),
        "Evaluate quantized embeddings too, with the difference in every metric: int8, binary.",
        flag="quantize",
        metavar="int8,binary",
        parse=_names,
    )
    device: Any = setting(
        None,
        "Device, as cpu or cuda.  [default: the embeddings' own; with a model a GPU if there is one]",
        metavar="TEXT",
        parse=str,
    )
    chunk_size: int | None = setting(None, "Queries ranked at a time.  [default: by the free memory]", least=1)
    backend: str | None = None
    part: range | None = None
    share: Share | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.query_expansion is not None and not self.normalize:
            raise ConfigError(
                "query expansion makes unit vectors; leave it out, or let embeddings be normalised (--normalize)."
            )

    def expanded(
        self, query: "Tensor | np.ndarray", gallery: "Tensor | np.ndarray", self_index: "np.ndarray | None" = None
    ) -> "Tensor | np.ndarray":
        """Return the (Q, D) queries, expanded by the (G, D) gallery if that is asked for."""
        if self.query_expansion is None:
            return query
        from hgld.evaluation.postprocess import expand_queries

        alpha, k = self.query_expansion
        place = {"device": self.device, "progress": self.progress}
        return expand_queries(query, gallery, k=k, alpha=alpha, self_index=self_index, **place)

    def gain(self, *, leave_one_out: bool) -> "GainFunction":
        """Return the gain of the hierarchical metrics; in leave-one-out ``count_query`` counts.

        Raises:
            ConfigError: an unknown kind of relevance, or numbers that it cannot take.
        """
        from hgld.evaluation.metric import GainFunction

        weights = None if self.weights is None else tuple(self.weights)
        return GainFunction(self.relevance, self.alpha, weights, self.count_query and leave_one_out)

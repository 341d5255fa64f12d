"""Options of an evaluation. Imports nothing slow, because the help of ``hgld evaluate`` reads this module."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from hgld.errors import ConfigError
from hgld.evaluation.metric import offered_names
from hgld.settings import setting

DEFAULT_METRICS = ("R@1", "AP", "mAP@R", "H-AP", "NDCG", "ASI")

Progress = Callable[[str, int, int | None], None]


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise ValueError("names separated by commas, none of them empty")
    return names


def _expansion(text: str) -> tuple[float, int]:
    try:
        alpha, k = text.split(",")
        return float(alpha), int(k)
    except ValueError:
        raise ValueError("two numbers, for instance 2,10") from None


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Options of every evaluation, in addition to embeddings and relevance.

    The help texts describe the fields that are flags of ``hgld evaluate``. The other fields are:

    Attributes:
        share: division of the evaluation among processes (:class:`hgld.evaluation.row_table.Sharing`); None: this
            process does everything.
        progress: function that is called with a task name, the number of finished queries and the total number.
    """

    metrics: Iterable[Any] = setting(
        DEFAULT_METRICS,
        "Metrics to compute: R@1, AP/LEVEL, mAP@R, H-AP, NDCG, ASI, ... Without /LEVEL, R@1 and AP are computed at "
        "every level.",
        metavar="A,B,C",
        parse=_names,
        offered=offered_names,
        common=True,
    )
    alpha: float = setting(1.0, "Exponent alpha of --relevance population and total.")
    relevance: Literal["population", "total", "weighted_ap", "exponential"] = setting(
        "population", "Definition of an item's relevance in H-AP, H-R@k and H-P@k."
    )
    count_query: bool = setting(
        True,
        "Count the query as an item of its own class, as published H-AP does (only in leave-one-out with population "
        "relevance). The query is never ranked.",
    )
    weights: tuple[float, ...] | None = setting(
        None,
        "Weights of the levels in wAP and weighted_ap relevance, coarsest first.  [default: equal]",
        flag="level-weights",
        metavar="X,Y,Z",
    )
    normalize: bool = setting(True, "Rank by cosine similarity; if off, by dot product.")
    query_expansion: tuple[float, int] | None = setting(
        None, "Alpha query expansion before ranking; papers use 2,10.", metavar="ALPHA,K", parse=_expansion
    )
    truncate_dim: tuple[int, ...] = setting(
        (),
        "Also evaluate embeddings truncated to these dimensions, in ascending order: 32,64,128.",
        metavar="M,N,...",
    )
    quantize: tuple[Literal["int8", "binary"], ...] = setting(
        (), "Also evaluate quantized embeddings, and report the difference in every metric.", metavar="int8,binary"
    )
    device: Any = setting(
        None,
        "Device: cpu, cuda, ...  [default: the device of the embeddings; with a model a GPU if there is one]",
        metavar="TEXT",
        parse=str,
    )
    chunk_size: int | None = setting(
        None, "Number of queries that are ranked at once.  [default: as many as the free memory allows]", least=1
    )
    share: Any = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        dims = self.truncate_dim
        if any(dim < 1 for dim in dims) or sorted({*dims}) != [*dims]:
            raise ConfigError(f"truncate_dim is {dims}; expected ascending numbers >= 1.")
        if unknown := {*self.quantize} - {"int8", "binary"}:
            raise ConfigError(f"quantize is {unknown.pop()!r}; expected int8, binary.")
        if self.query_expansion is not None and not self.normalize:
            raise ConfigError(
                "query expansion makes unit vectors, but normalize is off (--no-normalize). Omit one of them."
            )
        if self.query_expansion is not None and (self.truncate_dim or self.quantize):
            raise ConfigError(
                "query expansion uses whole vectors; omit query_expansion, or omit truncate_dim and quantize."
            )

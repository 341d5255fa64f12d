"""Options of an evaluation; imports nothing heavy, because the help of ``hgld evaluate`` is made of them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from hgld.errors import ConfigError
from hgld.evaluation.metric import offered_names
from hgld.settings import setting

DEFAULT_METRICS = ("R@1", "AP", "mAP@R", "H-AP", "NDCG", "ASI")

Progress = Callable[[str, int, int | None], None]
Share = Callable[[Callable[[range], Any], int], Any]


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
    """Options that every evaluation takes besides its embeddings and their relevance.

    The fields that are flags of ``hgld evaluate`` have their help as description. The others are:

    Attributes:
        share: function that lets several processes rank a share of the queries each. It is called with a function that
            ranks consecutive queries and the number of queries, and returns the report of all. None: this process ranks
            them alone.
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
    weights: tuple[float, ...] | None = setting(
        None,
        "Weights of the levels in wAP and weighted_ap relevance, coarsest first.  [default: equal]",
        flag="level-weights",
        metavar="X,Y,Z",
    )
    normalize: bool = setting(True, "Rank by cosine similarities, or by dot products.")
    query_expansion: tuple[float, int] | None = setting(
        None, "Alpha query expansion before ranking; papers take 2,10.", metavar="ALPHA,K", parse=_expansion
    )
    truncate_dim: tuple[int, ...] = setting(
        (),
        "Evaluate embeddings truncated to these dimensions too, ascending: 32,64,128.",
        metavar="M,N,...",
    )
    quantize: tuple[Literal["int8", "binary"], ...] = setting(
        (), "Evaluate quantized embeddings too, with the difference in every metric.", metavar="int8,binary"
    )
    device: Any = setting(
        None,
        "Device: cpu, cuda, ...  [default: the embeddings' own; with a model a GPU if there is one]",
        metavar="TEXT",
        parse=str,
    )
    chunk_size: int | None = setting(
        None, "Number of queries ranked at a time.  [default: by the free memory]", least=1
    )
    share: Share | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        dims = self.truncate_dim
        if any(dim < 1 for dim in dims) or sorted({*dims}) != [*dims]:
            raise ConfigError(f"truncate_dim is {dims}; expected ascending numbers from 1.")
        if unknown := {*self.quantize} - {"int8", "binary"}:
            raise ConfigError(f"quantize is {unknown.pop()!r}; expected int8, binary.")
        if self.query_expansion is not None and not self.normalize:
            raise ConfigError(
                "query expansion makes unit vectors; leave it out, or let embeddings be normalised (--normalize)."
            )
        if self.query_expansion is not None and (self.truncate_dim or self.quantize):
            raise ConfigError(
                "query expansion moves the queries by their whole vectors; leave it, or truncate_dim and quantize, out."
            )

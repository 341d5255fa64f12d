"""Which fields of a config are read only where others say so; imports nothing heavy.

What a loss takes is in ``training/loss_options.py``. Not in the table are fields that recipes set for a whole family of
runs (``lr_proxies``), and those that nobody would take for a change of the result (``lanes``).
"""

from collections.abc import Callable
from dataclasses import dataclass

from training.config import TrainConfig
from training.loss_options import COMPOSITIONS, WITH_PROXIES


@dataclass(frozen=True)
class Reader:
    """What reads a field.

    Attributes:
        reads: whether a config has it.
        name: in the words of the flags, to be read after "only".
    """

    reads: Callable[[TrainConfig], bool]
    name: str


def second_term(config: TrainConfig) -> str:
    """The second term of the loss where it is a composition: ``pair`` or ``proxy``; else empty."""
    loss = config.loss
    if loss.loss not in COMPOSITIONS:
        return ""
    return loss.decomposability or ("pair" if loss.loss == "ROADMAP" else "proxy")


def _has_own_parameters(config: TrainConfig) -> bool:
    return config.loss.loss in WITH_PROXIES or second_term(config) == "proxy"


def _courses(config: TrainConfig) -> tuple[str, str, str]:
    """The courses of the rates of backbone, head and the loss's own parameters; none for what is not there."""
    optimizer = config.optimizer
    proxies = optimizer.schedule_proxies or optimizer.schedule
    return (
        optimizer.schedule,
        optimizer.schedule_head or optimizer.schedule,
        proxies if _has_own_parameters(config) else "",
    )


def _optimizers(config: TrainConfig) -> set[str]:
    optimizer = config.optimizer
    own = {optimizer.optimizer_proxies or optimizer.optimizer} if _has_own_parameters(config) else set()
    return {optimizer.optimizer} | own


def _alpha(config: TrainConfig) -> bool:
    loss = config.loss
    return loss.pnp == "Dq" if loss.loss == "PNP" else loss.relevance in ("population", "total")


_GEM = Reader(lambda c: c.model.pooling == "gem", "pooling gem reads it")
_GROUPS = Reader(lambda c: c.batch.sampler == "hierarchical-pk", "sampler hierarchical-pk reads it")
_MEMORY = Reader(lambda c: c.loss.memory != 0, "a memory (--memory) reads it")
_OWN = Reader(_has_own_parameters, "a loss with parameters of its own (proxies, classifiers, beta) reads it")
_PAIR = Reader(lambda c: second_term(c) in ("", "pair"), "decomposability pair reads it")
_PROXY = Reader(lambda c: second_term(c) in ("", "proxy"), "decomposability proxy reads it")
_STEP = Reader(lambda c: "step" in _courses(c), "the schedule step reads it")

READERS: dict[str, Reader] = {
    "gem_p": _GEM,
    "gem_learned": _GEM,
    "projection": Reader(lambda c: c.model.dim > 0, "a projection (--dim above 0) reads it"),
    "coverage": Reader(
        lambda c: c.batch.sampler == "pk" and not c.batch.stream, "sampler pk without --stream reads it"
    ),
    "images_per_class": Reader(
        lambda c: c.batch.sampler in ("pk", "hierarchical-pk"), "samplers pk and hierarchical-pk read it"
    ),
    "super_level": _GROUPS,
    "super_classes": _GROUPS,
    "repeats": Reader(lambda c: c.batch.sampler == "repeated-augmentation", "sampler repeated-augmentation reads it"),
    "alpha": Reader(_alpha, "relevance population or total, or PNP's variant Dq, reads it"),
    "pnp_b": Reader(lambda c: c.loss.pnp == "Ib", "PNP's variant Ib reads it"),
    "pair_positive": _PAIR,
    "pair_negative": _PAIR,
    "proxy_temperature": _PROXY,
    "memory_from_epoch": _MEMORY,
    "memory_weight": _MEMORY,
    "optimizer_proxies": _OWN,
    "schedule_proxies": _OWN,
    "lr_floor_proxies": Reader(
        lambda c: _courses(c)[2] in ("cosine", "linear"),
        "a schedule cosine or linear of a loss with parameters of its own reads it",
    ),
    "lr_floor": Reader(
        lambda c: bool({"cosine", "linear"} & {*_courses(c)[:2]}), "schedules cosine and linear read it"
    ),
    "momentum": Reader(lambda c: "sgd" in _optimizers(c), "the optimizer sgd reads it"),
    "milestones": _STEP,
    "gamma": _STEP,
}
"""Of every field in it: what reads it. A value that nothing reads would be without effect."""

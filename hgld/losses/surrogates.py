"""Differentiable surrogates of the step function H(t) = 1 if t >= 0 else 0, of which a rank is a sum."""

import math
from dataclasses import dataclass

from hgld.errors import ConfigError


@dataclass(frozen=True)
class Sigmoid:
    """``sigmoid(t / tau)`` in place of every H, in the numerator and in the rank (Brown et al., ECCV 2020, Eq. 5).

    Attributes:
        tau: width of the step, in units of the score.

    Raises:
        ConfigError: tau is not positive and finite.
    """

    tau: float = 0.01

    def __post_init__(self) -> None:
        _check_positive(tau=self.tau)


@dataclass(frozen=True)
class SupStep:
    """H^- of SupRank, which replaces H for items of a lower grade; for others H stays, without a gradient.

    ``sigmoid(t/tau)`` for t < 0, ``sigmoid(t/tau) + 0.5`` for 0 <= t <= delta, ``rho (t - delta) + offset`` above
    (Ramzi et al., "Optimization of Rank Losses for Image Retrieval", Eq. 9). It is an upper bound of H everywhere,
    including t = 0, so the losses are upper bounds of 1 - metric. Its gradient does not vanish for items that are
    ranked far too high.

    Attributes:
        tau: width of the sigmoid, in units of the score.
        rho: slope beyond delta.
        delta: score at which the straight line begins.
        offset: value of the line at delta. None: ``sigmoid(delta/tau) + 0.5``, which makes H^- continuous. The
            authors' published configurations have 1.44, with which H^- falls at delta.

    Raises:
        ConfigError: tau is not positive, rho, delta or offset are negative, or something is not finite.
    """

    tau: float = 0.01
    rho: float = 100.0
    delta: float = 0.05
    offset: float | None = None

    def __post_init__(self) -> None:
        _check_positive(tau=self.tau)
        for name, value in (("rho", self.rho), ("delta", self.delta)):
            if not 0 <= value < math.inf:
                raise ConfigError(f"{name} is {value}; expected a finite number >= 0.")
        if self.offset is not None and not 0 <= self.offset < math.inf:  # below 0 a rank could come to 0
            raise ConfigError(f"offset is {self.offset}; expected a finite number >= 0, or None: the continuous H^-.")

    @property
    def line_start(self) -> float:
        """Value of the straight line at delta."""
        return 0.5 + 1 / (1 + math.exp(-self.delta / self.tau)) if self.offset is None else self.offset


Surrogate = Sigmoid | SupStep


def pack(surrogate: Surrogate) -> list[float]:
    """Return the numbers of a surrogate, as an operator's schema can carry them; :func:`unpack` reads them back."""
    if isinstance(surrogate, Sigmoid):
        return [surrogate.tau]
    return [surrogate.tau, surrogate.rho, surrogate.delta, surrogate.line_start]


def unpack(numbers: list[float]) -> Surrogate:
    """Restore a surrogate that :func:`pack` packed."""
    return Sigmoid(*numbers) if len(numbers) == 1 else SupStep(*numbers)


def _check_positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{name} is {value}; expected a finite number > 0.")

"""How a run ended, and how fast it went."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class RunSummary:
    """How a run ended.

    Attributes:
        finished: whether it reached its last epoch and its last evaluation.
        step: steps done.
        epoch: epochs done.
        best: metric, value, epoch and step of the best checkpoint; empty before the first evaluation.
        values: the last evaluation's metrics by split.
        seconds: of this call.
        images_per_second: over this call's steps, evaluations left out.
        wait_share: share of the steps' time in which the model waited for images.
        faults: images that were replaced because they could not be read, in this call, over all processes.
        run: the run's folder.
        profile: milliseconds of a step by phase, where they were asked for.
    """

    finished: bool
    step: int
    epoch: int
    best: Mapping[str, Any]
    values: Mapping[str, Mapping[str, float]]
    seconds: float
    images_per_second: float
    wait_share: float
    faults: int
    run: str
    profile: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    def to_text(self) -> str:
        """A few lines for people."""
        state = "finished" if self.finished else "stopped; the same command goes on"
        speed = f"{self.images_per_second:.1f} images/s, {self.wait_share:.1%} waiting for data"
        lines = [f"{self.run}: {state} after {self.step} steps ({self.epoch} epochs), {self.seconds:.0f} s, {speed}"]
        if self.faults:
            lines.append(f"{self.faults} images could not be read and were replaced (faults.csv names them)")
        for split, metrics in self.values.items():
            lines.append(f"{split}: {', '.join(f'{name} {value:.4f}' for name, value in metrics.items())}")
        if self.best:
            lines.append(f"best: {self.best['metric']} {self.best['value']:.4f} after epoch {self.best['epoch']}")
        return "\n".join(lines)


@dataclass
class Timing:
    """Seconds of steps and of waiting for images, and what went through."""

    images: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    faults: int = 0

    def add(self, images: int, seconds: float, waited: float, faults: int) -> None:
        """Count a step."""
        self.images += images
        self.seconds += seconds
        self.waited += waited
        self.faults += faults

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds if self.seconds else 0.0

    @property
    def wait_share(self) -> float:
        return self.waited / self.seconds if self.seconds else 0.0

"""Where the time of a step goes: the phases of some steps, each without the phases inside it."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

_WARM_UP = 3
_STEPS = 20

Phase = Callable[[str], AbstractContextManager[None]]


class StepProfile:
    """Times the phases of the first steps of a call, after some to warm up.

    The device is waited for at the borders of the phases, so that a profiled step takes a little longer than another.
    ``gradients`` is the backward pass with the exchange between processes, ``forward`` the model (twice where a batch
    passes in chunks), ``rest`` what lies between the steps: logs, counters.

    Args:
        device: of the model.
        modules: modules whose forward pass is a phase, by its name.
    """

    def __init__(self, device: torch.device, modules: dict[str, nn.Module]) -> None:
        self._device = device
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0
        self._steps = -_WARM_UP
        self._hooks = []
        for name, module in modules.items():
            self._hooks.append(module.register_forward_pre_hook(self._entering(name)))
            self._hooks.append(module.register_forward_hook(self._leaving))

    @property
    def done(self) -> bool:
        """Whether enough steps were seen."""
        return self._steps >= _STEPS

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the body as a phase; it is taken out of the phase around it."""
        self._enter(name)
        try:
            yield
        finally:
            self._leave()

    def step(self) -> None:
        """A step has ended."""
        self._count()
        self._steps += 1
        if self._steps == 0:
            self._seconds.clear()

    def close(self) -> None:
        """Take the hooks off the modules."""
        for hook in self._hooks:
            hook.remove()

    def milliseconds(self) -> dict[str, float]:
        """Mean over the steps by phase, the longest first; empty before the first step after the warm-up."""
        if self._steps < 1:
            return {}
        steps = self._steps
        found = {name: 1000 * seconds / steps for name, seconds in self._seconds.items()}
        return dict(sorted(found.items(), key=lambda entry: -entry[1]))

    def to_text(self) -> str:
        """A table of the phases."""
        found = self.milliseconds()
        if not found:
            return f"no profile: the run had no more than the {_WARM_UP} steps of the warm-up."
        total = sum(found.values())
        lines = [f"{name:<12}{value:>10.2f} ms {value / total:>6.1%}" for name, value in found.items()]
        return "\n".join([f"a step, mean of {self._steps}:", *lines, f"{'total':<12}{total:>10.2f} ms"])

    def _entering(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            self._enter(name)

        return hook

    def _leaving(self, module: nn.Module, args: Any, output: Any) -> None:
        self._leave()

    def _enter(self, name: str) -> None:
        self._count()
        self._open.append(name)

    def _leave(self) -> None:
        self._count()
        self._open.pop()

    def _count(self) -> None:
        """Give the time since the last border to the innermost open phase."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        if self._since:
            self._seconds[self._open[-1] if self._open else "rest"] += now - self._since
        self._since = now

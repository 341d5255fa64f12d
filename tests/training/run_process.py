"""Training in one process of a run.

``stop`` is the step after which a signal requests a stop.
"""

import os
import signal
from functools import partial, partialmethod
from pathlib import Path

import torch

from hgld.training.loop import train
from hgld.training.progress import LineReporter
from hgld.training.runs import load_config

say = partial(print, flush=True)


class Stopping(LineReporter):
    """Reporter that sends SIGTERM to the main process after a step."""

    def __init__(self, step):
        super().__init__(say, say)
        self.step_to_stop_at = step

    def advance(self, step):
        if step == self.step_to_stop_at:
            self.step_to_stop_at = None  # a second signal would interrupt the run at once
            os.kill(os.getpid(), signal.SIGTERM)


def run(config: Path, data: str, out: Path, stop: int | None = None) -> None:
    """Train with the config of a file."""
    # Compiling inductor's kernels takes minutes, and these tests check only the graphs.
    torch.nn.Module.compile = partialmethod(torch.nn.Module.compile, backend="aot_eager")  # type: ignore[assignment]
    torch.set_num_threads(1)
    progress = LineReporter(say, say) if stop is None else Stopping(stop)
    train(load_config(config), data, out, progress=progress)

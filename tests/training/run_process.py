"""What the tests of kills and of several processes start: one process of a run, its options in a file.

A fourth argument is the step at which a signal asks it to stop; OVERFLOW names the step at which a gradient of the main
process alone is infinite.
"""

import os
import signal
import sys
from functools import partial, partialmethod
from pathlib import Path

import torch

from hgld.distributed import local_part
from hgld.training import loop
from hgld.training.config import read_config
from hgld.training.loop import train
from hgld.training.progress import LineReporter

say = partial(print, flush=True)
# Of a compiled run the graphs are tested here, not inductor's kernels, which take minutes to make.
torch.nn.Module.compile = partialmethod(torch.nn.Module.compile, backend="aot_eager")  # type: ignore[assignment]


class Stopping(LineReporter):
    """Lines of a run whose main process gets SIGTERM after a step."""

    def __init__(self, step):
        super().__init__(say, say)
        self.step_to_stop_at = step

    def advance(self, step):
        if step == self.step_to_stop_at:
            os.kill(os.getpid(), signal.SIGTERM)


def overflow_at(step):
    """Make a gradient of a step infinite, in the part of it that this process holds."""
    forward, calls = loop.Backward.__call__, []

    def overflowing(self, batch):
        values = forward(self, batch)
        calls.append(batch)
        if len(calls) == step:
            local_part(next(self.model.parameters()).grad).fill_(float("inf"))
        return values

    loop.Backward.__call__ = overflowing


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "OVERFLOW" in os.environ and os.environ["RANK"] == "0":
        overflow_at(int(os.environ["OVERFLOW"]))
    config, data, out, *stop = sys.argv[1:]
    progress = Stopping(int(stop[0])) if stop else LineReporter(say, say)
    train(read_config(Path(config)), data, Path(out), progress=progress)

"""What all samplers have in common: a batch is a function of (seed, epoch, step), and processes take equal parts."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import numpy as np

from hgld.errors import ConfigError

_MOST = 1 << 32


class BatchSampler(ABC):
    """Batches of item numbers; a ``batch_sampler`` of torch's DataLoader.

    Nothing is drawn from a running stream: the batch of an epoch and step is always the same, so two integers are the
    whole state, and a run may go on with another number of processes. Process r of n gets the r-th part of every batch,
    and all parts in order are the batch of a single process.

    Iterating goes on from the current position to the end of its epoch, and leaves the position at the next epoch. A
    part without items, of a last batch that is shorter than there are processes, is passed over there.

    Args:
        batch_size: items of a batch, of all processes together.
        batches: batches of an epoch.
        parts: pieces of a batch that stay together (classes, say); process_count must divide their number.
        seed: of all random choices.
        process_index: which process this is.
        process_count: of how many.

    Raises:
        ConfigError: the parts cannot be dealt out to the processes, or a number is out of its range.
    """

    def __init__(
        self, *, batch_size: int, batches: int, parts: int, seed: int, process_index: int, process_count: int
    ) -> None:
        if not 0 <= process_index < process_count:
            raise ConfigError(f"process {process_index} of {process_count}; expected one of 0..{process_count - 1}.")
        if not 0 <= seed < 1 << 64:
            raise ConfigError(f"seed {seed}; expected 0 to 2**64 - 1.")
        if parts % process_count:
            fitting = ", ".join(str(n) for n in range(1, parts + 1) if parts % n == 0)
            raise ConfigError(
                f"{process_count} processes cannot share batches of {batch_size} items in {parts} parts that stay "
                f"together; run {fitting} processes, or change the batch."
            )
        self.batch_size, self.seed = batch_size, seed
        self.process_index, self.process_count = process_index, process_count
        self._batches, self._epoch, self._step = batches, 0, 0

    @abstractmethod
    def _whole_batch(self, epoch: int, step: int) -> np.ndarray:
        """(B,) int64 item numbers of a batch, of all processes."""

    def batch(self, epoch: int, step: int) -> np.ndarray:
        """This process's part of a batch.

        Args:
            epoch: from 0.
            step: from 0, below ``len(self)``.

        Returns:
            (B / process_count,) int64 item numbers; of a short last batch fewer, maybe none.

        Raises:
            ConfigError: there is no such step.
        """
        return self.part(epoch, step)[1]

    def part(self, epoch: int, step: int) -> tuple[int, np.ndarray]:
        """Where in the batch of all processes this process's part begins, and :meth:`batch`."""
        if not 0 <= step < self._batches or not 0 <= epoch < _MOST:
            raise ConfigError(f"step {step} of epoch {epoch}; an epoch has the steps 0..{self._batches - 1}.")
        whole = self._whole_batch(epoch, step)
        begin, end = (len(whole) * r // self.process_count for r in (self.process_index, self.process_index + 1))
        return begin, whole[begin:end].copy()  # the caller's own, not a piece of an epoch's order

    def __len__(self) -> int:
        """Batches of an epoch, the same on every process."""
        return self._batches

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            items = self.batch(self._epoch, self._step).tolist()
            self._step += 1
            ended = self._step == self._batches
            if ended:
                self._epoch, self._step = self._epoch + 1, 0
            if items:
                yield items
            if ended:
                return

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; within the current one the position stays, so that a resumed run goes on."""
        if epoch != self._epoch:
            self.load_state_dict({"epoch": epoch, "step": 0})

    def state_dict(self) -> dict[str, int]:
        """The position: epoch, and step within it of the next batch."""
        return {"epoch": self._epoch, "step": self._step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a position.

        Raises:
            ConfigError: there is no such step: the state comes from another configuration.
        """
        epoch, step = state["epoch"], state["step"]
        if not 0 <= step < self._batches or not 0 <= epoch < _MOST:
            raise ConfigError(
                f"state: step {step} of epoch {epoch}; an epoch has the steps 0..{self._batches - 1} here. The state "
                "comes from other data or another batch size."
            )
        self._epoch, self._step = epoch, step


def number_of_batches(items: int, per_batch: int, drop_last: bool, what: str) -> int:
    """Batches that hold all items, or, with ``drop_last``, no item twice.

    Raises:
        ConfigError: not one batch can be made.
    """
    batches = items // per_batch if drop_last else -(-items // per_batch)
    if not batches:
        raise ConfigError(f"{items} {what} make no batch of {per_batch}; take smaller batches.")
    return batches


def at_least(least: int, **numbers: int) -> None:
    """Refuse numbers below ``least``.

    Raises:
        ConfigError: names the first.
    """
    for name, number in numbers.items():
        if number < least:
            raise ConfigError(f"{name} is {number}; expected at least {least}.")

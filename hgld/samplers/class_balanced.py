"""Sampler of single items that balances the classes."""

import numpy as np
from torch.utils.data import Sampler

from hgld.errors import ConfigError
from hgld.samplers.batch_sampler import (
    BatchSampler,
    ClassItems,
    Labels,
    at_least,
    below,
    check_enough,
    label_column,
    random_words,
)

_FRACTION_BITS = 53


class ClassBalanced(BatchSampler):
    """Batches of independent draws: a class with probability proportional to n**power, then one of its n items.

    Args:
        labels: (N,) or (N, L) integers or names, or a dataset: what :func:`hgld.labels.class_numbers` reads.
        batch_size: items of a batch, of all processes together.
        level: the level whose classes are balanced: column, or, with a table or a dataset, name.
        power: 0: all classes alike; 1: all items alike; 0.5: square root sampling.
        batches_per_epoch: length of an epoch; as many as fit the labelled items if None.
        seed: of all random choices.
        process_index: which process this is.
        process_count: of how many; must divide batch_size.
        sampler: a DistributedSampler, which tells the two (Lightning gives one).

    Attributes:
        left_out: items without a label, which are in no batch.

    Raises:
        ConfigError: power is not in [0, 1], or there is no labelled item.

    Source: Kang et al., "Decoupling representation and classifier for long-tailed recognition", ICLR 2020, eq. 1.
    """

    def __init__(
        self,
        labels: Labels,
        batch_size: int,
        *,
        level: int | str = 0,
        power: float = 0.0,
        batches_per_epoch: int | None = None,
        seed: int = 0,
        process_index: int = 0,
        process_count: int = 1,
        sampler: Sampler | None = None,
    ) -> None:
        at_least(1, batch_size=batch_size)
        if not 0 <= power <= 1:
            raise ConfigError(f"power is {power}; expected 0 (all classes alike) to 1 (all items alike).")
        self._classes = ClassItems.from_labels(label_column(labels, level))
        self.left_out = self._classes.left_out
        check_enough(len(self._classes.count), 1)
        weights = self._classes.count.astype(np.float64) ** power
        self._until = np.cumsum(weights) / weights.sum()
        batches = max(1, len(self._classes.items) // batch_size) if batches_per_epoch is None else batches_per_epoch
        at_least(1, batches_per_epoch=batches)
        super().__init__(
            batch_size=batch_size,
            batches=batches,
            parts=batch_size,
            seed=seed,
            process_index=process_index,
            process_count=process_count,
            sampler=sampler,
        )

    def _whole_batch(self, epoch: int, step: int) -> np.ndarray:
        words = random_words(2 * self.batch_size, self.seed, epoch, step).reshape(2, -1)
        fraction = (words[0] >> np.uint64(64 - _FRACTION_BITS)).astype(np.float64) / (1 << _FRACTION_BITS)
        classes = np.searchsorted(self._until[:-1], fraction, side="right")
        return self._classes.items[self._classes.start[classes] + below(words[1], self._classes.count[classes])]

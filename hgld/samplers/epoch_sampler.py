"""Every item once an epoch."""

import numpy as np

from hgld.samplers.batch_sampler import BatchSampler, at_least, number_of_batches
from hgld.samplers.randomness import shuffled


class EpochSampler(BatchSampler):
    """Every item once an epoch, in random order or in that of the dataset; to train a classifier, or to embed.

    Without ``drop_last`` the last batch is as short as it must be, and its parts may differ by an item between
    processes. If it has fewer items than there are processes, some get none of it: one batch less from iterating, an
    empty one from :meth:`batch` and a :class:`hgld.loader.Loader`.

    Args:
        num_items: number of items.
        batch_size: items of a batch, of all processes together.
        shuffle: whether every epoch has a random order of its own.
        seed: of the orders.
        drop_last: leave out the items that do not fill a last batch.
        process_index: which process this is.
        process_count: of how many; must divide batch_size.

    Raises:
        ConfigError: no batch can be made, or process_count does not divide batch_size.
    """

    def __init__(
        self,
        num_items: int,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        process_index: int = 0,
        process_count: int = 1,
    ) -> None:
        at_least(1, batch_size=batch_size)
        self.num_items, self.shuffle = num_items, shuffle
        super().__init__(
            batch_size=batch_size,
            batches=number_of_batches(num_items, batch_size, drop_last, "items"),
            parts=batch_size,
            seed=seed,
            process_index=process_index,
            process_count=process_count,
        )
        self._order: tuple[int, np.ndarray] | None = None

    def _whole_batch(self, epoch: int, step: int) -> np.ndarray:
        begin, end = step * self.batch_size, min((step + 1) * self.batch_size, self.num_items)
        if not self.shuffle:
            return np.arange(begin, end)
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, shuffled(self.num_items, self.seed, epoch))
        return self._order[1][begin:end]

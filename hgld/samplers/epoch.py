"""Samplers that take every item once an epoch: alone, or several times side by side in its batch."""

import numpy as np
from torch.utils.data import Sampler

from hgld.errors import ConfigError
from hgld.samplers.batch_sampler import BatchSampler, at_least, number_of_batches, shuffled


class EpochSampler(BatchSampler):
    """Every item once an epoch, in random order or in that of the dataset; to train a classifier, or to embed.

    Without ``drop_last`` the last batch is as short as it must be, and its parts may differ by an item between
    processes. If it has fewer items than there are processes, some get none of it: one batch less from iterating, an
    empty one from :meth:`batch` and a :class:`hgld.data.loader.Loader`.

    Args:
        num_items: number of items.
        batch_size: items of a batch, of all processes together.
        shuffle: whether every epoch has a random order of its own.
        seed: of the orders.
        drop_last: leave out the items that do not fill a last batch.
        process_index: which process this is.
        process_count: of how many; must divide batch_size.
        sampler: a DistributedSampler, which tells the two (Lightning gives one).

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
        sampler: Sampler | None = None,
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
            drop_last=drop_last,
            sampler=sampler,
        )
        self._order: tuple[int, np.ndarray] | None = None

    def _whole_batch(self, epoch: int, step: int) -> np.ndarray:
        begin, end = step * self.batch_size, min((step + 1) * self.batch_size, self.num_items)
        if not self.shuffle:
            return np.arange(begin, end)
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, shuffled(self.num_items, self.seed, epoch))
        return self._order[1][begin:end]


# -- repeated augmentation --------------------------------------------------------------------------------------------
#
# Every image stands several times in its batch, to be augmented differently.


class RepeatedAugmentation(BatchSampler):
    """Batches of batch_size / repeats images, each of them ``repeats`` times side by side.

    Every image comes in one batch an epoch; its number is the instance's id, by which a loss knows the views of one
    image. The last batch is filled with images from the epoch's beginning, or dropped.

    Args:
        num_items: number of images.
        batch_size: entries of a batch, of all processes together.
        repeats: times that an image stands in its batch.
        seed: of all random choices.
        drop_last: leave out the images that do not fill a last batch (others every epoch).
        process_index: which process this is.
        process_count: of how many; must divide batch_size / repeats, so that views of an image stay together.
        sampler: a DistributedSampler, which tells the two (Lightning gives one).

    Raises:
        ConfigError: batch_size is not a multiple of repeats, or there are fewer images than a batch has.

    Source: Berman et al., "MultiGrain: a unified image embedding for classes and instances", 2019, section 4.1.
    """

    def __init__(
        self,
        num_items: int,
        batch_size: int,
        repeats: int = 3,
        *,
        seed: int = 0,
        drop_last: bool = False,
        process_index: int = 0,
        process_count: int = 1,
        sampler: Sampler | None = None,
    ) -> None:
        at_least(1, batch_size=batch_size, repeats=repeats)
        if batch_size % repeats:
            below, above = batch_size // repeats * repeats, -(-batch_size // repeats) * repeats
            fitting = f"{below} or {above}" if below else str(above)
            raise ConfigError(f"batch_size {batch_size} is not a multiple of {repeats} repeats; take {fitting}.")
        self.repeats, self.num_items = repeats, num_items
        self._images = batch_size // repeats
        if num_items < self._images:
            raise ConfigError(f"{num_items} images; a batch needs {self._images} different ones. Take smaller batches.")
        super().__init__(
            batch_size=batch_size,
            batches=number_of_batches(num_items, self._images, drop_last, "images"),
            parts=self._images,
            seed=seed,
            process_index=process_index,
            process_count=process_count,
            drop_last=drop_last,
            sampler=sampler,
        )
        self._order: tuple[int, np.ndarray] | None = None

    def _whole_batch(self, epoch: int, step: int) -> np.ndarray:
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, shuffled(self.num_items, self.seed, epoch))
        places = np.arange(step * self._images, (step + 1) * self._images) % self.num_items
        return np.repeat(self._order[1][places], self.repeats)

"""P classes x K items, the batches of metric learning."""

from typing import Literal

import numpy as np

from hgld.errors import ConfigError
from hgld.samplers.batch_sampler import BatchSampler, at_least, number_of_batches
from hgld.samplers.class_items import ClassItems, Labels, Short, check_enough, label_column
from hgld.samplers.epoch_plan import EpochPlan, chunks_of
from hgld.samplers.randomness import choose, random_words, shuffled

Coverage = Literal["exact", "classes"]
_COVERAGE = ("exact", "classes")
_CLASSES, _ORDER, _ITEMS = range(3)  # what random numbers are for


class PKSampler(BatchSampler):
    """Batches of p classes with k items each, the items of a class side by side.

    ``coverage="exact"``: every labelled item comes at least once an epoch, and no class comes twice in a batch where
    that can be avoided (:class:`hgld.samplers.epoch_plan.EpochPlan`). ``coverage="classes"``: every batch draws p
    classes and k items of each without regard to the other batches, as the published metric learning codes do; frequent
    classes are then seen less completely than rare ones.

    Args:
        labels: (N,) or (N, L) integers, or a dataset.
        p: classes a batch.
        k: items a class.
        level: the level whose classes are meant: column, or, with a dataset, name.
        seed: of all random choices.
        coverage: "exact" or "classes".
        short: what becomes of classes with fewer than k items: "repeat" takes each of their items at least once and
            some again, "drop" leaves these classes out, "refuse" raises.
        drop_last: with exact coverage, leave out the chunks that do not fill a last batch (others every epoch) instead
            of filling it with items that were seen already.
        batches_per_epoch: with ``coverage="classes"``, the length of an epoch; as many as fit the items if None.
        process_index: which process this is.
        process_count: of how many; must divide p, so that classes stay whole.

    Attributes:
        left_out: items without a label, which are in no batch.
        dropped: items of classes that ``short="drop"`` left out.

    Raises:
        ConfigError: too few classes, options that exclude each other, or a number of processes that does not divide p.

    >>> labels = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    >>> sampler = PKSampler(labels, p=2, k=2)
    >>> len(sampler)  # 2 + 1 + 2 chunks of 2 items, 2 chunks a batch
    3
    >>> labels[sampler.batch(epoch=0, step=1)].tolist()
    [0, 0, 2, 2]
    >>> sampler.left_out
    0
    """

    def __init__(
        self,
        labels: Labels,
        p: int,
        k: int,
        *,
        level: int | str = 0,
        seed: int = 0,
        coverage: Coverage = "exact",
        short: Short = "repeat",
        drop_last: bool = False,
        batches_per_epoch: int | None = None,
        process_index: int = 0,
        process_count: int = 1,
    ) -> None:
        at_least(1, p=p, k=k)
        if coverage not in _COVERAGE:
            raise ConfigError(f"coverage is {coverage!r}; expected {' or '.join(_COVERAGE)}.")
        self.p, self.k, self.coverage = p, k, coverage
        self._classes = ClassItems.from_labels(label_column(labels, level), k=k, short=short)
        self.left_out, self.dropped = self._classes.left_out, self._classes.dropped
        check_enough(len(self._classes.count), p)
        if coverage == "exact":
            if batches_per_epoch is not None:
                raise ConfigError("batches_per_epoch with coverage='exact', whose epochs end when all items were seen.")
            batches = number_of_batches(int(chunks_of(self._classes, k).sum()), p, drop_last, f"chunks of {k} items")
        else:
            fitting = max(1, len(self._classes.items) // (p * k))
            batches = fitting if batches_per_epoch is None else batches_per_epoch
            at_least(1, batches_per_epoch=batches)
        super().__init__(
            batch_size=p * k,
            batches=batches,
            parts=p,
            seed=seed,
            process_index=process_index,
            process_count=process_count,
        )
        self._plan: tuple[int, EpochPlan] | None = None

    def _whole_batch(self, epoch: int, step: int) -> np.ndarray:
        if self.coverage == "exact":
            return self._plan_of(epoch).batch(step).reshape(-1)
        key = (self.seed, epoch, step)
        chosen = choose(random_words(self.p, *key, _CLASSES)[None], np.array([len(self._classes.count)]))[0]
        return self._classes.draw(chosen[shuffled(self.p, *key, _ORDER)], self.k, *key, _ITEMS).reshape(-1)

    def _plan_of(self, epoch: int) -> EpochPlan:
        if self._plan is None or self._plan[0] != epoch:
            self._plan = (epoch, EpochPlan(self._classes, self.p, self.k, len(self), self.seed, epoch))
        return self._plan[1]

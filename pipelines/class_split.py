"""A class-disjoint split: some of the finest classes are kept for testing, all of their items with them."""

from collections.abc import Iterable

import numpy as np

from hgld.errors import ConfigError


def draw_test_classes(classes: Iterable[str], fraction: float, seed: int) -> frozenset[str]:
    """Classes drawn for the test split; the order and number of the items do not matter.

    Args:
        classes: names of the finest classes, in any order, repeats allowed.
        fraction: how many of them to draw, between 0 and 1, rounded to the nearest class; at least one is drawn and
            one left.
        seed: the same seed and classes give the same draw.

    Raises:
        ConfigError: the fraction is not between 0 and 1, or there are fewer than two classes.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"--test-classes is {fraction:g}; expected a fraction between 0 and 1, for instance 0.5.")
    names = sorted(set(classes))
    if len(names) < 2:
        raise ConfigError(f"there are {len(names)} finest classes; a class-disjoint split needs two at least.")
    count = min(max(round(fraction * len(names)), 1), len(names) - 1)
    order = np.random.default_rng(seed).permutation(len(names))
    return frozenset(names[i] for i in order[:count])

"""Random numbers that are a function of their key alone, on every platform and under every numpy.

numpy keeps the raw words of a bit generator stable for ever, but not what its distributions and shuffles make of them
(NEP 19). So only words are taken from it.
"""

import numpy as np

_HALF = np.uint64(32)


def random_words(count: int, *key: int) -> np.ndarray:
    """(count,) uint64 words of Philox, keyed by integers of which all but the first are below 2**32."""
    return np.random.Philox(np.random.SeedSequence(key[0], spawn_key=key[1:])).random_raw(count)


def shuffled(count: int, *key: int) -> np.ndarray:
    """(count,) int64: a random order of ``range(count)``."""
    return np.argsort(random_words(count, *key), kind="stable")


def below(words: np.ndarray, limits: np.ndarray | int) -> np.ndarray:
    """int64 numbers in [0, limit), uniform but for 2**-32; limits are below 2**32."""
    return (((words >> _HALF) * np.asarray(limits, dtype=np.uint64)) >> _HALF).astype(np.int64)


def choose(words: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Distinct numbers of a range, row by row, every set as likely as any other.

    Args:
        words: (R, k) random words.
        sizes: (R,) sizes of the ranges, at least k.

    Returns:
        (R, k) int64 in [0, size).

    Source: Floyd's algorithm; Bentley and Floyd, "A sample of brilliance", CACM 30 (1987).
    """
    rows, count = words.shape
    chosen = np.full((rows, count), -1, dtype=np.int64)
    for place in range(count):
        last = sizes - count + place
        drawn = below(words[:, place], last + 1)
        taken = (chosen[:, :place] == drawn[:, None]).any(axis=1)
        chosen[:, place] = np.where(taken, last, drawn)
    return chosen

"""Random numbers by position: Philox 4x32-10, a counter encrypted instead of a state advanced.

What is drawn for one place in one epoch depends on nothing that was drawn before it, so a resumed run, another number
of threads or another number of processes draws the same. NumPy's own Philox gives a stream from one counter; here every
item of a batch has a counter of its own.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

import numpy as np
from numpy.typing import NDArray

from hgld.errors import ConfigError

_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], dtype=np.uint64)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)


def philox(counter: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Philox 4x32-10.

    Args:
        counter: (4, ...) words of 32 bits.
        key: two words of 32 bits.

    Returns:
        (4, ...) random words of 32 bits.
    """
    first, second, third, fourth = counter
    for turn in range(_ROUNDS):
        left = np.uint64((key[0] + turn * _KEY_STEPS[0]) & 0xFFFFFFFF)
        right = np.uint64((key[1] + turn * _KEY_STEPS[1]) & 0xFFFFFFFF)
        one, two = first * _MULTIPLIERS[0], third * _MULTIPLIERS[1]
        first, second, third, fourth = (
            (two >> _WORD) ^ second ^ left,
            two & _LOW,
            (one >> _WORD) ^ fourth ^ right,
            one & _LOW,
        )
    return np.stack([first, second, third, fourth])


def uniforms(seed: int, epoch: int, positions: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Numbers in (0, 1), a pure function of seed, epoch and position.

    Args:
        seed: at least 0, below 2**64.
        epoch: at least 0, below 2**32.
        positions: (N,) any integers that tell the items of an epoch apart.
        count: numbers an item; a multiple of 4. Asking for more does not change the first ones.

    Returns:
        (N, count).

    Raises:
        ConfigError: seed or epoch are out of bounds.
    """
    if not 0 <= seed < 1 << 64 or not 0 <= epoch < 1 << 32:
        raise ConfigError(f"seed {seed}, epoch {epoch}: expected 0 <= seed < 2**64 and 0 <= epoch < 2**32.")
    blocks = count // 4
    places = positions.astype(np.int64).view(np.uint64)[:, None]
    counter = np.empty((4, len(positions), blocks), dtype=np.uint64)
    counter[0], counter[1] = places & _LOW, places >> _WORD
    counter[2], counter[3] = epoch, np.arange(blocks, dtype=np.uint64)
    words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32))
    return (np.moveaxis(words, 0, -1).reshape(len(positions), 4 * blocks).astype(np.float64) + 0.5) / 2.0**32

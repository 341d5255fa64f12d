"""Sums of sigmoids over many items as a convolution, compiled: spread on a grid, convolve, interpolate.

The sum over items j of w_j f((s_j - x) / tau) for a smooth f is taken in three steps, each linear in the items or in
the nodes: every item's weight is spread over the eight nodes around it with Lagrange's weights, the nodes are convolved
with f, and the result is read at x with the same weights. With nodes 0.3 tau apart this is exact to 2e-7 of a sigmoid.
"""

import numpy as np

from hgld.losses.compiled import compiled, exp_float32, product

NODE_DISTANCE = 0.3  # in units of tau; with eight nodes an item the error is 2e-7, at 0.4 ten times as much
NODES = 8
REACH = 60  # nodes on either side: sigmoid(-18) is 1.5e-8
_UNROLLED = 4  # taps a sweep: one load and store of the result for four products
_NUM_TAPS = -(-(2 * REACH + 1) // _UNROLLED) * _UNROLLED
PADDING = _NUM_TAPS + NODES  # nodes that a grid has beyond the cells of its items

_FALL = np.append(np.exp(-NODE_DISTANCE * np.arange(256)), 0.0)  # e^-t at the nodes, nothing beyond t = 77


def taps() -> np.ndarray:
    """Sigmoid and its derivative at the nodes from -REACH to REACH, (2, taps) float32, zeros to a multiple of 4."""
    t = np.arange(-REACH, REACH + 1) * NODE_DISTANCE
    value = 1 / (1 + np.exp(-t))
    both = np.zeros((2, _NUM_TAPS), np.float32)
    both[:, : len(t)] = value, value * (1 - value)
    return both


@compiled
def place(scores: np.ndarray, tau: np.float32, cells: np.ndarray, weights: np.ndarray, decays: np.ndarray) -> None:
    """Find every item's place on the grid.

    Args:
        scores: (n,) float32 by descending score.
        tau: width of the sigmoid.
        cells: (n,) int32, filled with the first node of an item.
        weights: (n, 8) float32, filled with the weights of its nodes.
        decays: (n,) float32, filled with e^-t for t the distance to the cell's begin, in units of tau.
    """
    lowest = np.float64(scores[scores.shape[0] - 1])
    inverse = 1 / (NODE_DISTANCE * np.float64(tau))
    for j in range(scores.shape[0]):
        u = product(np.float64(scores[j]) - lowest, inverse)  # in float32 its rounding would exceed the grid's error
        cell = np.int32(u)
        f = np.float32(u - np.float64(cell))
        cells[j] = cell
        decays[j] = exp_float32(f * np.float32(-NODE_DISTANCE))
        a3, a2, a1 = f + np.float32(3), f + np.float32(2), f + np.float32(1)
        b1, b2, b3, b4 = f - np.float32(1), f - np.float32(2), f - np.float32(3), f - np.float32(4)
        left, right = a1 * f, b1 * b2
        outer_left, outer_right = a3 * a2, b3 * b4
        near, ends = left * right, outer_left * outer_right
        weights[j, 0] = a2 * near * outer_right * np.float32(-1 / 5040)
        weights[j, 1] = a3 * near * outer_right * np.float32(1 / 720)
        weights[j, 2] = f * right * ends * np.float32(-1 / 240)
        weights[j, 3] = a1 * right * ends * np.float32(1 / 144)
        weights[j, 4] = left * b2 * ends * np.float32(-1 / 144)
        weights[j, 5] = left * b1 * ends * np.float32(1 / 240)
        weights[j, 6] = outer_left * near * b4 * np.float32(-1 / 720)
        weights[j, 7] = outer_left * near * b3 * np.float32(1 / 5040)


@compiled
def fall(above: np.int32, below: np.int32, ratio: np.float64) -> np.float64:
    """e^-t of the distance between two items, in units of tau, from their cells and the ratio of their ``decays``."""
    return _FALL[min(np.int64(above) - np.int64(below), 256)] * ratio


@compiled
def add_at(grid: np.ndarray, cell: np.int32, weights: np.ndarray, factor: np.float32) -> None:
    """Spread an item of weight ``factor``; ``grid`` has REACH zeros before its first node."""
    at = np.int64(cell) + np.int64(REACH)
    for r in range(NODES):
        grid[at + r] += factor * weights[r]


@compiled
def read_at(values: np.ndarray, cell: np.int32, weights: np.ndarray) -> np.float32:
    """Value at an item's place of what :func:`convolve` made."""
    at = np.int64(cell)
    total = values[at] * weights[0]
    for r in range(1, NODES):
        total += values[at + r] * weights[r]
    return total


@compiled
def convolve(grid: np.ndarray, kernel: np.ndarray, num_nodes: np.int64, out: np.ndarray) -> None:
    """``out[i] = sum_r kernel[r] grid[i + r]`` for ``num_nodes`` nodes.

    Args:
        grid: (>= num_nodes + taps,) float32.
        kernel: (taps,) float32, a multiple of four.
        num_nodes: how many.
        out: filled.
    """
    out[:num_nodes] = 0
    for r in range(0, kernel.shape[0], 4):
        k0, k1, k2, k3 = kernel[r], kernel[r + 1], kernel[r + 2], kernel[r + 3]
        w0, w1, w2, w3 = grid[r:], grid[r + 1 :], grid[r + 2 :], grid[r + 3 :]
        for i in range(num_nodes):
            out[i] += k0 * w0[i] + k1 * w1[i] + k2 * w2[i] + k3 * w3[i]


@compiled
def add_saturated(grid: np.ndarray, num_nodes: np.int64, out: np.ndarray) -> None:
    """Add the nodes more than REACH above, at which the sigmoid is 1, to what :func:`convolve` made of the others."""
    above = 0.0
    for i in range(num_nodes - 1, -1, -1):
        if i + REACH + 1 < num_nodes:
            above += grid[i + 2 * REACH + 1]
        out[i] += np.float32(above)

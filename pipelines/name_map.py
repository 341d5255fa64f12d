"""Names as points of a plane, near where their vectors are near: for people to look at, nothing is computed from it."""

import numpy as np
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

MOST_PLACED = 1000  # t-SNE of 5,700 names takes half a minute on one core, of 1,000 some three seconds
ITERATIONS = 500
NEAREST = 3
PERPLEXITY = 30
LEAST_TSNE = 5


def name_map(rows: np.ndarray, seed: int) -> np.ndarray:
    """Two coordinates a name.

    t-SNE (van der Maaten and Hinton, JMLR 9, 2008) of at most 1,000 names, evenly out of the given order, started from
    their two leading principal axes; every other name is put at the mean of the 3 nearest of them, weighted by cosine.
    Fewer than 5 names are shown by their principal axes.

    Args:
        rows: (N, D) unit rows, in an order that does not depend on the machine (sorted names).
        seed: of t-SNE.

    Returns:
        (N, 2) float32.
    """
    placed = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_PLACED)).round().astype(np.int64))
    with threadpool_limits(limits=1):
        points = np.empty((len(rows), 2), dtype=np.float32)
        points[placed] = _place(rows[placed], seed)
        rest = np.setdiff1d(np.arange(len(rows)), placed)
        cosine = rows[rest] @ rows[placed].T
        nearest = np.argsort(-cosine, axis=1, kind="stable")[:, :NEAREST]
        near = np.maximum(np.take_along_axis(cosine, nearest, axis=1), 1e-3)
        points[rest] = (points[placed][nearest] * near[:, :, None]).sum(axis=1) / near.sum(axis=1, keepdims=True)
    return points.round(3)


def _place(rows: np.ndarray, seed: int) -> np.ndarray:
    start = _principal(rows)
    spread = float(start[:, 0].std())
    if len(rows) < LEAST_TSNE or spread == 0:
        return start
    tsne = TSNE(
        perplexity=min(PERPLEXITY, (len(rows) - 1) / 3),
        # an array is allowed; the scale is the one that scikit-learn gives its own PCA start
        init=start / spread * 1e-4,  # pyright: ignore[reportArgumentType]
        max_iter=ITERATIONS,
        random_state=seed,
        n_jobs=1,
    )
    return tsne.fit_transform(rows)


def _principal(rows: np.ndarray) -> np.ndarray:
    """(n, 2) float32 scores on the two leading principal axes, signs fixed by the largest entry of an axis."""
    centred = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
    _, lengths, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * (lengths[:2] > 1e-6)[:, None]
    signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])
    scores = np.zeros((len(rows), 2), dtype=np.float32)
    scores[:, : len(axes)] = centred @ (axes * signs[:, None]).T
    return scores

"""Wikidata's class graph mixed into the embeddings, so that distances are (1 - W) text + W graph.

The graph's similarity of names (``ClassGraph.similarity``) is a weighted Jaccard index and as such positive definite:
the names have places in a space where it is their cosine. Those places and the text's, side by side and scaled by
sqrt(W) and sqrt(1 - W), are unit rows again whose cosine is the mixture; k-means and linkage need no second way.
"""

import numpy as np
from scipy.sparse.linalg import eigsh

from pipelines.spherical_kmeans import unit

AXES = 256  # of the graph's space; names within fewer classes are placed exactly
EXACT = 1000  # up to so many names all axes are found at once
NEIGHBOURS = 5


def mix(embeddings: np.ndarray, similarity: np.ndarray, weight: float) -> np.ndarray:
    """Rows whose cosine distance is ``(1 - weight) text + weight graph``.

    A name without a known class has no place in the graph: it takes the mean place of the 5 names nearest in the text
    that have one, by their similarity. Where no name has a class the text is all there is.

    Args:
        embeddings: (N, D) float32 unit rows of the text.
        similarity: (N, N) float32 in 0..1, diagonal 1; NaN rows and columns where the graph knows nothing.
        weight: W, 0..1; 0 gives the embeddings as they are.

    Returns:
        (N, D + A) float32 unit rows.
    """
    known = np.flatnonzero(~np.isnan(similarity.diagonal()))
    if weight == 0 or not known.size:
        return embeddings
    places = _places(similarity[np.ix_(known, known)])
    graph = np.zeros((len(embeddings), places.shape[1]), dtype=np.float32)
    graph[known] = places
    unknown = np.setdiff1d(np.arange(len(embeddings)), known)
    graph[unknown] = _borrowed(embeddings[unknown], embeddings[known], places)
    return np.hstack([embeddings * np.float32(1 - weight) ** 0.5, graph * np.float32(weight) ** 0.5])


def _places(similarity: np.ndarray) -> np.ndarray:
    """(n, A) unit rows whose inner products are the similarities, as well as A axes can."""
    n = len(similarity)
    if n <= EXACT:
        values, axes = np.linalg.eigh(similarity.astype(np.float64))
    else:
        values, axes = eigsh(similarity, k=AXES, v0=np.ones(n, dtype=similarity.dtype))
    largest = np.argsort(-values)[:AXES]
    return unit(axes[:, largest] * np.sqrt(np.maximum(values[largest], 0))).astype(np.float32)


def _borrowed(text: np.ndarray, known_text: np.ndarray, places: np.ndarray) -> np.ndarray:
    cosine = text @ known_text.T
    nearest = np.argsort(-cosine, axis=1, kind="stable")[:, :NEIGHBOURS]
    near = np.maximum(np.take_along_axis(cosine, nearest, axis=1), 1e-6)
    return unit((places[nearest] * near[:, :, None]).sum(axis=1))

"""Nearest neighbours equal the first items of a stable sort of all scores, including ties at the last rank."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import ConfigError
from hgld.evaluation.neighbors import nearest_neighbors


@given(
    count=st.integers(1, 80),
    queries=st.integers(1, 6),
    chunk_size=st.integers(1, 6),
    k=st.integers(1, 80),
    values=st.integers(1, 3),
    own=st.booleans(),
    seed=st.integers(0, 99),
)
def test_neighbors_equal_stable_sort_of_all_scores(count, queries, chunk_size, k, values, own, seed):
    """The embeddings are small integers, so products are exact and most scores are tied."""
    rng = np.random.default_rng(seed)
    gallery = rng.integers(0, values, (count, 3)).astype(np.float64)
    query = rng.integers(0, values, (queries, 3)).astype(np.float64)
    self_index = rng.integers(0, count, queries) if own and count > 1 else np.full(queries, -1)
    k = min(k, count - int((self_index >= 0).any()))
    found, scores = nearest_neighbors(
        query, gallery, k, self_index=self_index, normalize=False, chunk_size=chunk_size, device="cpu"
    )
    products = query @ gallery.T
    for row, itself in zip(products, self_index, strict=True):
        if itself >= 0:
            row[itself] = -np.inf
    expected = np.argsort(-products, axis=1, kind="stable")[:, :k]
    assert found.tolist() == expected.tolist()
    assert scores.tolist() == np.take_along_axis(products, expected, axis=1).tolist()


def test_k_beyond_the_gallery_is_refused():
    gallery = np.eye(4, dtype=np.float32)
    with pytest.raises(ConfigError, match="k is 4; expected 1 to 3"):
        nearest_neighbors(gallery, gallery, 4, self_index=np.arange(4))

"""Perceptual hashes, and the search for close ones against all pairs."""

import io

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hgld.data.images import read_header
from hgld.pipelines.check.near_duplicates import MAX_DISTANCE, nearest, perceptual_hash
from tests.pipelines.tiny_shards import picture


def slow_nearest(queries, references):
    places, distances = [], []
    for query in queries:
        bits = [(int(query) ^ int(reference)).bit_count() for reference in references]
        best = min(bits, default=65)
        near = best <= MAX_DISTANCE
        places.append(bits.index(best) if near else -1)
        distances.append(best if near else -1)
    return places, distances


@given(st.lists(st.integers(0, 2**64 - 1), max_size=30), st.data())
def test_nearest_hashes_are_those_of_all_pairs(references, data):
    near = st.sampled_from(references or [0])
    flips = st.sets(st.integers(0, 63), max_size=8).map(lambda bits: sum(1 << bit for bit in bits))
    queries = data.draw(st.lists(st.builds(lambda a, b: a ^ b, near, flips), max_size=20))
    found = nearest(np.array(queries, np.uint64), np.array(references, np.uint64))
    assert [part.tolist() for part in found] == list(map(list, slow_nearest(queries, references)))


def test_hashes_survive_compression_and_scaling():
    for seed in range(12):
        data = picture(seed, size=(320, 240))
        with Image.open(io.BytesIO(data)) as image:
            buffer = io.BytesIO()
            image.resize((200, 150), Image.Resampling.LANCZOS).save(buffer, "JPEG", quality=50)
        hashes = [perceptual_hash(d, read_header(d)) for d in (data, buffer.getvalue())]
        distance, _ = nearest(*(np.array([h], np.uint64) for h in hashes))[::-1]
        assert 0 <= distance[0] <= MAX_DISTANCE


def test_a_million_hashes_are_searched_without_comparing_all_pairs():
    rng = np.random.default_rng(0)
    references = rng.integers(0, 2**63, 1_000_000, dtype=np.uint64)
    queries = references[:2000] ^ np.uint64(0b10000100001)
    places, distances = nearest(queries, references)
    assert places.tolist() == list(range(2000))
    assert set(distances.tolist()) == {3}

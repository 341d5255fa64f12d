import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld.pipelines.hierarchy.encoders.lexical import LexicalEncoder

NAMES = [
    "arch bridge", "suspension bridge", "footbridge", "art museum", "history museum", "railway museum",
    "church building", "Catholic church building", "mountain lake", "glacial lake", "theatre", "movie theater",
    "unincorporated community in the United States",
]  # fmt: skip


def similarity(encoder: LexicalEncoder, a: str, b: str) -> float:
    left, right = encoder.encode([a, b])
    return float(left @ right)


def test_rows_are_unit_float32_and_no_wider_than_the_names() -> None:
    rows = LexicalEncoder(NAMES).encode(NAMES)
    assert rows.dtype == np.float32
    assert rows.shape[0] == len(NAMES) >= rows.shape[1]
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "like", "unlike"),
    [
        ("railway museum", "art museum", "arch bridge"),
        ("footbridge", "arch bridge", "art museum"),
        ("theatre", "movie theater", "mountain lake"),
        ("Catholic church building", "church building", "theatre"),
    ],
)
def test_the_head_decides(name: str, like: str, unlike: str) -> None:
    encoder = LexicalEncoder(NAMES)
    assert similarity(encoder, name, like) > similarity(encoder, name, unlike) + 0.1


def test_order_and_repetitions_change_nothing() -> None:
    first, second = LexicalEncoder(NAMES), LexicalEncoder([*reversed(NAMES), NAMES[0]])
    assert first.key == second.key
    np.testing.assert_array_equal(first.encode(NAMES), second.encode(NAMES))


def test_the_key_is_that_of_the_names() -> None:
    assert LexicalEncoder(NAMES).key != LexicalEncoder(NAMES[1:]).key
    assert LexicalEncoder(["a", "b"]).key != LexicalEncoder(["a\nb"]).key


def test_new_text_lands_beside_what_it_is_like_and_strangers_have_no_direction() -> None:
    encoder = LexicalEncoder(NAMES)
    assert similarity(encoder, "stone bridge", "arch bridge") > 0.5
    np.testing.assert_array_equal(encoder.encode(["qqq"]), np.zeros((1, encoder.dim)))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=8))
def test_any_names_have_unit_rows(names: list[str]) -> None:
    encoder = LexicalEncoder(names)
    rows = encoder.encode(names)
    assert rows.shape == (len(names), encoder.dim)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)


def test_thousands_of_names_go_by_the_sparse_way() -> None:
    heads = ["bridge", "museum", "lake", "church", "castle", "park", "harbour", "tower"]
    names = [f"{chr(97 + i % 26)}{chr(97 + i // 26)}ish {head}" for i in range(160) for head in heads]
    encoder = LexicalEncoder(names)
    rows = encoder.encode(names)
    assert 24 < encoder.dim < 100
    alike = rows @ rows.T
    head = np.array([name.split()[1] for name in names])
    same = head[:, None] == head[None]
    assert alike[same].mean() > alike[~same].mean() + 0.3

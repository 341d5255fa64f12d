"""The lexical encoder and its lexicon of nouns."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld.pipelines.hierarchy.encoders import lexical
from hgld.pipelines.hierarchy.encoders.head_noun import noun_phrase
from hgld.pipelines.hierarchy.encoders.lexical import LexicalEncoder, NounKinds
from tests.rows import each_row

NAMES = [
    "arch bridge", "suspension bridge", "footbridge", "art museum", "history museum", "railway museum",
    "church building", "Catholic church building", "mountain lake", "glacial lake", "theatre", "movie theater",
    "unincorporated community in the United States",
]  # fmt: skip


def similarity(encoder, a, b):
    left, right = encoder.encode([a, b])
    return float(left @ right)


@each_row(
    ("name", "like", "unlike"),
    [
        ("railway museum", "art museum", "arch bridge"),
        ("footbridge", "arch bridge", "art museum"),
        ("theatre", "movie theater", "mountain lake"),
        ("Catholic church building", "church building", "theatre"),
    ],
)
def test_names_with_the_same_head_noun_are_embedded_as_similar(name, like, unlike):
    encoder = LexicalEncoder(NAMES)
    assert similarity(encoder, name, like) > similarity(encoder, name, unlike) + 0.1


def test_lexical_embeddings_and_key_depend_only_on_the_set_of_names():
    first, second = LexicalEncoder(NAMES), LexicalEncoder([*reversed(NAMES), NAMES[0]])
    assert first.key == second.key != LexicalEncoder(NAMES[1:]).key
    np.testing.assert_array_equal(first.encode(NAMES), second.encode(NAMES))
    assert LexicalEncoder(["a", "b"]).key != LexicalEncoder(["a\nb"]).key


def test_new_names_are_embedded_near_similar_names_and_unrelated_names_as_zeros():
    encoder = LexicalEncoder(NAMES)
    assert similarity(encoder, "stone bridge", "arch bridge") > 0.5
    np.testing.assert_array_equal(encoder.encode(["qqq"]), np.zeros((1, encoder.dim)))


@settings(max_examples=10)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=8))
def test_embeddings_of_any_names_have_unit_length(names):
    encoder = LexicalEncoder(names)
    rows = encoder.encode(names)
    assert (rows.shape, rows.dtype) == ((len(names), encoder.dim), np.float32)
    assert encoder.dim <= len(names)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)


def test_many_names_are_encoded_by_randomized_svd(monkeypatch):
    monkeypatch.setattr(lexical, "_DENSE_NAMES", 200)
    heads = ["bridge", "museum", "lake", "church", "castle", "park", "harbour", "tower"]
    names = [f"{chr(97 + i % 26)}{chr(97 + i // 26)}ish {head}" for i in range(40) for head in heads]
    encoder = LexicalEncoder(names)
    rows = encoder.encode(names)
    assert 24 < encoder.dim < 100
    alike = rows @ rows.T
    head = np.array([name.split()[1] for name in names])
    same = head[:, None] == head[None]
    assert alike[same].mean() > alike[~same].mean() + 0.3


# -- the lexicon -------------------------------------------------------------------------------------------------------


@each_row(
    ("name", "like"),
    [
        ("bay", "strait"),
        ("three-masted schooner", "barge"),
        ("church building", "Catholic cathedral"),
        ("former railway stations in Japan", "tram stop"),
        ("fireboat", "boat"),  # the head of a compound written as one word is its last part
        ("group of lakes", "pond"),
        ("power station", "wind farm"),
    ],
)
def test_lexicon_gives_similar_nouns_the_same_kind(name, like):
    kinds = NounKinds.read()
    assert kinds.of(noun_phrase(name))[-1] == kinds.of(noun_phrase(like))[-1]


def test_known_compound_or_modifier_takes_precedence_over_the_head():
    chains = {"station": ("stop",), "power station": ("power",), "church": ("holy",), "building": ("building",)}
    kinds = NounKinds(chains)
    expected = {
        "power station": "power",
        "bus station": "stop",
        "church building": "holy",
        "octagonal building": "building",
    }
    assert {name: kinds.of(noun_phrase(name))[0] for name in expected} == expected
    assert kinds.fingerprint != NounKinds({**chains, "church": ("c",)}).fingerprint


@each_row("name", ["", "???", "Nereid", "Laysan Albatross", "<script>"])
def test_unknown_nouns_have_no_kind(name):
    assert NounKinds.read().of(noun_phrase(name)) == ()

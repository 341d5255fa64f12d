import re

import pytest
import yaml

from hgld.pipelines.hierarchy.encoders.head_noun import noun_phrase
from hgld.pipelines.hierarchy.encoders.lexical import LEXICON, NounKinds


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("bay", "strait"),
        ("three-masted schooner", "barge"),
        ("church building", "Catholic cathedral"),
        ("former railway stations in Japan", "tram stop"),
        ("fireboat", "boat"),  # a closed compound is headed by its last part
        ("group of lakes", "pond"),
        ("power station", "wind farm"),
    ],
)
def test_names_of_one_kind(name, like):
    kinds = NounKinds.read()
    assert kinds.of(noun_phrase(name))[-1] == kinds.of(noun_phrase(like))[-1]


def test_a_compound_is_not_its_head():
    kinds = NounKinds({"station": ("stop",), "power station": ("power",), "building": ("building",)})
    assert kinds.of(noun_phrase("power station")) == ("power",)
    assert kinds.of(noun_phrase("bus station")) == ("stop",)


def test_a_general_head_counts_where_nothing_else_is_known():
    kinds = NounKinds({"church": ("holy",), "building": ("building",)})
    assert kinds.of(noun_phrase("church building")) == ("holy",)
    assert kinds.of(noun_phrase("octagonal building")) == ("building",)


@pytest.mark.parametrize("name", ["", "???", "Nereid", "Laysan Albatross", "<script>"])
def test_what_is_not_known_has_no_kind(name):
    assert NounKinds.read().of(noun_phrase(name)) == ()


def test_the_lexicon_states_every_noun_once_two_or_three_levels_deep():
    nouns: list[str] = []

    def walk(node, depth):
        if isinstance(node, dict):
            for below in node.values():
                walk(below, depth + 1)
        else:
            assert 2 <= depth <= 3
            nouns.extend(node)

    walk(yaml.safe_load(LEXICON.read_text(encoding="utf-8")), 0)
    assert len(nouns) == len(set(nouns)) > 600
    assert all(re.fullmatch(r"[^\W\d_]+(?:[ -][^\W\d_]+)?", noun) and noun == noun.lower() for noun in nouns)


def test_another_lexicon_has_another_fingerprint():
    assert NounKinds({"a": ("b",)}).fingerprint != NounKinds({"a": ("c",)}).fingerprint

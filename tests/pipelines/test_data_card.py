"""Data cards: their content, and differences between built and published counts."""

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hgld.data.format import Manifest, ShardFacts
from hgld.pipelines.shards import cards as data_card
from hgld.pipelines.shards.cards import PublishedCount, dataset_card, load_card, published_differences
from hgld.pipelines.shards.sources import CARDS, OWN_DATA, SOURCES
from tests.rows import each_row

NAMES = [name for name in SOURCES if name not in OWN_DATA]
CARD = """---
pretty_name: Toys
license: cc0-1.0
tags: [toys]
hgld:
  levels: [toy, kind]
  splits:
    train: {items: 12, classes: {toy: 3}}
    test: {items: 1.2K}
  obtain: ["a shop"]
  licence_note: none
  protocol: play
---

# Toys

## Source

A shop.

## Known problems

None.
"""


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """Return a folder of cards that replaces data_cards/."""
    monkeypatch.setattr(data_card, "card_path", lambda name: tmp_path / f"{name}.md")
    return tmp_path


def manifest(splits=None, **changes):
    facts = {"items": 12, "shards": 1, "classes": {"toy": 3, "kind": 2}, "unlabelled": 0}
    values = {
        "name": "toys",
        "levels": ("toy", "kind"),
        "group_size": 4,
        "splits": {"train": facts} if splits is None else splits,
        "shards": (ShardFacts("train-000000.tar", "train", 12, 4096, "0" * 64),),
        **changes,
    }
    return Manifest(**values)


@each_row("name", NAMES)
def test_every_data_card_has_levels_download_steps_and_published_counts(name):
    card = load_card(name)
    assert card.name == CARDS.get(name, name)
    assert card.levels
    assert card.splits
    assert card.obtain
    assert "hgld" not in card.header
    assert {"Source", "Levels", "Licence", "Known problems"} <= card.sections.keys()
    for published in card.splits.values():
        assert published.items or published.classes
        assert published.classes.keys() <= set(card.levels)


@given(st.integers(0, 10**8), st.sampled_from("KM"), st.integers(0, 3))
def test_count_agrees_with_a_published_count_if_it_rounds_to_it(found, unit, digits):
    scale = {"K": 1_000, "M": 1_000_000}[unit]
    printed = PublishedCount(f"{found / scale:.{digits}f}{unit}")
    step = scale / 10**digits
    assert printed.agrees(found)
    assert not printed.agrees(found + int(step) + 1)
    assert not PublishedCount(str(found)).agrees(found + 1)


def test_differences_from_published_counts_are_listed_with_their_split(cards):
    (cards / "toys.md").write_text(CARD)
    card = load_card("toys")
    facts = {"items": 11, "shards": 1, "classes": {"toy": 4, "kind": 2}, "unlabelled": 0}
    found = published_differences(card, manifest({"train": facts}))
    assert found.rows() == [
        ("train", "items", "12", 11),
        ("train", "classes of toy", "3", 4),
        ("test", "items", "1.2K", None),
    ]
    test = {"items": 1_249, "shards": 1, "classes": {"toy": 3, "kind": 2}, "unlabelled": 0}
    assert published_differences(card, manifest({**manifest().splits, "test": test})).is_empty()


def parsed(text: str) -> tuple[dict, str]:
    _, header, body = text.split("---\n", 2)
    return yaml.safe_load(header), body


def test_card_shows_found_counts_beside_published_counts(cards):
    (cards / "toys.md").write_text(CARD)
    facts = {"items": 11, "shards": 1, "classes": {"toy": 3, "kind": 2}, "unlabelled": 5}
    header, body = parsed(dataset_card(load_card("toys"), manifest({"train": facts}, rejected={"truncated": 1})))
    assert header["pretty_name"] == "Toys"
    assert header["license"] == "cc0-1.0"
    assert header["tags"] == ["toys"]
    assert header["size_categories"] == ["n<1K"]
    assert "hgld" not in header
    assert header["configs"] == [{"config_name": "default", "data_files": [{"split": "train", "path": "train-*.tar"}]}]
    assert "| train | items | 11 | 12 |" in body
    assert "| train | classes of toy | 3 | 3 |" in body
    assert "| train | classes of kind | 2 | not stated |" in body
    assert "| train | items without a finest label | 5 |  |" in body
    assert "| truncated | 1 |" in body
    assert "## Known problems\n\nNone." in body
    assert "in 1 tar of 0.00 GB" in body


def test_card_of_the_users_data_has_no_licence_and_no_split_without_shards():
    """Hugging Face datasets loads no split if a pattern of the card matches no file."""
    empty = {"items": 0, "shards": 0, "classes": {"toy": 0, "kind": 0}, "unlabelled": 0}
    notes = {"notes": ["two files were no images"]}
    header, body = parsed(dataset_card(None, manifest({**manifest().splits, "val": empty}, provenance=notes)))
    assert [entry["split"] for entry in header["configs"][0]["data_files"]] == ["train"]
    assert header["pretty_name"] == "toys"
    assert "license" not in header
    assert "published counts" not in body
    assert "- two files were no images" in body


HOSTILE = "<script>x</script> | **b** [a](javascript:x) `c`\n# title\n---\n```"


def test_text_from_the_release_is_escaped_in_a_card():
    levels = (HOSTILE, "kind")
    facts = {"items": 1, "shards": 1, "classes": dict.fromkeys(levels, 1), "unlabelled": 0}
    text = dataset_card(
        None,
        manifest(
            {"train": facts},
            name=HOSTILE,
            levels=levels,
            rejected={HOSTILE: 1},
            provenance={
                "config": {HOSTILE: HOSTILE},
                "sources": [{HOSTILE: HOSTILE}],
                HOSTILE: [HOSTILE] * 21,
                "notes": [HOSTILE],
            },
        ),
    )
    header, body = parsed(text)
    assert header["pretty_name"] == " ".join(HOSTILE.split())
    assert not re.search(r"(?<!\\)(<script|\[a|\*\*b|`c)", body)
    assert re.findall(r"^(?:# .*|---|```.*)$", body, re.MULTILINE)[1:] == ["```python", "```"]
    for line in body.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (3, 5), line

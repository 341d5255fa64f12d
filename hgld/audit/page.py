"""The audit's files: the page for eyes, the lists that other verbs take, and everything as JSON."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hgld.audit.audit import Audit
from hgld.errors import StorageError
from hgld.files import write_atomic
from hgld.html_page import own_text, page_templates, script_hash
from hgld.report_page.gallery import Thumbnails
from hgld.tables import csv_text, write_table

if TYPE_CHECKING:
    from hgld.data.dataset import ShardDataset

PAGE, JSON, LABELS, EXCLUDE, DECISIONS = "audit.html", "audit.json", "labels.parquet", "exclude.csv", "decisions.yaml"
EXCLUSION_COLUMNS = ("key", "reason", "level", "given", "proposed", "probability")
MOST_CARDS = 200  # of a kind on the page: people look at the most probable
_MOST_PICTURE_BYTES = 9_000_000
_TEMPLATES = Path(__file__).with_name("templates")
_KINDS = {
    "one": "One class under two names",
    "two": "Two classes under one name",
    "parent": "Under the wrong parent",
}


@dataclass(frozen=True)
class Strip:
    """Pictures of items under a caption."""

    caption: str
    role: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Card:
    """A finding on the page: to accept it adds its line to one of the files."""

    heading: str
    says: str
    probability: float
    strips: tuple[Strip, ...]
    exclude: str
    decision: str


def write_audit(
    folder: Path,
    audit: Audit,
    decisions: Sequence[str],
    decisions_header: str,
    dataset: "ShardDataset | None",
    names: Mapping[str, str],
) -> dict[str, str]:
    """Write the files of an audit: each whole, or as it was before.

    Args:
        folder: made if it is not there.
        audit: what was found.
        decisions: entry of a file of decisions for every row of ``audit.classes``; empty where there is none.
        decisions_header: beginning of such a file.
        dataset: with the pictures, item by item as the audit counts them; None: the page has none.
        names: what was audited, by role, to be stated on the page.

    Returns:
        the files by what they are.

    Raises:
        StorageError: the disk refuses.
    """
    files = {"page": PAGE, "json": JSON, "labels": LABELS, "exclude": EXCLUDE, "decisions": DECISIONS}
    places = {role: folder / name for role, name in files.items()}
    written = [text for text in decisions if text]
    made = json.dumps(audit.to_dict() | {"audited": dict(names)}, indent=1, ensure_ascii=True, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_table(audit.labels, places["labels"])
        write_atomic(places["json"], made)
        write_atomic(places["exclude"], exclusion_text(audit))
        entries = "".join(written) or " []\n"
        header = decisions_header if written else decisions_header.rstrip("\n")
        write_atomic(places["decisions"], header + entries)
        page = audit_page(audit, decisions, decisions_header, dataset, names)
        write_atomic(places["page"], page.encode("utf-8", errors="replace"))
    except OSError as error:
        place = error.filename or folder
        raise StorageError(f"cannot write {place} ({error.strerror or error}). Choose another --out.") from error
    return {role: str(place) for role, place in places.items()}


# -- the exclusion list -----------------------------------------------------------------------------------------------


def exclusion_text(audit: Audit) -> str:
    """Return the exclusion list of wrong labels and copies, one row an item, as CSV."""
    rows: dict[str, str] = {}
    for line, key in [*_label_lines(audit), *_copy_lines(audit)]:
        rows.setdefault(key, line)
    return csv_text([EXCLUSION_COLUMNS]) + "".join(rows.values())


def _label_lines(audit: Audit) -> Iterator[tuple[str, str]]:
    for row in audit.images.iter_rows(named=True):
        cells = (row["key"], "wrong-label", row["level"], row["given"], row["proposed"], f"{row['probability']:.4f}")
        yield csv_text([cells]), row["key"]


def _copy_lines(audit: Audit) -> Iterator[tuple[str, str]]:
    for row in audit.copies.iter_rows(named=True):
        of = f"{row['other_split']}: {row['other_key']}"
        cells = (row["key"], "copy-of-other-split", "", of, "", f"{row['probability']:.4f}")
        yield csv_text([cells]), row["key"]


# -- the page ---------------------------------------------------------------------------------------------------------


def audit_page(
    audit: Audit,
    decisions: Sequence[str],
    decisions_header: str,
    dataset: "ShardDataset | None",
    names: Mapping[str, str],
) -> str:
    """Return the page: one HTML file that loads nothing from anywhere; names of classes and files stay text."""
    cards = [
        ("Images with wrong labels", _label_cards(audit)),
        ("Classes", _class_cards(audit, decisions)),
        ("Copies across splits", _copy_cards(audit)),
    ]
    sections = [(title, made[:MOST_CARDS], len(made)) for title, made in cards]
    script = own_text(_TEMPLATES / "audit.js")
    lines = json.dumps([[card.exclude, card.decision] for _, shown, _ in sections for card in shown])
    return (
        page_templates(_TEMPLATES)
        .get_template("audit.html")
        .render(
            audited=names,
            audit=audit,
            sections=sections,
            thumbnails=Thumbnails(dataset, _MOST_PICTURE_BYTES),
            pictured=dataset is not None,
            exclusion_header=csv_text([EXCLUSION_COLUMNS]),
            decisions_header=decisions_header,
            digest=hashlib.sha256(lines.encode()).hexdigest()[:16],
            style=own_text(_TEMPLATES / "audit.css"),
            script=script,
            script_hash=script_hash(script),
        )
    )


def _label_cards(audit: Audit) -> list[Card]:
    lines = [line for line, _ in _label_lines(audit)]
    cards = []
    for row, line in zip(audit.images.iter_rows(named=True), lines, strict=True):
        says = (
            f"{row['level']}: {row['given']}, probably {row['proposed']}. The {row['neighbors']} nearest images: "
            f"{row['neighbors_given']} are {row['given']}, {row['neighbors_proposed']} {row['proposed']}."
        )
        strips = (
            Strip("this image", "asked", _tiles(audit, [row["item"]])),
            Strip(f"nearest of {row['given_finest']} (given)", "given", _tiles(audit, row["near_given"])),
            Strip(f"nearest of {row['proposed_finest']} (proposed)", "proposed", _tiles(audit, row["near_proposed"])),
        )
        heading = f"{row['given_finest']} → {row['proposed_finest']}"
        cards.append(Card(heading, says, row["probability"], strips, line, ""))
    return cards


def _class_cards(audit: Audit, decisions: Sequence[str]) -> list[Card]:
    cards = []
    for row, decision in zip(audit.classes.iter_rows(named=True), decisions, strict=True):
        other = f" and {row['other']}" if row["kind"] == "one" else f" → {row['other']}" if row["other"] else ""
        second = {"one": row["other"], "two": "the other part", "parent": row["other"]}[row["kind"]]
        first = "one part" if row["kind"] == "two" else row["class"]
        strips = (
            Strip(first, "given", _tiles(audit, row["first_items"])),
            Strip(second, "proposed", _tiles(audit, row["second_items"])),
        )
        without = "" if decision else " No decision file can say so: correct it where the labels come from."
        says = f"{_KINDS[row['kind']]}, level {row['level']}, {row['items']} images. {row['evidence']}.{without}"
        cards.append(Card(f"{row['class']}{other}", says, row["probability"], strips, "", decision))
    return cards


def _copy_cards(audit: Audit) -> list[Card]:
    cards = []
    lines = [line for line, _ in _copy_lines(audit)]
    for row, line in zip(audit.copies.iter_rows(named=True), lines, strict=True):
        classes = {True: "the same class", False: "another class", None: "no known class"}[row["same_class"]]
        says = f"{row['split']} and {row['other_split']}, {classes}; alike {row['alike']:.3f}."
        strips = (
            Strip(row["split"], "asked", _tiles(audit, [row["item"]])),
            Strip(row["other_split"], "proposed", _tiles(audit, [row["other"]])),
        )
        cards.append(Card(f"{row['key']} = {row['other_key']}", says, row["probability"], strips, line, ""))
    return cards


def _tiles(audit: Audit, items: Sequence[int]) -> tuple[str, ...]:
    return tuple(audit.keys[item] for item in items)

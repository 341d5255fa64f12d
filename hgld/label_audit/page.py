"""Files of an audit: the HTML page, the lists that other subcommands read, and all results as JSON."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hgld.errors import StorageError
from hgld.files import write_atomic
from hgld.html_page import own_text, page_templates, script_hash
from hgld.label_audit.audit import Audit
from hgld.report_page.gallery import Thumbnails
from hgld.tables import csv_text, write_table

if TYPE_CHECKING:
    from hgld.data.dataset import ShardDataset

PAGE, JSON, LABELS, EXCLUDE, DECISIONS = "audit.html", "audit.json", "labels.parquet", "exclude.csv", "decisions.yaml"
EXCLUSION_COLUMNS = ("key", "reason", "level", "given", "proposed", "probability")
MOST_CARDS = 200  # per kind on the page: people look at the most probable
_MOST_PICTURE_BYTES = 9_000_000
_TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Card:
    """A finding on the page: to accept it adds its line to one of the files.

    ``strips`` are captions, roles and keys of images.
    """

    heading: str
    says: str
    probability: float
    strips: tuple[tuple[str, str, tuple[str, ...]], ...]
    exclude: str = ""
    decision: str = ""


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
        folder: folder of the files; it is made if missing.
        audit: results of the audit.
        decisions: entry of a file of decisions for every row of ``audit.classes``; empty if there is none.
        decisions_header: beginning of such a file.
        dataset: dataset with the images, in the order of the audit's items; None: the page has none.
        names: name of each audited input by its role, for the page.

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


def exclusion_text(audit: Audit) -> str:
    """Return the exclusion list of wrong labels and copies, one row per item, as CSV."""
    rows: dict[str, str] = {}
    for table, lines in ((audit.images, _label_lines(audit)), (audit.copies, _copy_lines(audit))):
        for key, line in zip(table["key"], lines, strict=True):
            rows.setdefault(key, line)
    return csv_text([EXCLUSION_COLUMNS]) + "".join(rows.values())


def _label_lines(audit: Audit) -> list[str]:
    columns = ("key", "level", "given", "proposed", "probability")
    rows = audit.images.select(columns).iter_rows()
    return [csv_text([(key, "wrong-label", *where, f"{chance:.4f}")]) for key, *where, chance in rows]


def _copy_lines(audit: Audit) -> list[str]:
    rows = audit.copies.select("key", "other_split", "other_key", "probability").iter_rows()
    return [
        csv_text([(key, "copy-of-other-split", "", f"{split}: {other}", "", f"{chance:.4f}")])
        for key, split, other, chance in rows
    ]


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
    cards = []
    for row, line in zip(audit.images.iter_rows(named=True), _label_lines(audit), strict=True):
        says = (
            f"{row['level']}: {row['given']}, probably {row['proposed']}. The {row['neighbors']} nearest images: "
            f"{row['neighbors_given']} are {row['given']}, {row['neighbors_proposed']} {row['proposed']}."
        )
        strips = (
            ("this image", "asked", _keys(audit, [row["item"]])),
            (f"nearest of {row['given_finest']} (given)", "given", _keys(audit, row["near_given"])),
            (f"nearest of {row['proposed_finest']} (proposed)", "proposed", _keys(audit, row["near_proposed"])),
        )
        cards.append(
            Card(f"{row['given_finest']} → {row['proposed_finest']}", says, row["probability"], strips, exclude=line)
        )
    return cards


def _class_cards(audit: Audit, decisions: Sequence[str]) -> list[Card]:
    cards = []
    for row, decision in zip(audit.classes.iter_rows(named=True), decisions, strict=True):
        strips = (
            (row["class"], "given", _keys(audit, row["first_items"])),
            (row["other"], "proposed", _keys(audit, row["second_items"])),
        )
        without = "" if decision else " No decision file can say so: correct it where the labels come from."
        kind, between = (
            ("One class under two names", "and") if row["kind"] == "one" else ("Under the wrong parent", "→")
        )
        says = f"{kind}, level {row['level']}, {row['items']} images. {row['evidence']}.{without}"
        heading = f"{row['class']} {between} {row['other']}"
        cards.append(Card(heading, says, row["probability"], strips, decision=decision))
    return cards


def _copy_cards(audit: Audit) -> list[Card]:
    cards = []
    for row, line in zip(audit.copies.iter_rows(named=True), _copy_lines(audit), strict=True):
        classes = {True: "the same class", False: "another class", None: "no known class"}[row["same_class"]]
        says = f"{row['split']} and {row['other_split']}, {classes}; alike {row['alike']:.3f}."
        strips = (
            (row["split"], "asked", _keys(audit, [row["item"]])),
            (row["other_split"], "proposed", _keys(audit, [row["other"]])),
        )
        cards.append(Card(f"{row['key']} = {row['other_key']}", says, row["probability"], strips, exclude=line))
    return cards


def _keys(audit: Audit, items: Sequence[int]) -> tuple[str, ...]:
    return tuple(audit.keys[item] for item in items)

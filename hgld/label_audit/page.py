"""Files of an audit: the HTML page, the lists that other subcommands read, and all results as JSON."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hgld.errors import storage_errors
from hgld.files import write_atomic
from hgld.html_page import Thumbnails, render_page
from hgld.label_audit.audit import Audit
from hgld.tables import csv_text, write_table

if TYPE_CHECKING:
    from hgld.data.dataset import ShardDataset

PAGE, JSON, LABELS, EXCLUDE, DECISIONS = "audit.html", "audit.json", "labels.parquet", "exclude.csv", "decisions.yaml"
EXCLUSION_COLUMNS = ("key", "reason", "level", "given", "proposed", "probability")
MOST_CARDS = 200  # maximum findings of each kind on the page: people look only at the most probable
_MOST_PICTURE_BYTES = 9_000_000
_HERE = Path(__file__).parent


def write_audit(
    folder: Path,
    audit: Audit,
    decisions: Sequence[str],
    decisions_header: str,
    dataset: "ShardDataset | None",
    names: Mapping[str, str],
) -> dict[str, str]:
    """Write the files of an audit; each file is written completely or not changed at all.

    Args:
        folder: folder of the files; it is created if missing.
        audit: results of the audit.
        decisions: for every row of ``audit.classes``, an entry for a file of decisions, or an empty text.
        decisions_header: first lines of the file of decisions.
        dataset: dataset with the images, in the order of the audit's items; None: the page has no images.
        names: names of the audited inputs by their role, for the page.

    Returns:
        the paths of the files; the keys describe their content.

    Raises:
        StorageError: a file cannot be written.
    """
    files = {"page": PAGE, "json": JSON, "labels": LABELS, "exclude": EXCLUDE, "decisions": DECISIONS}
    places = {role: folder / name for role, name in files.items()}
    entries = "".join(decisions)
    header = decisions_header if entries else decisions_header.rstrip("\n")
    made = json.dumps(audit.to_dict() | {"audited": dict(names)}, indent=1, ensure_ascii=True, allow_nan=False)
    with storage_errors(f"write into {folder}", "Choose another --out."):
        folder.mkdir(parents=True, exist_ok=True)
        write_table(audit.labels, places["labels"])
        write_atomic(places["json"], made)
        write_atomic(places["exclude"], exclusion_text(audit))
        write_atomic(places["decisions"], header + (entries or " []\n"))
        page = audit_page(audit, decisions, decisions_header, dataset, names)
        write_atomic(places["page"], page.encode("utf-8", errors="replace"))
    return {role: str(place) for role, place in places.items()}


def exclusion_text(audit: Audit) -> str:
    """Return the exclusion list of wrong labels and copies, one row per item, as CSV."""
    rows: dict[str, str] = {}
    for table, lines in zip((audit.images, audit.copies), _exclusion_lines(audit), strict=True):
        for key, line in zip(table["key"], lines, strict=True):
            rows.setdefault(key, line)
    return csv_text([EXCLUSION_COLUMNS]) + "".join(rows.values())


def _exclusion_lines(audit: Audit) -> tuple[list[str], list[str]]:
    """Return the line of the exclusion list for every wrong label, and for every copy."""
    labels = audit.images.select("key", "level", "given", "proposed", "probability").iter_rows()
    copies = audit.copies.select("key", "other_split", "other_key", "probability").iter_rows()
    return (
        [csv_text([(key, "wrong-label", *where, f"{chance:.4f}")]) for key, *where, chance in labels],
        [
            csv_text([(key, "copy-of-other-split", "", f"{split}: {other}", "", f"{chance:.4f}")])
            for key, split, other, chance in copies
        ],
    )


# -- the page ---------------------------------------------------------------------------------------------------------


def audit_page(
    audit: Audit,
    decisions: Sequence[str],
    decisions_header: str,
    dataset: "ShardDataset | None",
    names: Mapping[str, str],
) -> str:
    """Return the page: one HTML file that loads no other files; names of classes and files are escaped."""
    labels, copies = _exclusion_lines(audit)
    sections = []
    for title, table, exclude, decide in (
        ("Images with wrong labels", audit.images, labels, [""] * len(labels)),
        ("Classes", audit.classes, [""] * len(decisions), decisions),
        ("Copies across splits", audit.copies, copies, [""] * len(copies)),
    ):
        found = zip(table.iter_rows(named=True), exclude, decide, strict=True)
        cards = [row | {"exclude": line, "decision": decision} for row, line, decision in found]
        sections.append((title, cards[:MOST_CARDS], len(cards)))
    lines = json.dumps([[card["exclude"], card["decision"]] for _, shown, _ in sections for card in shown])
    return render_page(
        _HERE / "audit.html",
        [_HERE / "audit.js"],
        title=f"Audit of {next(iter(names.values()))}",
        audited=names,
        audit=audit,
        sections=sections,
        thumbnails=Thumbnails(dataset, _MOST_PICTURE_BYTES),
        pictured=dataset is not None,
        exclusion_header=csv_text([EXCLUSION_COLUMNS]),
        decisions_header=decisions_header,
        digest=hashlib.sha256(lines.encode()).hexdigest()[:16],
    )

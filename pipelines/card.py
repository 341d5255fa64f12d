"""Cards in Markdown, in the format of Hugging Face: their parts, and the card of a build of a hierarchy."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from hgld.data_cards import card_path

PUBLISHED_GROUPS = 78
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#.!|~$&:@])")  # not + and -: they are markup at the start of a line only
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"), (10**7, "1M<n<10M"))


def escape_markdown(text: str) -> str:
    """Return ``text`` on one line, with everything escaped that Markdown or HTML would read as markup.

    The result is meant for the middle of a line, as in the cell of a table.

    >>> escape_markdown("<b>*church* | chapel</b>")
    '\\\\<b\\\\>\\\\*church\\\\* \\\\| chapel\\\\</b\\\\>'
    """
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 1) -> str:
    """Return a Markdown table; all cells are escaped except in the last ``numbers`` columns."""
    texts = len(header) - numbers
    cells = ([*map(escape_markdown, row[:texts]), *row[texts:]] for row in rows)
    lines = [f"| {' | '.join(row)} |" for row in (header, *cells)]
    return "\n".join([lines[0], f"|{'---|' * texts}{'---:|' * numbers}", *lines[1:]])


def size_category(items: int) -> str:
    """Return Hugging Face's size category of a number of items."""
    return next((text for most, text in _SIZES if items < most), "10M<n<100M")


def read_card(file: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a card's YAML header, and its sections by their ``##`` heading."""
    _, header, text = file.read_text(encoding="utf-8").split("---\n", 2)
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return yaml.safe_load(header), {t: s.strip() for t, s in zip(parts[1::2], parts[2::2], strict=True)}


# -- the card of a build of a hierarchy -------------------------------------------------------------------------------


def write_card(
    file: Path, facts: Mapping[str, Any], groups: pl.DataFrame, landmarks: pl.DataFrame, levels: pl.DataFrame
) -> None:
    """Write the card of a build.

    The card of landmarks has the sections of ``data_cards/h-gldv2.md`` that hold for every build: levels, files,
    licence, known errors. The licence of other names is known to their owner only, so none is stated.

    Args:
        file: the file to write.
        facts: the build's provenance (:func:`hgld.pipelines.hierarchy.provenance.provenance`).
        groups: review's ``groups.parquet``.
        landmarks: assign's ``landmarks.parquet``.
        levels: assign's ``groups.parquet``.
    """
    source = facts["config"]["build"]["source"]
    own: dict[str, Any] = {
        "annotations_creators": ["machine-generated"],
        "size_categories": [size_category(len(landmarks))],
    }
    if any(given["role"] == "decisions" for given in facts["inputs"]):
        own["annotations_creators"].append("expert-generated")
    dropped = [
        (stage, reason, f"{count:,}")
        for stage, record in facts["stages"].items()
        for reason, count in record["dropped"].items()
    ]
    left_out = markdown_table(("stage", "reason", "members"), dropped) if dropped else "Nothing was left out."
    if source == "classes":
        names = facts["stages"]["export"]["details"]["levels"]
        classes = [len(landmarks), len(groups), *(levels[level].drop_nulls().n_unique() for level in names[2:])]
        header = {"pretty_name": "Hierarchical labels", **own, "tags": ["hierarchical-labels"]}
        header["configs"] = [{"config_name": "labels", "data_files": "labels.csv"}]
        rows = [(name, f"{count:,}") for name, count in zip(names, classes, strict=True)]
        sections = {
            "Levels": markdown_table(("level", "classes"), rows),
            "Left out": left_out,
            "Files": _FILES_OF_ITEMS,
        }
    else:
        clean = facts["stages"]["clean"]["details"]
        header, published = read_card(card_path("h-gldv2"))
        header.pop("hgld")  # the part that hgld itself reads: counts of the images' shards
        files = [{"split": s, "path": f"{s}_label_to_hierarchical.csv"} for s in sorted(clean["own"]["splits"])]
        configs = [{"config_name": "labels", "data_files": files}]
        header |= {"pretty_name": "Hierarchical landmark labels", **own, "configs": configs}
        sections = {
            # what was published is about GLDv2's lists, and says nothing beside other data
            "Counts": _counts(clean, landmarks, groups, beside_published=source == "landmarks"),
            "Left out": left_out,
            **{title: published[title] for title in ("Levels", "Files", "Licence", "Known problems")},
        }
    inputs = ", ".join(f"{given['role']} {escape_markdown(given['file'])}" for given in facts["inputs"])
    made_by = (
        f"Made by `hgld build-hierarchy` {facts['versions']['hgld']} from {inputs}, with the encoder "
        f"{escape_markdown(str(facts['encoder']['name']))}, after the method of H-GLDv2 (Ramzi et al., 2023, "
        "arXiv:2309.08250). `provenance.json` has every option, seed and checksum; `report.html` shows the result."
    )
    what = "items" if source == "classes" else "landmarks"
    body = [
        f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---\n",
        f"# Hierarchical labels of {len(landmarks):,} {what}\n\n{made_by}\n",
        *(f"## {title}\n\n{text}\n" for title, text in sections.items()),
    ]
    file.write_text("\n".join(body), encoding="utf-8")


_FILES_OF_ITEMS = """| file | what |
|---|---|
| `labels.csv` | id, name, and a column for every level above the items |
| `hierarchy.parquet` | the tree of classes, to be read with `hgld.Hierarchy.from_parquet` |
| `dropped.parquet` | everything without labels, with the stage that left it out and why |
| `provenance.json` | inputs, options, seeds, versions, counts by stage and reason, checksums |
| `report.html` | the build at a glance |"""


def _counts(clean: Mapping[str, Any], landmarks: pl.DataFrame, groups: pl.DataFrame, *, beside_published: bool) -> str:
    own, printed = clean["own"], clean["published"]
    labelled = dict(landmarks.group_by("split").len().iter_rows())
    rows: list[tuple[str, int, int | None]] = []  # what, this build's, the published
    for split, counts in sorted(own["splits"].items()):
        theirs = printed["splits"].get(split, {})
        for what, text in (("landmarks", "landmarks"), ("scraped", "with a scraped name"), ("kept", "kept")):
            rows.append((f"{split}, {text}", counts[what], theirs.get(what)))
        rows.append((f"{split}, labelled", labelled.get(split, 0), theirs.get("kept")))
    rows.append(("unique names", own["names"], printed["names"]))
    rows.append(("groups", len(groups), PUBLISHED_GROUPS))
    rows.append(("groups with an undecided top level", groups["top"].null_count(), 0))
    columns = ["", "this build", *(["H-GLDv2, published"] if beside_published else [])]
    cells = [[what, *("" if n is None else f"{n:,}" for n in numbers)][: len(columns)] for what, *numbers in rows]
    return markdown_table(columns, cells, numbers=len(columns) - 1)


def labelled_groups(groups: pl.DataFrame, landmarks: pl.DataFrame) -> pl.DataFrame:
    """Return groups with the number of their labelled landmarks (``labelled``), the largest first."""
    counted = landmarks.group_by(label="hierarchical_label").len("labelled")
    rows = groups.join(counted, on="label", how="left").with_columns(pl.col("labelled").fill_null(0))
    return rows.sort(["labelled", "label"], descending=[True, False])

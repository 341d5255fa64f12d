"""Cards in Markdown, in the format of Hugging Face: parts of any card, and the card of a hierarchy build."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from hgld.data_cards import card_path

# + and - are missing here, because they are markup only at the start of a line
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#.!|~$&:@])")
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
    """Return Hugging Face's size category for a number of items."""
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
    licence, known errors. For other names, only their owner knows the licence, so the card states no licence.

    Args:
        file: the file to write.
        facts: the build's provenance (:func:`hgld.pipelines.hierarchy.provenance.provenance`).
        groups: table ``groups.parquet`` of the stage review.
        landmarks: table ``landmarks.parquet`` of the stage assign.
        levels: table ``groups.parquet`` of the stage assign.
    """
    own: dict[str, Any] = {
        "annotations_creators": ["machine-generated"],
        "size_categories": [size_category(len(landmarks))],
    }
    if any(given["role"] == "decisions" for given in facts["inputs"]):
        own["annotations_creators"].append("expert-generated")
    is_landmarks = facts["config"]["build"]["source"] != "classes"
    if is_landmarks:
        header, published = read_card(card_path("h-gldv2"))
        header.pop("hgld")  # hgld's own part of the header: counts of the shards
        splits = sorted(facts["stages"]["clean"]["details"]["own"]["splits"])
        files = [{"split": split, "path": f"{split}_label_to_hierarchical.csv"} for split in splits]
        configs = [{"config_name": "labels", "data_files": files}]
        header |= {"pretty_name": "Hierarchical landmark labels", **own, "configs": configs}
        sections = {title: published[title] for title in ("Levels", "Files", "Licence", "Known problems")}
    else:
        names = facts["stages"]["export"]["details"]["levels"]
        classes = [len(landmarks), len(groups), *(levels[level].drop_nulls().n_unique() for level in names[2:])]
        configs = [{"config_name": "labels", "data_files": "labels.csv"}]
        header = {"pretty_name": "Hierarchical labels", **own, "tags": ["hierarchical-labels"], "configs": configs}
        rows = [(name, f"{count:,}") for name, count in zip(names, classes, strict=True)]
        sections = {"Levels": markdown_table(("level", "classes"), rows), "Files": _FILES_OF_ITEMS}
    inputs = ", ".join(f"{given['role']} {escape_markdown(given['file'])}" for given in facts["inputs"])
    made_by = (
        f"Made by `hgld build-hierarchy` {facts['versions']['hgld']} from {inputs}, with the encoder "
        f"{escape_markdown(str(facts['encoder']['name']))}, after the method of H-GLDv2 (Ramzi et al., 2023, "
        "arXiv:2309.08250). `provenance.json` has every option, seed and checksum; `report.html` shows the result, "
        "with its counts next to the published ones, and the excluded names."
    )
    what = "landmarks" if is_landmarks else "items"
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


def labelled_groups(groups: pl.DataFrame, landmarks: pl.DataFrame) -> pl.DataFrame:
    """Return groups with the number of their labelled landmarks (``labelled``), the largest first."""
    counted = landmarks.group_by(label="hierarchical_label").len("labelled")
    rows = groups.join(counted, on="label", how="left").with_columns(pl.col("labelled").fill_null(0))
    return rows.sort(["labelled", "label"], descending=[True, False])

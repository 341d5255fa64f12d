"""The dataset card of a build, ``README.md`` in the format of Hugging Face, with the build's own counts."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from hgld.data_cards import card_path

PUBLISHED_GROUPS = 78
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#.!|~$&:@])")  # not + and -: they are markup at the start of a line only
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def escape_markdown(text: str) -> str:
    """Return ``text`` on one line, with everything escaped that Markdown or HTML would read as markup.

    The result is meant for the middle of a line, as in the cell of a table.

    >>> escape_markdown("<b>*church* | chapel</b>")
    '\\\\<b\\\\>\\\\*church\\\\* \\\\| chapel\\\\</b\\\\>'
    """
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def write_card(
    file: Path, facts: Mapping[str, Any], groups: pl.DataFrame, landmarks: pl.DataFrame, levels: pl.DataFrame
) -> None:
    """Write the card of a build.

    Of landmarks, the sections that hold for every build (levels, files, licence, known faults) are those of
    ``data_cards/h-gldv2.md``. Of a list of other things only its owner knows the licence, so none is stated.

    Args:
        file: the file to write.
        facts: the build's provenance (:func:`hgld.pipelines.hierarchy.provenance.provenance`).
        groups: review's ``groups.parquet``.
        landmarks: assign's ``landmarks.parquet``.
        levels: the levels stage's ``groups.parquet``.
    """
    if facts["config"]["build"]["source"] == "classes":
        file.write_text("\n".join(_card_of_items(facts, groups, landmarks, levels)), encoding="utf-8")
        return
    header, sections = read_card(card_path("h-gldv2"))
    header.pop("hgld")  # the part that hgld itself reads: counts of the images' shards
    own_data = facts["config"]["build"]["source"] == "landmarks"
    counts = _counts(facts["stages"]["clean"]["details"], landmarks, groups, beside_published=own_data)
    body = [
        f"---\n{_header(header, facts, len(landmarks))}---\n",
        f"# Hierarchical labels of {len(landmarks):,} landmarks\n\n{_made_by(facts)}\n",
        f"## Counts\n\n{counts}\n",
        f"## Left out\n\n{_dropped(facts)}\n",
        f"## Groups\n\n{_groups(groups, landmarks)}\n",
        *(f"## {title}\n\n{sections[title]}\n" for title in ("Levels", "Files", "Licence", "Known faults")),
    ]
    file.write_text("\n".join(body), encoding="utf-8")


def _card_of_items(
    facts: Mapping[str, Any], groups: pl.DataFrame, landmarks: pl.DataFrame, levels: pl.DataFrame
) -> list[str]:
    names = facts["stages"]["export"]["details"]["levels"]
    classes = [len(landmarks), len(groups), *(levels[level].drop_nulls().n_unique() for level in names[2:])]
    rows = [f"| {escape_markdown(level)} | {count:,} |" for level, count in zip(names, classes, strict=True)]
    header = {
        "pretty_name": "Hierarchical labels",
        **_facts_of_header(facts, len(landmarks)),
        "tags": ["hierarchical-labels"],
        "configs": [{"config_name": "labels", "data_files": "labels.csv"}],
    }
    return [
        f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---\n",
        f"# Hierarchical labels of {len(landmarks):,} items\n\n{_made_by(facts)}\n",
        "## Levels\n\n" + "\n".join(["| level | classes |", "|---|---:|", *rows]) + "\n",
        f"## Left out\n\n{_dropped(facts)}\n",
        f"## Groups\n\n{_groups(groups, landmarks, 'items', names[-1] if len(names) > 2 else None)}\n",
        f"## Files\n\n{_FILES_OF_ITEMS}\n",
    ]


_FILES_OF_ITEMS = """| file | what |
|---|---|
| `labels.csv` | id, name, and a column for every level above the items |
| `hierarchy.parquet` | the tree of classes, to be read with `hgld.Hierarchy.from_parquet` |
| `dropped.parquet` | everything without labels, with the stage that left it out and why |
| `provenance.json` | inputs, options, seeds, versions, counts by stage and reason, checksums |
| `report.html`, `pictures/` | the build at a glance |"""


def read_card(file: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a card's YAML header, and its sections by their ``##`` heading."""
    _, header, text = file.read_text(encoding="utf-8").split("---\n", 2)
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return yaml.safe_load(header), {t: s.strip() for t, s in zip(parts[1::2], parts[2::2], strict=True)}


def _header(published: Mapping[str, Any], facts: Mapping[str, Any], landmarks: int) -> str:
    splits = facts["stages"]["clean"]["details"]["own"]["splits"]
    own = {
        "pretty_name": "Hierarchical landmark labels",
        **_facts_of_header(facts, landmarks),
        "configs": [
            {
                "config_name": "labels",
                "data_files": [{"split": s, "path": f"{s}_label_to_hierarchical.csv"} for s in sorted(splits)],
            }
        ],
    }
    return yaml.safe_dump({**published, **own}, sort_keys=False, allow_unicode=True)


def _facts_of_header(facts: Mapping[str, Any], count: int) -> dict[str, Any]:
    by_people = ["expert-generated"] if any(i["role"] == "decisions" for i in facts["inputs"]) else []
    size = next((text for most, text in _SIZES if count < most), "1M<n<10M")
    return {"annotations_creators": ["machine-generated", *by_people], "size_categories": [size]}


def _made_by(facts: Mapping[str, Any]) -> str:
    sources = ", ".join(f"{i['role']} {escape_markdown(i['file'])}" for i in facts["inputs"])
    return (
        f"Made by `hgld build-hierarchy` {facts['versions']['hgld']} from {sources}, with the encoder "
        f"{escape_markdown(str(facts['encoder']['name']))}, after the method of H-GLDv2 (Ramzi et al., 2023, "
        "arXiv:2309.08250). `provenance.json` has every option, seed and checksum; `report.html` shows the result."
    )


def _counts(clean: Mapping[str, Any], landmarks: pl.DataFrame, groups: pl.DataFrame, *, beside_published: bool) -> str:
    own = clean["own"]
    labelled = dict(landmarks.group_by("split").len().iter_rows())
    rows: list[tuple[str, int, int | None]] = []  # what, this build's, the published
    for split, counts in sorted(own["splits"].items()):
        theirs = clean["published"]["splits"].get(split, {})
        for what, text in (("landmarks", "landmarks"), ("scraped", "with a scraped name"), ("kept", "kept")):
            rows.append((f"{split}: {text}", counts[what], theirs.get(what)))
        rows.append((f"{split}: labelled", labelled.get(split, 0), theirs.get("kept")))
    rows.append(("unique names", own["names"], clean["published"]["names"]))
    rows.append(("groups", len(groups), PUBLISHED_GROUPS))
    rows.append(("groups with an undecided top level", groups["top"].null_count(), 0))
    if beside_published:  # what was published is about GLDv2's lists, and says nothing beside other data
        lines = [f"| {what} | {own:,} | {_number(theirs)} |" for what, own, theirs in rows]
        return "\n".join(["| | this build | H-GLDv2, published |", "|---|---:|---:|", *lines])
    return "\n".join(["| | this build |", "|---|---:|", *(f"| {what} | {own:,} |" for what, own, _ in rows)])


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _dropped(facts: Mapping[str, Any]) -> str:
    rows = [
        f"| {stage} | {escape_markdown(reason)} | {count:,} |"
        for stage, record in facts["stages"].items()
        for reason, count in record["dropped"].items()
    ]
    return "\n".join(["| stage | reason | members |", "|---|---|---:|", *rows]) if rows else "Nothing was left out."


def _groups(
    groups: pl.DataFrame, landmarks: pl.DataFrame, unit: str = "landmarks", top_level: str | None = "top"
) -> str:
    labelled = landmarks.group_by("hierarchical_label").len("labelled")
    ordered = (
        groups.join(labelled, left_on="label", right_on="hierarchical_label", how="left")
        .with_columns(pl.col("labelled").fill_null(0))
        .sort(["labelled", "label"], descending=[True, False])
    )
    rows = []
    for label, top, names, count in ordered.select("label", "top", "names", "labelled").iter_rows():
        tops = [] if top_level is None else [escape_markdown(top or "undecided")]
        rows.append(f"| {' | '.join([escape_markdown(label), *tops, f'{names:,}', f'{count:,}'])} |")
    above = "" if top_level is None else f" {escape_markdown(top_level)} |"
    return "\n".join([f"| group |{above} names | {unit} |", f"|---|{'---|' if above else ''}---:|---:|", *rows])

"""The report stage, which writes a build's ``report.html`` and ``README.md``.

The page is one file that loads nothing from outside. Names and decisions are untrusted text: the template escapes them,
and a content security policy allows only the script that draws the tree. Technical words
link to a glossary at the end of the page.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from hgld.files import read_json
from hgld.html_page import render_page
from hgld.tables import read_parquet
from hgld.tree_drawing import icicle

from ...card import labelled_groups, write_card
from ...stage import Progress, StageResult, StageRun, run_stage
from ..groups.levels import LANDMARK_LEVELS
from ..names.clean import PUBLISHED

VERSION = 10  # version 10: the tree shows the names to check, and what people decided
REPORT = "report.html"
CARD = "README.md"
TEMPLATE = "build_report.html"
TEMPLATES = Path(__file__).parent
WORDS = TEMPLATES / "words.yaml"
MOST_DOUBTFUL = 300
_READ = {
    "names": ("review", "names.parquet"),
    "groups": ("review", "groups.parquet"),
    "decisions": ("review", "decisions.json"),
    "proposals": ("cluster", "groups.parquet"),
    "clustered": ("cluster", "names.parquet"),
    "landmarks": ("export", "landmarks.parquet"),
    "levels": ("export", "groups.parquet"),
}


def run(root: Path, stages: Mapping[str, StageRun], facts: Mapping[str, Any], progress: Progress) -> StageRun:
    """Write the report and the card of a build into ``root/report``.

    Args:
        root: the build's directory of stages.
        stages: every stage up to the export, by name.
        facts: the build's provenance (:func:`hgld.pipelines.hierarchy.provenance.provenance`).
        progress: receives the current task.
    """
    inputs = {role: stages[stage].path(file) for role, (stage, file) in _READ.items()}
    inputs |= {"template": TEMPLATES / TEMPLATE, "words": WORDS}

    def work(directory: Path) -> StageResult:
        tables = {role: read_parquet(path) for role, path in inputs.items() if path.suffix == ".parquet"}
        # keep only the levels above the groups
        tables["levels"] = tables["levels"].drop(_levels(facts)[1], strict=False)
        page = _page(facts, tables, read_json(inputs["decisions"]))
        (directory / REPORT).write_text(page, encoding="utf-8")
        write_card(directory / CARD, facts, tables["groups"], tables["landmarks"], tables["levels"])
        progress("write the report", 1, 1)
        return StageResult({"groups": len(tables["groups"]), "bytes": len(page.encode())})

    return run_stage("report", root, version=VERSION, config=facts, inputs=inputs, work=work)


def _groups(tables: Mapping[str, pl.DataFrame], doubtful: Sequence[str]) -> list[dict[str, Any]]:
    """Return the groups, the largest first, with their members, the most common first, and the ``doubtful`` marked."""
    members = (
        tables["names"]
        .with_columns(doubtful=pl.col("name").is_in(doubtful))
        .sort(["landmarks", "name"], descending=[True, False])
        .group_by("label", maintain_order=True)
        .agg(members=pl.struct("name", "landmarks", "doubtful"))
    )
    named = tables["proposals"].select("label", label_method="method", label_evidence="evidence")
    above = {label: labels[:-1] for label, *labels in tables["levels"].iter_rows()}
    rows = labelled_groups(tables["groups"], tables["landmarks"])
    for table in (named, members):
        rows = rows.join(table, on="label", how="left", maintain_order="left")
    return [
        row
        | {
            "between": [label or "undecided" for label in above.get(row["label"], ())],
            "members": row["members"] or [],
        }
        for row in rows.to_dicts()
    ]


def _page(facts: Mapping[str, Any], tables: Mapping[str, pl.DataFrame], decisions: Mapping[str, Any]) -> str:
    ranked, levels = _doubtful(tables), _levels(facts)
    doubtful = ranked[:MOST_DOUBTFUL]
    to_check = [row["name"] for row in doubtful]
    groups = _groups(tables, to_check)
    build, stages = facts["config"]["build"], facts["stages"]
    source = build["source"]
    words = yaml.safe_load(WORDS.read_text(encoding="utf-8"))
    words.pop("landmark" if source == "classes" else "item")
    clean = stages["clean"]["details"]
    unit = "items" if source == "classes" else "landmarks"
    return render_page(
        TEMPLATES / TEMPLATE,
        ["icicle.js"],
        title=f"{len(tables['landmarks']):,} {unit} in {len(groups):,} groups",
        readable=_readable,
        tree=_tree(tables, levels, unit, to_check),
        facts=facts,
        groups=groups,
        unit=unit,
        levels=list(map(_said, levels)),
        top_level=_said(levels[-1]) if len(levels) > 2 else None,
        classes=[(_said(one.name), one.drop_nulls().n_unique()) for one in tables["levels"].iter_columns()][1:],
        undecided=[group for group in groups if group["top"] is None] if len(levels) > 2 else [],
        clustering=stages["cluster"]["details"],
        words=words,
        doubtful=doubtful,
        undecided_names=len(ranked),
        still_wrong=stages["review"]["details"].get("still_wrong"),
        landmarks=len(tables["landmarks"]),
        names=len(tables["names"]),
        own=clean["own"],
        # the published counts describe GLDv2's landmarks, and do not suit other data
        published=PUBLISHED if source == "landmarks" or "as_published" in build else None,
        decisions=decisions,
    )


def _tree(
    tables: Mapping[str, pl.DataFrame], levels: Sequence[str], unit: str, doubtful: Sequence[str]
) -> dict[str, Any]:
    """Return the icicle of the names, coloured by the probability of a wrong group, or by decisions."""
    rows = tables["names"].join(tables["levels"], on="label", how="left", maintain_order="left")
    classes = rows.select("name", *tables["levels"].columns).rename({"label": levels[1]})
    labels = classes.select(pl.all().rank("dense").cast(pl.Int64).fill_null(0) - 1).to_numpy()
    names = [column.drop_nulls().unique().sort() for column in classes.iter_columns()]
    items = np.repeat(np.arange(len(rows)), rows["landmarks"])
    shares = {"likely wrong": rows["wrong"], "decided": rows["decided_by"].is_not_null()}
    measures = {title: share.cast(pl.Float64).to_numpy()[items] for title, share in shares.items()}
    first = dict(zip(rows["name"], rows["landmarks"].cum_sum() - rows["landmarks"], strict=True))
    levels = [_said(one) for one in classes.columns]
    shown = [first[name] for name in doubtful]
    return icicle(levels, lambda c, label: names[c][label], labels[items], unit, measures, shown=shown)


def _readable(value: Any) -> str:
    """Return a JSON value as one line of text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_readable(v)}" for key, v in value.items() if v is not None)
    if isinstance(value, list):
        return ("; " if any(isinstance(v, Mapping) for v in value) else ", ").join(map(_readable, value)) or "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _levels(facts: Mapping[str, Any]) -> Sequence[str]:
    """Return the names of the build's levels, finest first."""
    return facts["stages"]["export"]["details"]["levels"]


def _said(level: str) -> str:
    """Return a level's name as words with spaces."""
    return "natural or human-made" if level == LANDMARK_LEVELS[-1] else level.replace("_", " ")


def _doubtful(tables: Mapping[str, pl.DataFrame]) -> list[dict[str, Any]]:
    """Return the undecided names, the most likely wrong first, with the second nearest group."""
    proposed = tables["proposals"].select(next_group="group", next_label="label")
    following = tables["clustered"].join(proposed, on="next_group", how="left").select("name", "next_label")
    rows = tables["names"].filter(pl.col("wrong") > 0).join(following, on="name", how="left")
    ordered = rows.sort(["wrong", "name"], descending=[True, False])
    return ordered.select("name", "label", "wrong", "next_label", "landmarks").to_dicts()

"""The review stage: annotators' decisions applied to the clustering's groups, on every run.

Decisions refer to the data by text, so each is checked against this run's names and groups: a decision that fits
nothing any more is reported, never skipped silently. Without decisions the groups pass through unchanged.
"""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from hgld.errors import InputError, TableError
from hgld.pipelines.hierarchy.config import ReviewConfig
from hgld.pipelines.hierarchy.review.agreement import Conflict, Settlement, settle
from hgld.pipelines.hierarchy.review.decision_files import read_decisions
from hgld.pipelines.hierarchy.review.decisions import Entry, Merge, Split
from hgld.pipelines.hierarchy.review.grouping import GroupId, Grouping, Subject, Unmatched
from hgld.pipelines.stage import Progress, StageResult, StageRun, run_stage, write_dropped, write_json

VERSION = 1
_MOST_NOTES = 10
_NAMES = {
    "name": pl.String,
    "landmarks": pl.Int64,
    "label": pl.String,
    "confidence": pl.Float32,
    "doubtful": pl.Boolean,
    "decided_by": pl.String,
}
_GROUPS = {
    "label": pl.String,
    "top": pl.String,
    "method": pl.String,
    "evidence": pl.String,
    "names": pl.Int64,
    "landmarks": pl.Int64,
    "decided_by": pl.String,
}
_DROPPED = {"name": pl.String, "landmarks": pl.Int64, "reason": pl.String, "who": pl.String, "why": pl.String}


def run(root: Path, clustered: StageRun, toplevel: StageRun, config: ReviewConfig, progress: Progress) -> StageRun:
    """Apply the decisions of ``config`` to the groups; write names, groups, drops and the fate of each decision.

    Args:
        root: the build's directory of stages.
        clustered: the cluster stage (names in groups).
        toplevel: the top-level stage (labels and tops of groups).
        config: the files of decisions; their contents are part of the stage's key.
        progress: told how many decisions there are.

    Raises:
        InputError: a file of decisions is missing or one of its entries is not a decision.
        SchemaError: a file of decisions of another schema version.
        TableError: the cluster and top-level stages' tables do not belong together.
    """
    missing = [str(path) for path in config.decisions if not path.is_file()]
    if missing:
        raise InputError(f"--decisions: no file {', '.join(missing)}. Check the name, or leave the option out.")
    inputs = {"cluster/names": clustered.path("names.parquet"), "toplevel/groups": toplevel.path("groups.parquet")}
    inputs |= {f"decisions/{i}/{path.name}": path for i, path in enumerate(config.decisions)}
    return run_stage(
        "review",
        root,
        version=VERSION,
        config={},
        inputs=inputs,
        work=partial(_review, inputs["cluster/names"], inputs["toplevel/groups"], config.decisions, progress),
    )


def _review(names: Path, groups: Path, decisions: Sequence[Path], progress: Progress, directory: Path) -> StageResult:
    name_table, group_table = pl.read_parquet(names), pl.read_parquet(groups)
    _check(name_table, group_table)
    entries = read_decisions(decisions)
    progress("review: decisions", 0, len(entries))
    place = dict(zip(name_table["name"].to_list(), name_table["group"].to_list(), strict=True))
    labels = dict(zip(group_table["group"].to_list(), group_table["label"].to_list(), strict=True))
    settlement = settle(place, labels, entries)
    progress("review: decisions", len(entries), len(entries))

    kept, dropped = reviewed_names(name_table, settlement.grouping)
    reviewed = reviewed_groups(kept, place, group_table, settlement.grouping)
    kept.write_parquet(directory / "names.parquet")
    reviewed.write_parquet(directory / "groups.parquet")
    write_json(directory / "decisions.json", _report(settlement))
    return StageResult(
        counts=_counts(entries, settlement, kept, reviewed),
        dropped=write_dropped(directory, dropped),
        notes=tuple(_notes(settlement)),
    )


def _check(names: pl.DataFrame, groups: pl.DataFrame) -> None:
    repeated = groups.filter(pl.col("label").is_duplicated())["label"].unique().sort().to_list()
    unknown = names.join(groups, on="group", how="anti")["name"].sort().to_list()
    if repeated or unknown:
        found = f"labels of several groups: {repeated[:3]}" if repeated else f"names of unknown groups: {unknown[:3]}"
        raise TableError(
            f"stage 'review': cluster/names.parquet and toplevel/groups.parquet do not belong together ({found}). "
            "Remove the folders stages/cluster and stages/toplevel and run the same command again."
        )


# -- tables -------------------------------------------------------------------------------------------------------


def reviewed_names(table: pl.DataFrame, grouping: Grouping) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the names that stay, with their labels, and the names that decisions drop."""
    kept, dropped = [], []
    for row in table.sort("name").iter_rows(named=True):
        group, claim = grouping.place[row["name"]], grouping.claims.get(Subject("name", row["name"]))
        if group is not None:
            looked_at = claim is not None and claim.via is None  # the name itself was meant, not its group as a whole
            kept.append(
                {
                    "name": row["name"],
                    "landmarks": row["landmarks"],
                    "label": grouping.labels[group],
                    "confidence": row["confidence"],
                    "doubtful": row["doubtful"] and not looked_at,
                    "decided_by": ", ".join(claim.annotators) if claim else None,
                }
            )
        elif claim is not None:
            reason = "dropped by decision" if claim.via is None else "dropped with its group by decision"
            said = "; ".join(dict.fromkeys(entry.decision.why for entry in claim.entries))
            who = ", ".join(claim.annotators)
            dropped.append({**row, "reason": reason, "who": who, "why": said})
    return pl.DataFrame(kept, schema=_NAMES), pl.DataFrame(dropped, schema=_DROPPED)


def reviewed_groups(
    kept: pl.DataFrame, place: dict[str, int], groups: pl.DataFrame, grouping: Grouping
) -> pl.DataFrame:
    """Return the groups that have names, with their tops."""
    sizes = dict(kept.select("name", "landmarks").iter_rows())
    machine = {row["group"]: row for row in groups.iter_rows(named=True)}
    decided = _decided_by(grouping)
    rows = []
    for group in grouping.live():
        members = grouping.members[group]
        sources: dict[GroupId, int] = {}
        for name in sorted(members):
            sources[place[name]] = sources.get(place[name], 0) + sizes[name]
        top, method, evidence = _top(group, sources, machine, grouping)
        rows.append(
            {
                "label": grouping.labels[group],
                "top": top,
                "method": method,
                "evidence": evidence,
                "names": len(members),
                "landmarks": sum(sizes[name] for name in members),
                "decided_by": ", ".join(sorted(decided.get(group, ()))) or None,
            }
        )
    return pl.DataFrame(rows, schema=_GROUPS).sort("label")


def _top(
    group: GroupId, sources: dict[GroupId, int], machine: dict[int, dict[str, Any]], grouping: Grouping
) -> tuple[str | None, str | None, str | None]:
    """Return a group's top with its method and evidence: decided by a person, by the stage, or by agreeing sources.

    ``sources`` are the clustering's groups that its names come from, with their landmarks.
    """
    if group in grouping.tops:
        claim = grouping.claims.get(Subject("top", group))
        return grouping.tops[group], "decision", claim.entries[-1].decision.why if claim else None
    if isinstance(group, int):
        row = machine[group]
        return row["top"], row["method"], row["evidence"]
    found = {source: _top(source, {}, machine, grouping) for source in sources}
    tops = sorted({top or "undecided" for top, _, _ in found.values()})
    if len(tops) > 1:
        return None, None, f"its names come from groups that are {' and '.join(tops)}"
    largest = min(found, key=lambda source: (-sources[source], str(grouping.labels[source])))
    return found[largest]


def _decided_by(grouping: Grouping) -> dict[GroupId, set[str]]:
    """Return the people who named each group, decided its top, split it off or merged others into it."""
    decided: dict[GroupId, set[str]] = {}
    for subject, claim in grouping.effective_claims().items():
        if subject.kind != "name":
            decided.setdefault(subject.of, set()).update(claim.annotators)
        elif claim.value is not None:
            makers = {entry.decision.who for entry in claim.entries if isinstance(entry.decision, Merge | Split)}
            decided.setdefault(claim.value, set()).update(makers)
    return decided


# -- report on the decisions --------------------------------------------------------------------------------------


def _report(settlement: Settlement) -> dict[str, list[dict[str, Any]]]:
    """Return the content of ``decisions.json``: lists of records, in the order of the decisions."""
    return {
        "applied": [_record(entry) for entry in settlement.applied],
        "unmatched": [{"reason": miss.reason, **_record(miss.entry)} for miss in settlement.unmatched],
        "conflicts": [_conflict_record(conflict) for conflict in settlement.conflicts],
        "withheld": [_record(entry) for entry in settlement.withheld],
        "overruled": [_record(entry) for entry in settlement.overruled],
        "kappa": [asdict(agreement) for agreement in settlement.agreements],
    }


def _record(entry: Entry) -> dict[str, Any]:
    said = {key: value for key, value in asdict(entry.decision).items() if value is not None}
    said["when"] = entry.decision.when.isoformat()
    return {"action": entry.decision.action, **said, "file": entry.file.name, "entry": entry.number}


def _conflict_record(conflict: Conflict) -> dict[str, Any]:
    verdicts = [
        {"who": side.who, "verdict": side.verdict, "decisions": [entry.place for entry in side.entries]}
        for side in conflict.verdicts
    ]
    return {"kind": conflict.kind, "of": conflict.of, "settled": conflict.settled, "verdicts": verdicts}


def _counts(
    entries: Sequence[Entry], settlement: Settlement, kept: pl.DataFrame, groups: pl.DataFrame
) -> dict[str, int]:
    return {
        "names": len(kept),
        "groups": len(groups),
        "undecided groups": groups["top"].null_count(),
        "decisions": len(entries),
        "applied": len(settlement.applied),
        "unmatched": len({miss.entry for miss in settlement.unmatched}),
        "open conflicts": sum(conflict.settled is None for conflict in settlement.conflicts),
    }


def _notes(settlement: Settlement) -> list[str]:
    notes = _few([_unmatched_note(miss) for miss in settlement.unmatched], "unmatched decisions")
    notes += _few([_conflict_note(c) for c in settlement.conflicts if c.settled is None], "conflicts")
    for agreement in settlement.agreements:
        if agreement.count and agreement.observed is not None:
            notes.append(
                f"{' and '.join(agreement.annotators)} agree on {agreement.observed:.0%} of the {agreement.count} "
                f"{agreement.about} that both decided on: Cohen's kappa {agreement.kappa:.2f}."
            )
    return notes


def _unmatched_note(miss: Unmatched) -> str:
    return f"{miss.entry.place} ({miss.entry.decision.action}, {miss.entry.decision.who}) fits nothing: {miss.reason}."


def _conflict_note(conflict: Conflict) -> str:
    sides = ", ".join(f"{side.who}: {side.verdict}" for side in conflict.verdicts)
    return (
        f"Conflict about the {conflict.kind} {conflict.of!r} ({sides}): none is applied until an adjudicator decides."
    )


def _few(notes: list[str], what: str) -> list[str]:
    more = len(notes) - _MOST_NOTES
    return notes[:_MOST_NOTES] + ([f"{more} more {what} stand in stages/review/decisions.json."] if more > 0 else [])

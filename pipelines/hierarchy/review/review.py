"""The review stage: it applies annotators' decisions to the clustering's groups in every build.

Decisions name groups and names by their text. The stage checks each decision against the names and groups of this build
and reports the decisions that do not fit. Names without a decision get the group that the learner estimates, as on the
page. Without decisions the groups do not change.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from hgld.errors import InputError, quoted
from hgld.files import read_json
from hgld.tables import read_parquet

from ...stage import Progress, StageResult, StageRun, run_stage, write_dropped, write_json
from ..config import ReviewConfig
from ..groups.given import NONE
from .agreement import Settlement, settle
from .decisions import Entry, Merge, New, Split, read_decisions
from .grouping import Classes, GroupId, Grouping, Subject
from .learner import Estimates, Learner
from .tables import LEVELS, classes_above
from .whole_tree import expected_errors

VERSION = 9  # 9: expected errors at the build's level
_NAMES = {
    "name": pl.String,
    "landmarks": pl.Int64,
    "label": pl.String,
    "confidence": pl.Float32,
    "wrong": pl.Float32,
    "decided_by": pl.String,
}
_GROUPS = {
    "label": pl.String,
    "group": pl.Int32,
    "top": pl.String,
    "method": pl.String,
    "evidence": pl.String,
    "names": pl.Int64,
    "landmarks": pl.Int64,
    "decided_by": pl.String,
    "classes": pl.List(pl.String),
    "classes_by": pl.List(pl.String),
    "built": pl.List(pl.String),
    "built_wrong": pl.List(pl.Float64),
}
_GIVEN = ("given", "tree")  # values of `method` for a top class that the user's table or taxonomy states
_ITEMS: dict[str, Any] = dict.fromkeys(("split", "id", "name", "label", "who", "why"), pl.String)
_DROPPED = {"name": pl.String, "landmarks": pl.Int64, "reason": pl.String, "who": pl.String, "why": pl.String}
# Error probabilities of a group's class, by method. On six taxonomies, 33 to 53% of the classes by other methods were
# wrong; the probability for P279 is assumed.
_WRONG = {None: 0.99, "p279": 0.05, "given": 0.0, "tree": 0.0}
_WRONG_ELSE = 0.5
_Top = tuple[str | None, str | None, str | None]  # class, method, evidence
_SAID = ("label", "method", "evidence")
_UNDECIDED: _Top = (None, None, None)


def run(
    root: Path,
    clustered: StageRun,
    toplevel: StageRun,
    config: ReviewConfig,
    progress: Progress,
    *,
    learns: bool = False,
) -> StageRun:
    """Apply the decisions of ``config`` to the groups; write names, groups, drops and the outcome of each decision.

    Args:
        root: the folder of the build's stages.
        clustered: the cluster stage (names in groups).
        toplevel: the top-level stage (labels and tops of groups).
        config: files of decisions; the stage's key includes their contents.
        progress: function called with the number of decisions.
        learns: whether to estimate the groups of names without a decision. Otherwise these names stay in their group.

    Raises:
        InputError: a file of decisions is missing, or an entry is not a decision.
        SchemaError: a file of decisions has another schema version.
    """
    missing = [str(path) for path in config.decisions if not path.is_file()]
    if missing:
        raise InputError(f"--decisions: no file {', '.join(missing)}. Check the name, or omit the option.")
    inputs = {"cluster/names": clustered.path("names.parquet"), "toplevel/groups": toplevel.path("groups.parquet")}
    levels = None
    if (toplevel.directory / LEVELS).is_file():
        inputs["toplevel/levels"] = toplevel.path(LEVELS)
        levels = read_parquet(inputs["toplevel/levels"])
    classes = classes_above(toplevel.result.details, levels)
    inputs |= Learner.files(root) if learns else {}
    inputs |= {f"decisions/{i}/{path.name}": path for i, path in enumerate(config.decisions)}
    return run_stage(
        "review",
        root,
        version=VERSION,
        config={"classes": {level: list(names) for level, names in classes.items()}},
        inputs=inputs,
        work=partial(_review, inputs, config.decisions, levels, classes, root if learns else None, progress),
    )


def _review(
    inputs: Mapping[str, Path],
    decisions: Sequence[Path],
    levels: pl.DataFrame | None,
    classes: Classes,
    stages: Path | None,
    progress: Progress,
    directory: Path,
) -> StageResult:
    name_table, group_table = read_parquet(inputs["cluster/names"]), read_parquet(inputs["toplevel/groups"])
    entries = read_decisions(decisions)
    progress("review: decisions", 0, len(entries))
    place = dict(name_table.select("name", "group").iter_rows())
    labels = dict(group_table.select("group", "label").iter_rows())
    settlement = settle(place, labels, entries, classes)
    learner = None if stages is None else Learner.of(stages)
    estimates, placed = estimated(settlement.grouping, learner, settlement.models)
    progress("review: decisions", len(entries), len(entries))

    kept, dropped = reviewed_names(name_table, placed, estimates.wrong if estimates else None)
    reviewed = reviewed_groups(kept, place, group_table, placed, levels)
    kept.write_parquet(directory / "names.parquet")
    reviewed.write_parquet(directory / "groups.parquet")
    reviewed_items(placed).write_parquet(directory / "items.parquet")
    write_json(directory / "decisions.json", _report(settlement))
    counts = {
        "names": len(kept),
        "groups": len(reviewed),
        "names in a wrong group, about": round(estimates.still_wrong["names"][0] if estimates else kept["wrong"].sum()),
        "decisions": len(entries),
        "applied": len(settlement.applied),
        "unmatched": len({miss.entry for miss in settlement.unmatched}),
        "open conflicts": sum(conflict.settled is None for conflict in settlement.conflicts),
    }
    if estimates and entries:
        was = settlement.grouping.place
        counts["taught elsewhere"] = sum(placed.place[name] != assigned for name, assigned in was.items())
    return StageResult(
        counts=counts,
        dropped=write_dropped(directory, dropped),
        notes=tuple(_notes(settlement)),
        details={"still_wrong": expected_errors(estimates, reviewed, list(classes))} if estimates else {},
    )


def estimated(
    grouping: Grouping, learner: Learner | None, models: Sequence[Grouping] = ()
) -> tuple[Estimates | None, Grouping]:
    """Return the learner's estimates, and the grouping with the undecided names in their estimated groups.

    Without decisions and models' votes every name stays in its group of the clustering.
    """
    if learner is None:
        return None, grouping
    estimates = learner.fit(grouping, models)
    return estimates, grouping.placed(estimates.place) if grouping.claims or models else grouping


# -- tables -------------------------------------------------------------------------------------------------------


def reviewed_names(
    table: pl.DataFrame, grouping: Grouping, learned: Mapping[str, float] | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the names that are not dropped, with their labels, and the dropped names.

    Args:
        table: the cluster stage's names.
        grouping: the names in groups after the decisions.
        learned: the learner's error probability by name. Default: the error probabilities of the clustering.
    """
    wrong = dict(table.select("name", "wrong").iter_rows()) | dict(learned or {})
    wrong |= dict.fromkeys(grouping.decided, 0.0)  # a decision about the whole group does not check a name
    kept, dropped = [], []
    for name, landmarks, confidence in table.select("name", "landmarks", "confidence").sort("name").iter_rows():
        group, claim = grouping.place[name], grouping.claims.get(Subject("name", name))
        who = claim.annotators if claim else None
        if group is not None:
            kept.append((name, landmarks, grouping.labels[group], confidence, wrong[name], who))
        elif claim is not None:
            reason = "dropped by decision" if claim.via is None else "dropped with its group by decision"
            dropped.append((name, landmarks, reason, who, claim.reasons))
    return pl.DataFrame(kept, _NAMES, orient="row"), pl.DataFrame(dropped, _DROPPED, orient="row")


def reviewed_groups(
    kept: pl.DataFrame,
    place: Mapping[str, int],
    groups: pl.DataFrame,
    grouping: Grouping,
    levels: pl.DataFrame | None = None,
    only: GroupId | None = None,
) -> pl.DataFrame:
    """Return the groups that have names, or only one of them, with their tops.

    ``classes`` has a group's class per level above the groups, finest first, null if it is undecided. ``classes_by``
    says who decided it: people, ``given`` for a table or taxonomy, or null for hgld. ``built`` has the classes before
    any decision, and ``built_wrong`` their error probabilities. "none of these" has no class to decide.

    Args:
        kept: names with their numbers of items.
        place: group of every name in the clustering.
        groups: table ``groups.parquet`` of the top-level stage.
        grouping: the names in groups after the decisions.
        levels: table ``levels.parquet`` of the top-level stage; None: the build has no level below the coarsest level.
        only: the only group to return; None: all groups.
    """
    sizes = dict(kept.select("name", "landmarks").iter_rows())
    machine = {group: tuple(top) for group, *top in groups.select("group", *list(_GROUPS)[2:5]).iter_rows()}
    finer = {level: dict.fromkeys(machine, _UNDECIDED) for level in list(grouping.classes)[:-1]}
    for group, level, *said in () if levels is None else levels.select("group", "level", *_SAID).iter_rows():
        if level in finer:
            finer[level][group] = tuple(said)
    decided = _decided_by(grouping)
    rows = []
    for group in grouping.live() if only is None else [only]:
        members = grouping.members[group]
        sources = Counter[GroupId]()  # number of items by group of the clustering
        for name in members:
            sources[place[name]] += sizes[name]
        number = group if isinstance(group, int) else None
        who = ", ".join(sorted(decided.get(group, ()))) or None
        at = [*finer.items(), (None, machine)]
        built = [_built(group, sources, of, grouping, level) for level, of in at]
        tops = [_top(group, top, grouping, level) for (level, _), top in zip(at, built, strict=True)]
        by = [_class_by(group, top, grouping, level) for (level, _), top in zip(at, tops, strict=True)]
        wrong = [_WRONG.get(method, _WRONG_ELSE) for _, method, _ in built]
        above = ([top[0] for top in tops], by, [top[0] for top in built], wrong) if grouping.classes else ([],) * 4
        rows.append((grouping.labels[group], number, *tops[-1], len(members), sources.total(), who, *above))
    return pl.DataFrame(rows, _GROUPS, orient="row").sort("label")


def reviewed_items(grouping: Grouping) -> pl.DataFrame:
    """Return the items that decisions gave to another name or group: split, id, name, label, who, why.

    The label is null if the name or group was dropped later.
    """
    rows = []
    for (split, id_), given in sorted(grouping.items.items()):
        claim = grouping.claims[Subject("item", split, id_)]
        assigned = given.group if given.group is not None else grouping.place.get(given.name or "")
        label = grouping.labels[assigned] if assigned is not None and grouping.members.get(assigned) else None
        rows.append((split, id_, given.name, label, claim.annotators, claim.reasons))
    return pl.DataFrame(rows, _ITEMS, orient="row")


def _class_by(group: GroupId, top: _Top, grouping: Grouping, level: str | None) -> str | None:
    claim = grouping.claims.get(Subject("top", group, level))
    is_given = top[1] in _GIVEN or (top[0] is None and grouping.labels[group] == NONE)
    return claim.annotators if claim else "given" if is_given else None


def _top(group: GroupId, built: _Top, grouping: Grouping, level: str | None) -> _Top:
    """Return a group's class with its method and evidence, from a person or else from the build."""
    claim = grouping.claims.get(Subject("top", group, level))
    return built if claim is None else (claim.value, "decision", claim.entries[-1].decision.why)


def _built(
    group: GroupId,
    sources: Mapping[GroupId, int],
    machine: Mapping[Any, Any],
    grouping: Grouping,
    level: str | None = None,
) -> _Top:
    """Return a group's class from the top-level stage; for a group that decisions made, from the group's sources.

    Args:
        group: the group.
        sources: number of the group's items by group of the clustering.
        machine: classes of the top-level stage, by group.
        grouping: the groups after the decisions.
        level: the level; None: the coarsest.
    """
    if group in machine:
        return machine[group]
    found = {source: _top(source, machine[source], grouping, level) for source in sources}
    tops = sorted({top or "undecided" for top, _, _ in found.values()})
    if len(tops) > 1:
        return None, None, f"its names come from groups that are {' and '.join(tops)}"
    return found[min(found, key=lambda source: (-sources[source], grouping.labels[source]))]


def _decided_by(grouping: Grouping) -> dict[GroupId, set[str]]:
    """Return, per group, the people who labelled it, decided its top, split it off, or merged other groups into it."""
    decided: dict[GroupId, set[str]] = defaultdict(set)
    for subject, claim in grouping.effective_claims().items():
        is_name = subject.kind == "name"
        group = claim.value if is_name else subject.of
        if group is not None:
            made = [e for e in claim.entries if not is_name or isinstance(e.decision, Merge | Split | New)]
            decided[group].update(entry.decision.who for entry in made)
    return decided


def doubtful_names(build: Path) -> tuple[dict[str, Any], pl.DataFrame]:
    """Return the expected number of wrong names of a finished build, and its undecided names, most doubtful first.

    Raises:
        TableError: the folder is not a finished build.
    """
    stage = build / "stages" / "review"
    names = read_parquet(stage / "names.parquet", fix="Give the folder of a finished hgld build-hierarchy.")
    names = names.filter(pl.col("wrong") > 0).sort("wrong", "name", descending=[True, False])
    still_wrong = read_json(stage / "done.json")["details"].get("still_wrong", {})
    return still_wrong, names.select("name", "label", pl.col("wrong").cast(pl.Float64).round(2))


# -- report on the decisions --------------------------------------------------------------------------------------


def _report(settlement: Settlement) -> dict[str, list[dict[str, Any]]]:
    """Return the content of ``decisions.json``: lists of decisions in order."""
    outcomes = {name: getattr(settlement, name) for name in ("applied", "withheld", "overruled")}
    return {name: [_record(entry) for entry in entries] for name, entries in outcomes.items()} | {
        "unmatched": [{"reason": miss.reason, **_record(miss.entry)} for miss in settlement.unmatched],
        "conflicts": [
            conflict.to_dict(lambda side: {"decisions": [entry.place for entry in side.entries]})
            for conflict in settlement.conflicts
        ],
        "kappa": [asdict(agreement) for agreement in settlement.agreements],
    }


def _record(entry: Entry) -> dict[str, Any]:
    return {"why": None, **entry.decision.to_dict(), "file": entry.file.name, "entry": entry.number}


def _notes(settlement: Settlement) -> list[str]:
    notes, where = [], "All are in stages/review/decisions.json."
    if settlement.unmatched:
        miss = settlement.unmatched[0]
        first = f"{miss.entry.place} ({miss.entry.decision.action}, {miss.entry.decision.who}): {miss.reason}"
        notes.append(f"Parts of decisions that do not fit: {len(settlement.unmatched)}, first {first}. {where}")
    if contested := [conflict for conflict in settlement.conflicts if conflict.settled is None]:
        sides = ", ".join(f"{side.who}: {side.verdict}" for side in contested[0].verdicts)
        first = f"{contested[0].kind} {quoted(contested[0].of)} ({sides})"
        notes.append(f"Conflicts for an adjudicator to decide: {len(contested)}, first {first}. {where}")
    for agreement in settlement.agreements:
        if agreement.count and agreement.observed is not None:
            kappa = f": Cohen's kappa {agreement.kappa:.2f}." if agreement.is_told else "."
            notes.append(
                f"{' and '.join(agreement.annotators)} agree on {agreement.observed:.0%} of the {agreement.count} "
                f"{agreement.about} that both decided on{kappa}"
            )
    return notes

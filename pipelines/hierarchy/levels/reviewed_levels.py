"""The stage "levels": the label of every reviewed group at every level above it.

A group of the clustering keeps its labels, whatever it is called now. A group that decisions made has the labels that
the groups of its names agree on, and none where they differ. What people set goes before both; the coarsest label is
the review's. Where people gave groups of one coarser class different tops, the top of most landmarks keeps that class,
and each of the others gets one of its own, ``CLASS (TOP)``, so that every class has one parent.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import polars as pl

from hgld.tables import read_parquet

from ...stage import Progress, StageResult, StageRun, run_stage
from ..groups.given import NONE
from .levels import LevelPlan

VERSION = 2  # 2: classes that people set below the coarsest level
GROUPS = "groups.parquet"


def run(
    root: Path, clustered: StageRun, toplevel: StageRun, reviewed: StageRun, progress: Progress, *, plan: LevelPlan
) -> StageRun:
    """Run the stage: ``groups.parquet`` with a row for every reviewed group: label, and a column a level.

    The first of these columns is the label again; it is null for the names that fit no given group.

    Args:
        root: the build's directory of stages.
        clustered: the cluster stage (names in groups).
        toplevel: the top-level stage (labels of groups at the levels above).
        reviewed: the review stage.
        progress: told nothing, as it takes no time.
        plan: the levels.
    """
    inputs = {
        "cluster/names": clustered.path("names.parquet"),
        "toplevel/levels": toplevel.path("levels.parquet"),
        "review/names": reviewed.path("names.parquet"),
        "review/groups": reviewed.path("groups.parquet"),
        "review/set_levels": reviewed.path("set_levels.parquet"),
    }
    config = {"levels": list(plan.names)}
    return run_stage("levels", root, version=VERSION, config=config, inputs=inputs, work=partial(_work, inputs, plan))


def _work(inputs: Mapping[str, Path], plan: LevelPlan, directory: Path) -> StageResult:
    table = {role: read_parquet(file) for role, file in inputs.items()}
    groups = table["review/groups"]
    rows = labels_above(table["cluster/names"], table["toplevel/levels"], table["review/names"], groups, plan.above)
    set_at = {(label, level): name for label, level, name, _ in table["review/set_levels"].iter_rows()}
    for label, row in zip(groups["label"].to_list(), rows, strict=True):
        row[:] = [set_at.get((label, level), name) for level, name in zip(plan.above, row, strict=True)]
    sizes = groups["landmarks"].to_list()
    one_parent_each(rows, sizes)
    own = [None if plan.into and label == NONE else label for label in groups["label"]]
    columns = {plan.names[1]: own, **{level: [row[depth] for row in rows] for depth, level in enumerate(plan.above)}}
    result = pl.DataFrame({"label": groups["label"], **columns}, schema=dict.fromkeys(["label", *columns], pl.String))
    result.write_parquet(directory / GROUPS)
    counts: dict[str, int] = {plan.names[1]: len(groups)}
    for level in plan.above:
        counts |= {
            level: result[level].drop_nulls().n_unique(),
            f"{plan.names[1]} without {level}": result[level].null_count(),
        }
    return StageResult(counts)


def labels_above(
    names: pl.DataFrame, levels: pl.DataFrame, reviewed: pl.DataFrame, groups: pl.DataFrame, above: Sequence[str]
) -> list[list[str | None]]:
    """Return the labels of every reviewed group at the levels above it, finest first; the last one is the review's.

    Args:
        names: cluster's ``names.parquet``.
        levels: the top-level stage's ``levels.parquet``.
        reviewed: review's ``names.parquet``.
        groups: review's ``groups.parquet``.
        above: names of the levels.
    """
    known: dict[int, list[str | None]] = defaultdict(lambda: [None] * len(above))
    depth = {level: i for i, level in enumerate(above)}
    for group, level, label in levels.select("group", "level", "label").iter_rows():
        known[group][depth[level]] = label
    sources: dict[str, set[int]] = defaultdict(set)
    for label, group in reviewed.select("name", "label").join(names, on="name").select("label", "group").iter_rows():
        sources[label].add(group)
    rows = []
    for label, group, top in groups.select("label", "group", "top").iter_rows():
        found = [known[group]] if group is not None else [known[source] for source in sorted(sources[label])]
        agreed = [labels[0] if len(set(labels)) == 1 else None for labels in zip(*found, strict=True)]
        rows.append([*agreed[:-1], top] if above else [])
    return rows


def one_parent_each(rows: list[list[str | None]], sizes: Sequence[int]) -> None:
    """Divide, in place, the classes that lie below several classes of the next coarser level, the coarsest first."""
    for depth in reversed(range(len(rows[0]) - 1 if rows else 0)):
        parents: dict[str, Counter[str | None]] = defaultdict(Counter)
        for row, size in zip(rows, sizes, strict=True):
            if (label := row[depth]) is not None:
                parents[label][row[depth + 1]] += size
        main = {label: min(found, key=lambda p: (-found[p], p is None, p or "")) for label, found in parents.items()}
        taken = {row[depth] for row in rows}
        for row in rows:
            label, parent = row[depth], row[depth + 1]
            if label is not None and parent != main[label]:
                row[depth] = _free(f"{label} ({parent or 'undecided'})", taken)


def _free(label: str, taken: set[str | None]) -> str:
    while label in taken:
        label += "'"
    return label

"""The stages "cluster" and "toplevel" where the levels are those of a taxonomy (``--tree-use levels``).

They leave the tables that clustering leaves: the groups are the tree's classes at the first level above the names, the
levels above them its own. Nothing is estimated, so every confidence is 1 and no name is taken to be wrong.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import polars as pl

from hgld.errors import ConfigError
from hgld.tables import read_parquet
from hgld.taxonomy.graph import Taxonomy
from hgld.taxonomy.levels import EvenLevels

from ...stage import Progress, StageResult, StageRun, run_stage
from ..config import BuildConfig, TreeConfig
from ..evidence.embed import read_embeddings
from ..groups.cluster import name_map, write_map, write_no_curve
from ..names.classes import read_items
from ..names.tree import classes_in_tree, group_labels, tree_levels
from .levels import LevelPlan, check_names
from .toplevel import Decision, level_table, with_decisions

VERSION = 3  # 3: all columns of the empty curve
METHOD = "tree"
ITEM = "item"


def has_given_levels(build: Path) -> bool:
    """Tell whether a finished build's levels are those of a taxonomy, so that decisions teach nothing about others."""
    groups = build / "stages" / "cluster" / "groups.parquet"
    return groups.is_file() and read_parquet(groups, columns=["method"])["method"].eq(METHOD).all()


def plan_given_levels(config: BuildConfig, taxonomy: Taxonomy) -> LevelPlan:
    """Return the levels of the tree, called as ``--levels`` says.

    Raises:
        ConfigError: options that choose groups are given too, or the names of the levels do not fit.
        InputError: the names cannot be read.
        HierarchyError: the tree does not suit the rules, or has none of the names.
    """
    chosen = {
        "--groups": config.cluster.groups or config.levels.coarser,
        "--clusters": config.cluster.clusters,
        "--structure": config.cluster.structure,
        "--top": config.levels.top,
        "--into": config.levels.into,
    }
    if wrong := [option for option, value in chosen.items() if value]:
        raise ConfigError(
            f"{wrong[0]} chooses groups, but --tree-use levels takes those of the tree. Leave it out, or take "
            "--tree-use evidence."
        )
    known = classes_in_tree(taxonomy, config.taxonomy, read_items(config.tables[0][1]).items)
    found = tree_levels(taxonomy, config.taxonomy, known.of.values(), config.levels.levels)
    names = config.levels.levels or (ITEM, *found.hierarchy.levels[1:])
    check_names(names)
    return LevelPlan(names, (), ())


def run_cluster(
    root: Path,
    cleaned: StageRun,
    embedded: StageRun,
    config: TreeConfig,
    progress: Progress,
    *,
    plan: LevelPlan,
    taxonomy: Taxonomy,
) -> StageRun:
    """Run the stage ``cluster`` on the tree: the tables of the clustering, with an empty ``k_curve.parquet``.

    Args:
        root: the build's directory of stages.
        cleaned: the clean stage (names, each with one class of the tree).
        embedded: the embed stage (embeddings, for the map alone).
        config: the rules.
        progress: told what is being done.
        plan: the levels.
        taxonomy: the tree.
    """
    inputs = {"clean/names": cleaned.path("names.parquet"), "embed/embeddings": embedded.path("embeddings.npy")}
    found, names = _levels(taxonomy, config, plan, inputs["clean/names"])

    def work(out: Path) -> StageResult:
        labels = [above[0] for above in names["above"].to_list()]
        number = {label: place for place, label in enumerate(sorted(set(labels)))}
        progress("draw the map", 0, 1)
        places = name_map(read_embeddings(inputs["embed/embeddings"]))
        members = names.select("name", "landmarks").with_columns(
            pl.Series("cluster", [number[label] for label in labels], dtype=pl.Int32),
            pl.Series("group", [number[label] for label in labels], dtype=pl.Int32),
            pl.lit(1, pl.Float32).alias("confidence"),
            pl.lit(None, pl.Int32).alias("next_group"),
            pl.lit(0, pl.Float32).alias("wrong"),
            pl.lit(value=False).alias("doubtful"),
        )
        members.write_parquet(out / "names.parquet")
        _groups(members, number, found).write_parquet(out / "groups.parquet")
        write_no_curve(out)
        write_map(out, names, places)
        found.changes.write_parquet(out / "changes.parquet")
        counts = {"names": len(names), "groups": len(number), **found.counts}
        details = {"criterion": METHOD, "cut": found.cut, "parents": found.parents}
        return StageResult(counts, details=details)

    return run_stage("cluster", root, version=VERSION, config=_key(config, found, plan), inputs=inputs, work=work)


def run_toplevel(
    root: Path,
    cleaned: StageRun,
    clustered: StageRun,
    config: TreeConfig,
    progress: Progress,
    *,
    plan: LevelPlan,
    taxonomy: Taxonomy,
) -> StageRun:
    """Run the stage ``toplevel`` on the tree: the labels of every group at the levels above, null where unknown.

    Args:
        root: the build's directory of stages.
        cleaned: the clean stage.
        clustered: the cluster stage (:func:`run_cluster`).
        config: the rules.
        progress: told nothing, as it takes no time.
        plan: the levels.
        taxonomy: the tree.
    """
    inputs = {
        "clean/names": cleaned.path("names.parquet"),
        "cluster/names": clustered.path("names.parquet"),
        "cluster/groups": clustered.path("groups.parquet"),
    }
    found, names = _levels(taxonomy, config, plan, inputs["clean/names"])

    def work(out: Path) -> StageResult:
        groups = read_parquet(inputs["cluster/groups"]).sort("group")
        placed = names.join(read_parquet(inputs["cluster/names"]).select("name", "group"), on="name")
        above = dict(placed.select("group", "above").iter_rows())
        levels = [
            {group: _decision(labels[depth], found) for group, labels in above.items()}
            for depth in range(1, 1 + len(plan.above))
        ]
        top = with_decisions(groups.select("group", "label"), "top", levels[-1] if levels else {})
        top.write_parquet(out / "groups.parquet")
        level_table(groups, plan.above, levels).write_parquet(out / "levels.parquet")
        counts: dict[str, int] = {"levels above the groups": len(plan.above)}
        if plan.above:
            counts |= {plan.above[-1]: top["top"].drop_nulls().n_unique(), "undecided": top["top"].null_count()}
        return StageResult(counts, details={"levels": list(plan.names), "tops": []})

    return run_stage("toplevel", root, version=VERSION, config=_key(config, found, plan), inputs=inputs, work=work)


def _key(config: TreeConfig, found: EvenLevels, plan: LevelPlan) -> dict[str, object]:
    return {"tree": found.taxonomy.fingerprint(), "plan": asdict(plan), "parents": config.parents, "cut": config.cut}


def _levels(
    taxonomy: Taxonomy, config: TreeConfig, plan: LevelPlan, names_file: Path
) -> tuple[EvenLevels, pl.DataFrame]:
    """Return the tree's levels, and clean's names with their labels at the levels above as the column ``above``."""
    names = read_parquet(names_file)
    ids = [class_ids[0] for class_ids in names["class_ids"].to_list()]
    found = tree_levels(taxonomy, config, ids, plan.names)
    labels = group_labels(found)
    above: Sequence[list[str | None]] = [labels[class_id] for class_id in ids]
    return found, names.with_columns(pl.Series("above", above, dtype=pl.List(pl.String)))


def _groups(members: pl.DataFrame, number: dict[str, int], found: EvenLevels) -> pl.DataFrame:
    hierarchy, ids = found.hierarchy, found.taxonomy.ids
    node = dict(zip(hierarchy.names[1], found.nodes[1].tolist(), strict=True))
    sizes = members.group_by("group").agg(pl.len().alias("names"), pl.col("landmarks").sum()).sort("group")
    evidence = [f"class {ids[node[label]]} of {Path(found.taxonomy.source).name}, by {found.cut}" for label in number]
    return sizes.select(
        "group",
        pl.Series("label", list(number), dtype=pl.String),
        pl.lit(METHOD).alias("method"),
        pl.Series("evidence", evidence, dtype=pl.String),
        pl.col("names").cast(pl.Int64),
        pl.col("landmarks").cast(pl.Int64),
    )


def _decision(label: str | None, found: EvenLevels) -> Decision:
    return Decision(label, METHOD if label else None, f"{Path(found.taxonomy.source).name}, by {found.cut}", 1.0)

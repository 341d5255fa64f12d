"""A scripted annotator, who corrects a build with the true groups of a world."""

import json
import sys
from collections import defaultdict
from pathlib import Path

import polars as pl
from measured import match_groups

from rehearsed.world import SETS, World

_WHEN = "2026-01-01T00:00:00Z"


def decide(world: World, build: Path, file: Path) -> int:
    """Write the decisions that turn the groups of a build into the true groups; return their number."""
    stages = build / "stages"
    truth = _true_groups(world, pl.read_parquet(stages / "clean" / "landmarks.parquet"))
    names = pl.read_parquet(stages / "review" / "names.parquet").select("name", "label", "landmarks")
    names = names.with_columns(true=pl.col("name").replace_strict(truth, default=None)).drop_nulls("true")
    shared = names.group_by("true", "label").agg(pl.col("landmarks").sum()).sort("true", "label")
    homes = match_groups({(true, label): count for true, label, count in shared.iter_rows()})
    chosen = {label: true for true, label in homes.items()}
    old = set(pl.read_parquet(stages / "review" / "groups.parquet")["label"])
    # Temporary labels, because two groups may swap labels.
    between = {label: f"group {number} in between" for number, label in enumerate(sorted(chosen))}
    between |= {label: f"{label} as found" for label in old - set(chosen)}
    titles = [label for label, _ in world.groups]
    decisions = [_rename(label, to) for label, to in sorted(between.items())]
    decisions += [_rename(between[label], titles[true]) for label, true in sorted(chosen.items())]
    moves, stays = defaultdict[int, list[str]](list), defaultdict[int, list[str]](list)
    for name, label, true in names.select("name", "label", "true").sort("name").iter_rows():
        (stays if homes.get(true) == label else moves)[true].append(name)
    # Without these decisions, the model would learn from the moves that right names are wrong.
    for true, kept in sorted(stays.items()):
        decisions.append({"action": "accept", "group": titles[true], "names": kept})
    for true, moved in sorted(moves.items()):
        action = "move" if true in homes else "new"
        decisions.append({"action": action, "names": moved, "to": titles[true]})
    for true in sorted({*homes, *moves}):
        decisions.append({"action": "set", "group": titles[true], "top": world.groups[true][1]})
    signed = [decision | {"who": "script", "when": _WHEN} for decision in decisions]
    # JSON is valid YAML.
    file.write_text(json.dumps({"schema_version": 1, "decisions": signed}, indent=1) + "\n", encoding="utf-8")
    return len(signed)


def _rename(group: str, to: str) -> dict[str, object]:
    return {"action": "rename", "group": group, "to": to}


def _true_groups(world: World, landmarks: pl.DataFrame) -> dict[str, int]:
    """Return the group of every cleaned name: the group of most of its landmarks."""
    rows = []
    for which in SETS:
        own = world.landmarks[which]
        rows.append(
            pl.DataFrame({"landmark_id": range(len(own.place)), "true": world.place_groups[own.place]}).with_columns(
                split=pl.lit(which), landmark_id=pl.col("landmark_id").cast(pl.Int64)
            )
        )
    named = (
        landmarks.select("split", "landmark_id", "name").drop_nulls().join(pl.concat(rows), on=["split", "landmark_id"])
    )
    counted = named.group_by("name", "true").len().sort("name", "len", "true", descending=[False, True, False])
    return dict(counted.unique("name", keep="first", maintain_order=True).select("name", "true").iter_rows())


if __name__ == "__main__":
    scale, seed, build, file = sys.argv[1:]
    print(f"{decide(World(float(scale), int(seed)), Path(build), Path(file))} decisions in {file}")

"""The review stage: its tables, its record of all decisions, and when it runs again."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from hgld.pipelines.hierarchy.config import ReviewConfig
from hgld.pipelines.hierarchy.review import review
from hgld.pipelines.hierarchy.review.decisions import Accept, Entry, Merge, Refuse
from hgld.pipelines.hierarchy.review.grouping import Grouping
from hgld.pipelines.stage import StageResult, StageRun, silent
from tests.interpreter import ROOT
from tests.pipelines.hierarchy_build.conftest import write_decisions
from tests.pipelines.reviewed_build import opened, write_build

SAID = {"who": "ada", "when": datetime(2026, 11, 21, tzinfo=UTC)}
GUIDE = ROOT / "docs/how-to/review.md"
# group: (label, top class, number of landmarks per name)
GROUPS = {
    0: ("building fixed construction", "human-made", {"building": 22, "fixed construction": 2}),
    1: ("mountain", "natural", {"mountain": 36, "stratovolcano": 1, "mountain pass": 4, "rail mountain pass": 2}),
    2: ("pass", "natural", {"water gap": 1}),
    3: ("ship", "human-made", {"schooner": 3, "tug": 1}),
    4: ("boat", "human-made", {"motor yacht": 3}),
    5: ("park", None, {"park": 42, "urban park": 18}),
    6: ("bridge", "human-made", {"road bridge": 18, "bridge failure": 1}),
    7: ("railway", "human-made", {"railway station": 8}),
}


def stages(root):
    """Return the cluster and top-level stages of a small build."""
    if not (root / "stages").exists():
        told = {
            g: (label, top, {n: (count, 0.25, n.endswith("pass") or n == "tug", 0) for n, count in names.items()})
            for g, (label, top, names) in GROUPS.items()
        }
        write_build(root, told)
    clustered, toplevel = (
        StageRun(name, root / "stages" / name, was_run=True, record=vars(StageResult()))
        for name in ("cluster", "toplevel")
    )
    return clustered, toplevel


def run(root, *files):
    return review.run(root, *stages(root), ReviewConfig(files), silent)


def tables(stage):
    names = {row["name"]: row for row in pl.read_parquet(stage.path("names.parquet")).iter_rows(named=True)}
    groups = {row["label"]: row for row in pl.read_parquet(stage.path("groups.parquet")).iter_rows(named=True)}
    dropped = pl.read_parquet(stage.path("dropped.parquet")).rows(named=True)
    return names, groups, dropped, json.loads(stage.path("decisions.json").read_text())


def guide_examples(folder: Path) -> list[Path]:
    paths = []
    for i, block in enumerate(re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)):
        paths.append(folder / f"{i}.yaml")
        paths[-1].write_text(block)
    return paths


def test_example_in_the_guide_has_the_described_effect(tmp_path):
    ada, eve = guide_examples(tmp_path)
    names, groups, dropped, report = tables(run(tmp_path, ada))
    assert [row["action"] for row in report["applied"]] == [
        *("rename", "move", "merge", "split", "drop", "set"),
        *("accept", "new", "refuse", "item"),
    ]
    assert {name: row["label"] for name, row in names.items() if row["decided_by"]} == {
        **dict.fromkeys(("mountain pass", "rail mountain pass"), "pass"),
        **dict.fromkeys(("tug", "road bridge"), "transport"),
        "motor yacht": "ship",
        "stratovolcano": "volcano",
        "mountain": "mountain",
    }
    by_ada = {label for label, row in groups.items() if row["decided_by"] == "ada"}
    assert by_ada == {"building", "ship", "volcano", "park", "transport"}
    assert groups["volcano"]["top"] == "natural"
    assert tuple(groups["park"].values()) == (
        *("park", 5, "human-made", "decision", None),
        *(2, 60, "ada", ["human-made"], ["ada"], [None], [0.99]),
    )
    assert (groups["ship"]["landmarks"], "boat" in groups) == (6, False)
    assert [tuple(row.values()) for row in dropped] == [
        ("bridge failure", 1, "dropped by decision", "ada", "an event, not a place")
    ]
    assert pl.read_parquet(run(tmp_path, ada).path("items.parquet")).select("split", "id", "label").rows() == [
        ("train", "31", "volcano")
    ]
    both = run(tmp_path, ada, eve)
    assert tables(both)[0]["rail mountain pass"]["label"] == "railway"
    assert both.result.counts["applied"] == 11


def test_build_and_page_show_the_same_estimates(tmp_path):
    peaks = [f"peak {i}" for i in range(16)]
    groups = {
        0: ("mountain", "natural", dict.fromkeys(peaks, (2, 0.5, True, 1))),
        1: ("pass", None, {"gap": (1, 0.5, False, 0)}),
    }
    root = write_build(tmp_path / "build", groups)
    page = opened(root, learns=True)
    clustering = {row[0]: row[3] for row in page.snapshot()["names"]}
    for files in ((), (page.journal.path,)):
        shown = page.snapshot()["progress"]["still_wrong"]
        built = review.run(root / "stages", *stages(root), ReviewConfig(files), silent, learns=True)
        assert shown == built.result.details["still_wrong"]
        told, names = {row[0]: row for row in page.snapshot()["names"]}, tables(built)[0]
        assert {name: told[name][6] for name in told} == pytest.approx(
            {n: r["wrong"] for n, r in names.items()}, abs=0.006
        )
        assert {name: told[name][5] for name in told} == {n: r["label"] for n, r in names.items()}
        assert 0 <= shown["names"][1] < shown["names"][0] < shown["names"][2]
        moved = {name for name in told if told[name][5] != clustering[name]}
        # after the decision about twelve peaks, the learner also moves the other four
        assert moved == {*peaks} if files else not moved
        page.decide([[{"action": "move", "names": peaks[:12], "to": "pass"}]], page.revision)
    assert built.result.counts["taught elsewhere"] == 4


def test_new_group_gets_a_top_class_only_if_its_sources_agree(tmp_path):
    file = write_decisions(
        tmp_path / "ada.yaml",
        "action: merge, groups: [ship, boat], to: vessel",
        "action: merge, groups: [pass, bridge], to: crossing",
        "action: split, group: park, names: [urban park], to: city park",
        "action: set, group: mountain, top: human-made",
        "action: split, group: mountain, names: [stratovolcano], to: volcano",
    )
    groups = tables(run(tmp_path, file))[1]
    assert (groups["vessel"]["top"], groups["vessel"]["method"]) == ("human-made", "p279")
    assert groups["crossing"]["top"] is None
    assert groups["crossing"]["evidence"] == "its names come from groups that are human-made and natural"
    assert groups["city park"]["top"] is None
    assert (groups["volcano"]["top"], groups["volcano"]["method"]) == ("human-made", "decision")


def test_review_record_lists_every_decision_with_its_effect(tmp_path):
    ada = write_decisions(
        tmp_path / "ada.yaml",
        "action: move, names: [tug], to: boat",
        "action: drop, names: [water gap]",
        "action: drop, group: railway",
        "action: rename, group: sea, to: ocean",
    )
    bob = write_decisions(
        tmp_path / "bob.yaml",
        "action: move, names: [tug], to: bridge",
        "action: drop, names: [water gap]",
        "action: move, names: [schooner], to: boat",
        "action: move, names: [schooner], to: ship",
    )
    stage = run(tmp_path, ada, bob)
    names, groups, dropped, report = tables(stage)
    assert names["tug"]["label"] == "ship"
    (conflict,) = report["conflicts"]
    assert (conflict["kind"], conflict["of"], conflict["settled"]) == ("name", "tug", None)
    assert conflict["verdicts"][1] == {"who": "bob", "verdict": "bridge", "decisions": ["bob.yaml entry 1"]}
    (miss,) = report["unmatched"]
    assert (miss["reason"], miss["action"], miss["file"], miss["entry"]) == ("no group 'sea'", "rename", "ada.yaml", 4)
    assert [(row["file"], row["entry"]) for row in report["withheld"]] == [("ada.yaml", 1), ("bob.yaml", 1)]
    assert [(row["file"], row["entry"]) for row in report["overruled"]] == [("bob.yaml", 3)]
    kappa = report["kappa"][0]
    assert (kappa["about"], kappa["count"], kappa["observed"]) == ("names", 2, 0.5)
    assert [tuple(row.values()) for row in dropped] == [
        ("railway station", 8, "dropped with its group by decision", "ada", "<i>ada</i> says so"),
        ("water gap", 1, "dropped by decision", "ada, bob", "<i>ada</i> says so; <i>bob</i> says so"),
    ]
    assert "railway" not in groups
    assert list(stage.result.counts.values()) == [13, 6, 3, 8, 4, 1, 1]
    first, second, third = stage.result.notes
    assert "do not fit: 1, first ada.yaml entry 4 (rename, ada): no group 'sea'." in first
    assert "adjudicator to decide: 1, first name 'tug' (ada: boat, bob: bridge)." in second
    assert third == "ada and bob agree on 50% of the 2 names that both decided on."


def test_stage_runs_again_only_if_decisions_change(tmp_path):
    file = write_decisions(tmp_path / "ada.yaml", "action: drop, names: [tug]")
    first = run(tmp_path, file)
    assert first.was_run
    assert not run(tmp_path, file).was_run
    write_decisions(tmp_path / "ada.yaml", "action: drop, names: [tug]", "action: drop, names: [schooner]")
    assert run(tmp_path, file).was_run
    assert run(tmp_path).was_run


def test_refused_groups_follow_merges_of_groups():
    place, labels = {"peak": 0, "tug": 1, "urban park": 2}, {0: "hill", 1: "ship", 2: "park"}
    made = Grouping.of(place, labels, {})

    def apply(*decisions):
        made.apply_all(Entry(decision, Path("d.yaml"), 1) for decision in decisions)

    apply(
        Refuse(group="ship", names=("peak",), **SAID),
        Refuse(group="a proposed one", names=("peak",), **SAID),
        Merge(groups=("ship", "park"), to="park", **SAID),
    )
    # the merge was about groups, so it decides no name
    assert (made.refused, made.decided) == ({"peak": {2, "a proposed one"}}, {})
    apply(Accept(group="park", names=("peak", "tug"), **SAID))
    assert made.refused == {"peak": {"a proposed one"}}
    apply(Merge(groups=("park",), to="green", **SAID))
    # "urban park" moved with its group, so it counts as undecided
    assert made.decided == {"peak": "green", "tug": "green"}


def test_decisions_about_single_items_change_their_name_or_group(tmp_path):
    file = write_decisions(
        tmp_path / "ada.yaml",
        "action: item, split: train, id: 7, group: boat",
        "action: item, split: train, id: 8, name: tug",
        "action: item, split: train, id: 9, name: a new name, group: ship",
        "action: item, split: train, id: 9, name: a new name",
        "action: merge, groups: [boat, ship], to: vessel",
        "action: drop, names: [tug]",
    )
    stage = run(tmp_path, file)
    rows = pl.read_parquet(stage.path("items.parquet")).select("id", "name", "label", "who").rows()
    assert rows == [("7", None, "vessel", "ada"), ("8", "tug", None, "ada"), ("9", "a new name", "vessel", "ada")]
    assert [row["reason"] for row in tables(stage)[3]["unmatched"]] == ["no name 'a new name'"]


def test_decisions_set_classes_only_at_existing_levels(tmp_path):
    clustered, toplevel = stages(tmp_path)
    levels = pl.DataFrame({"group": [*GROUPS], "label": ["to sail" if g in (3, 4) else "to see" for g in GROUPS]})
    levels = levels.with_columns(level=pl.lit("use"), method=pl.lit("groups"), evidence=None)
    levels.write_parquet(toplevel.path("levels.parquet"))
    details = {"levels": ["item", "group", "use", "top"], "tops": ["natural", "human-made"]}
    toplevel = StageRun("toplevel", toplevel.directory, was_run=True, record=vars(StageResult(details=details)))
    file = write_decisions(
        tmp_path / "ada.yaml",
        "action: set, group: park, top: to sail, level: use",
        "action: set, group: park, top: natural",
        "action: set, group: park, top: to sail",
        "action: set, group: park, top: natural, level: size",
        "action: set, group: bridge, top: to cross, level: use",
        "action: new, names: [schooner, motor yacht], to: vessel",
        "action: new, names: [tug, mountain], to: odd",
    )
    stage = review.run(tmp_path, clustered, toplevel, ReviewConfig((file,)), silent)
    _, groups, _, report = tables(stage)
    park = groups["park"]
    assert (park["top"], park["classes"], park["classes_by"]) == ("natural", ["to sail", "natural"], ["ada", "ada"])
    assert (park["built"], park["built_wrong"]) == (["to see", None], [0.5, 0.99])
    # a level that the data defines gets new classes; a level with predefined classes does not
    assert groups["bridge"]["classes"] == ["to cross", "human-made"]
    # a new group gets the classes that the groups of all its names have
    assert [groups[label]["classes"] for label in ("vessel", "odd")] == [["to sail", "human-made"], [None, None]]
    assert [row["reason"] for row in report["unmatched"]] == [
        "top is 'to sail'; expected natural or human-made",
        "there is no level 'size' above the groups; there are use, top",
    ]

"""The review stage on disk: groups pass through, decisions apply and are accounted for, the key knows their text."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from hgld.errors import InputError
from hgld.pipelines.hierarchy.config import ReviewConfig
from hgld.pipelines.hierarchy.review import review
from hgld.pipelines.hierarchy.review.decisions import Accept, Entry, Merge, Refuse
from hgld.pipelines.hierarchy.review.grouping import Grouping
from hgld.pipelines.stage import StageResult, StageRun, silent
from tests.pipelines.reviewed_build import opened, write_build

SAID = {"who": "ada", "when": datetime(2026, 11, 21, tzinfo=UTC)}
GUIDE = Path(__file__).parents[2] / "docs/how-to/review.md"
# group: (label, top, names with their landmarks)
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


def stages(root: Path) -> tuple[StageRun, StageRun]:
    """The cluster and top-level stages of a small build."""
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


def run(root: Path, *files: Path) -> StageRun:
    return review.run(root, *stages(root), ReviewConfig(files), silent)


def decided(folder: Path, name: str, *entries: str, role: str = "annotator") -> Path:
    """A file of decisions, each given as its fields in flow style without who, when and why."""
    who = name.removesuffix(".yaml")
    rows = [
        f'- {{{entry}, who: {who}, when: "2026-11-21T09:{i:02}:00Z", why: "{who} says so"}}\n'
        for i, entry in enumerate(entries)
    ]
    path = folder / name
    path.write_text(f"schema_version: 1\nrole: {role}\ndecisions:\n{''.join(rows)}")
    return path


def tables(stage: StageRun) -> tuple[dict[str, dict], dict[str, dict], list[dict], dict[str, list[dict]]]:
    names = {row["name"]: row for row in pl.read_parquet(stage.path("names.parquet")).iter_rows(named=True)}
    groups = {row["label"]: row for row in pl.read_parquet(stage.path("groups.parquet")).iter_rows(named=True)}
    dropped = pl.read_parquet(stage.path("dropped.parquet")).rows(named=True)
    return names, groups, dropped, json.loads(stage.path("decisions.json").read_text())


def test_groups_pass_through_without_decisions(tmp_path: Path):
    stage = run(tmp_path)
    names, groups, dropped, report = tables(stage)
    assert list(names) == sorted(names)
    assert list(groups) == sorted(label for label, _, _ in GROUPS.values())
    tug, ship = names["tug"], groups["ship"]
    assert (tug["landmarks"], tug["label"], tug["doubtful"], tug["decided_by"]) == (1, "ship", True, None)
    assert (ship["group"], ship["top"], ship["method"], ship["names"], ship["landmarks"]) == (
        3, "human-made", "p279", 2, 4,
    )  # fmt: skip
    assert dropped == []
    assert set(report) == {"applied", "unmatched", "conflicts", "withheld", "overruled", "kappa"}
    assert not any(report.values())
    assert stage.result.notes == ()


def guide_examples(folder: Path) -> list[Path]:
    paths = []
    for i, block in enumerate(re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)):
        paths.append(folder / f"{i}.yaml")
        paths[-1].write_text(block)
    return paths


def test_the_guides_example_does_what_the_guide_says(tmp_path: Path):
    ada, eve = guide_examples(tmp_path)
    names, groups, dropped, report = tables(run(tmp_path, ada))
    assert [row["action"] for row in report["applied"]] == [
        *("rename", "move", "merge", "split", "drop", "set"),
        *("accept", "new", "refuse", "item"),
    ]
    assert not any(report[part] for part in report.keys() - {"applied"})
    assert {name: row["label"] for name, row in names.items() if row["decided_by"]} == {
        "mountain pass": "pass",
        "rail mountain pass": "pass",
        "motor yacht": "ship",
        "stratovolcano": "volcano",
        "mountain": "mountain",
        "tug": "transport",
        "road bridge": "transport",
    }
    assert {label: row["decided_by"] for label, row in groups.items() if row["decided_by"]} == {
        "building": "ada",
        "ship": "ada",
        "volcano": "ada",
        "park": "ada",
        "transport": "ada",
    }
    assert groups["volcano"]["top"] == "natural"
    assert groups["park"] | {"names": 2} == {
        "label": "park",
        "group": 5,
        "top": "human-made",
        "method": "decision",
        "evidence": "city parks are laid out",
        "names": 2,
        "landmarks": 60,
        "decided_by": "ada",
    }
    assert groups["ship"]["landmarks"] == 6
    assert "boat" not in groups
    assert dropped == [
        {
            "name": "bridge failure",
            "landmarks": 1,
            "reason": "dropped by decision",
            "who": "ada",
            "why": "an event, not a place",
        }
    ]
    assert pl.read_parquet(run(tmp_path, ada).path("items.parquet")).select("split", "id", "label").rows() == [
        ("train", "31", "volcano")
    ]
    both = run(tmp_path, ada, eve)
    assert tables(both)[0]["rail mountain pass"]["label"] == "railway"
    assert both.result.counts["applied"] == 11


def test_names_are_no_longer_doubtful_once_somebody_looked_at_them(tmp_path: Path):
    file = decided(
        tmp_path,
        "ada.yaml",
        "action: move, names: [mountain pass], to: pass",
        "action: merge, groups: [ship, boat], to: boat",
    )
    names = tables(run(tmp_path, file))[0]
    assert {
        name: row["doubtful"] for name, row in names.items() if name in ("mountain pass", "rail mountain pass", "tug")
    } == {"mountain pass": False, "rail mountain pass": True, "tug": True}  # a merge looks at groups, not at names
    assert names["mountain pass"]["wrong"] == 0 < 0.5 < names["tug"]["wrong"]


def test_the_build_has_what_the_page_shows(tmp_path: Path):
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
        assert moved == {*peaks} if files else not moved  # of most of them nobody decided: it was learnt
        page.decide([[{"action": "move", "names": peaks[:12], "to": "pass"}]], page.revision)
    assert built.result.counts["taught elsewhere"] == 4


def test_a_new_group_is_decided_only_if_its_sources_agree(tmp_path: Path):
    file = decided(
        tmp_path,
        "ada.yaml",
        "action: merge, groups: [ship, boat], to: vessel",
        "action: merge, groups: [pass, bridge], to: crossing",
        "action: split, group: park, names: [urban park], to: city park",
        "action: set, group: mountain, top: human-made",
        "action: split, group: mountain, names: [stratovolcano], to: volcano",
    )
    groups = tables(run(tmp_path, file))[1]
    assert (groups["vessel"]["top"], groups["vessel"]["method"]) == ("human-made", "p279")
    assert (groups["crossing"]["top"], groups["crossing"]["method"]) == (None, None)
    assert groups["crossing"]["evidence"] == "its names come from groups that are human-made and natural"
    assert groups["city park"]["top"] is None
    assert (groups["volcano"]["top"], groups["volcano"]["method"]) == ("human-made", "decision")


def test_every_decision_is_accounted_for(tmp_path: Path):
    ada = decided(
        tmp_path,
        "ada.yaml",
        "action: move, names: [tug], to: boat",
        "action: drop, names: [water gap]",
        "action: drop, group: railway",
        "action: rename, group: sea, to: ocean",
    )
    bob = decided(
        tmp_path,
        "bob.yaml",
        "action: move, names: [tug], to: bridge",
        "action: drop, names: [water gap]",
        "action: move, names: [schooner], to: boat",
        "action: move, names: [schooner], to: ship",
    )
    stage = run(tmp_path, ada, bob)
    names, groups, dropped, report = tables(stage)
    assert names["tug"]["label"] == "ship"
    assert report["conflicts"] == [
        {
            "kind": "name",
            "of": "tug",
            "settled": None,
            "verdicts": [
                {"who": "ada", "verdict": "boat", "decisions": ["ada.yaml entry 1"]},
                {"who": "bob", "verdict": "bridge", "decisions": ["bob.yaml entry 1"]},
            ],
        }
    ]
    assert report["unmatched"] == [
        {
            "reason": "no group 'sea'",
            "action": "rename",
            "who": "ada",
            "when": "2026-11-21T09:03:00Z",
            "why": "ada says so",
            "group": "sea",
            "to": "ocean",
            "file": "ada.yaml",
            "entry": 4,
        }
    ]
    assert [(row["file"], row["entry"]) for row in report["withheld"]] == [("ada.yaml", 1), ("bob.yaml", 1)]
    assert [(row["file"], row["entry"]) for row in report["overruled"]] == [("bob.yaml", 3)]
    assert report["kappa"][0] == {
        "annotators": ["ada", "bob"],
        "about": "names",
        "count": 2,
        "observed": 0.5,
        "kappa": pytest.approx(1 / 3),
    }
    assert dropped == [
        {
            "name": "railway station",
            "landmarks": 8,
            "reason": "dropped with its group by decision",
            "who": "ada",
            "why": "ada says so",
        },
        {
            "name": "water gap",
            "landmarks": 1,
            "reason": "dropped by decision",
            "who": "ada, bob",
            "why": "ada says so; bob says so",
        },
    ]
    assert "railway" not in groups
    assert stage.result.dropped == {"dropped by decision": 1, "dropped with its group by decision": 1}
    assert stage.result.counts == {
        "names": 13,
        "groups": 6,
        "doubtful": 3,
        "decisions": 8,
        "applied": 4,
        "unmatched": 1,
        "open conflicts": 1,
    }
    assert stage.result.notes == (
        (
            "Parts of decisions that do not fit: 1, first ada.yaml entry 4 (rename, ada): no group 'sea'. "
            "All are in stages/review/decisions.json."
        ),
        (
            "Conflicts for an adjudicator to decide: 1, first name 'tug' (ada: boat, bob: bridge). "
            "All are in stages/review/decisions.json."
        ),
        "ada and bob agree on 50% of the 2 names that both decided on.",
    )


def test_the_stage_is_done_again_when_a_decision_is_added_and_not_otherwise(tmp_path: Path):
    file = decided(tmp_path, "ada.yaml", "action: drop, names: [tug]")
    first = run(tmp_path, file)
    assert first.was_run
    assert not run(tmp_path, file).was_run
    decided(tmp_path, "ada.yaml", "action: drop, names: [tug]", "action: drop, names: [schooner]")
    assert run(tmp_path, file).was_run
    assert run(tmp_path).was_run


def test_the_same_decisions_make_the_same_bytes(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    made = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        ada = decided(
            folder, "ada.yaml", "action: merge, groups: [ship, boat], to: vessel", "action: drop, names: [tug]"
        )
        bob = decided(folder, "bob.yaml", "action: split, group: park, names: [urban park], to: city park")
        files = (ada, bob) if folder.name == "a" else (bob, ada)
        made.append({name: facts["sha256"] for name, facts in run(folder, *files).record["outputs"].items()})
    assert made[0] == made[1]
    assert set(made[0]) == {
        *("names.parquet", "groups.parquet", "items.parquet", "set_levels.parquet"),
        *("dropped.parquet", "decisions.json"),
    }


def test_a_missing_or_broken_file_leaves_nothing_behind(tmp_path: Path):
    with pytest.raises(InputError, match=r"no file .*none.yaml"):
        run(tmp_path, tmp_path / "none.yaml")
    file = tmp_path / "ada.yaml"
    file.write_text("schema_version: 1\ndecisions:\n- action: rename\n")
    with pytest.raises(InputError, match="entry 1"):
        run(tmp_path, file)
    assert not (tmp_path / "review").exists()
    assert not (tmp_path / ".review.part").exists()


def test_new_groups_of_several_and_refusals(tmp_path: Path):
    file = decided(
        tmp_path,
        "ada.yaml",
        "action: new, names: [stratovolcano, water gap], to: geology",
        "action: accept, group: geology, names: [mountain pass]",
        "action: accept, group: ship",
        "action: refuse, group: geology, names: [water gap]",
        "action: new, names: [tug], to: boat",
        "action: accept, group: nowhere, names: [tug]",
    )
    names, groups, _, report = tables(run(tmp_path, file))
    assert {n: r["label"] for n, r in names.items() if r["decided_by"]} == {
        "stratovolcano": "geology",
        "mountain pass": "geology",
        "schooner": "ship",
        "tug": "ship",
    }
    assert names["water gap"]["label"] == "pass"  # back where the clustering had it
    assert (groups["geology"]["names"], groups["geology"]["decided_by"]) == (2, "ada")
    assert [row["reason"] for row in report["unmatched"]] == [
        "there is already a group 'boat'; move the names there",
        "no group 'nowhere'",
    ]
    assert len(report["applied"]) == 4


def test_refusals_follow_what_becomes_of_a_group():
    entries = [
        Refuse(group="ship", names=("peak",), **SAID),
        Refuse(group="a proposed one", names=("peak",), **SAID),
        Merge(groups=("ship", "park"), to="park", **SAID),
    ]
    place, labels = {"peak": 0, "tug": 1, "yacht": 2, "urban park": 3}, {0: "hill", 1: "ship", 2: "boat", 3: "park"}
    made = Grouping.of(place, labels, {}).apply_all(Entry(d, Path("d.yaml"), i) for i, d in enumerate(entries))
    assert made.refused == {"peak": {3, "a proposed one"}}
    assert made.decided == {}  # only the group of the tug was meant
    taken = Accept(group="park", names=("peak", "tug"), **SAID)
    made.apply(Entry(taken, Path("d.yaml"), 9))
    assert made.refused == {"peak": {"a proposed one"}}
    assert made.decided == {"peak": 3, "tug": 3}
    made.apply(Entry(Merge(groups=("park",), to="green", **SAID), Path("d.yaml"), 10))
    assert made.decided == {"peak": "green", "tug": "green"}  # and not "urban park", which went along


def test_single_items_get_the_name_or_group_that_they_are_given(tmp_path: Path):
    file = decided(
        tmp_path,
        "ada.yaml",
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


def test_a_class_is_set_of_the_levels_that_the_build_has(tmp_path: Path):
    clustered, toplevel = stages(tmp_path)
    rows = [(g, level, label) for g in GROUPS for level, label in (("use", "to sail" if g in (3, 4) else "to see"),)]
    pl.DataFrame(rows, schema=["group", "level", "label"], orient="row").write_parquet(toplevel.path("levels.parquet"))
    details = {"levels": ["item", "group", "use", "top"], "tops": ["natural", "human-made"]}
    toplevel = StageRun("toplevel", toplevel.directory, was_run=True, record=vars(StageResult(details=details)))
    file = decided(
        tmp_path,
        "ada.yaml",
        "action: set, group: park, top: to sail, level: use",
        "action: set, group: park, top: natural",
        "action: set, group: park, top: to sail",
        "action: set, group: park, top: natural, level: size",
    )
    stage = review.run(tmp_path, clustered, toplevel, ReviewConfig((file,)), silent)
    assert tables(stage)[1]["park"]["top"] == "natural"
    assert pl.read_parquet(stage.path("set_levels.parquet")).rows() == [("park", "use", "to sail", "ada")]
    assert [row["reason"] for row in tables(stage)[3]["unmatched"]] == [
        "top is 'to sail'; expected natural or human-made",
        "there is no level 'size' above the groups; there are use, top",
    ]

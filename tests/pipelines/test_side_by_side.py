"""Annotators side by side: deciding as another did, and people whom files of decisions would make one."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import InputError
from hgld.pipelines.hierarchy.review.decisions.agreement import settle
from hgld.pipelines.hierarchy.review.decisions.decision_files import append_decision
from hgld.pipelines.hierarchy.review.decisions.decisions import (
    ACTIONS,
    Decision,
    Drop,
    Entry,
    Merge,
    Move,
    Rename,
    Role,
    SetTop,
    Split,
)
from hgld.pipelines.hierarchy.review.decisions.grouping import Grouping
from hgld.pipelines.hierarchy.review.decisions.journal import Journal
from hgld.pipelines.hierarchy.review.decisions.side_by_side import adopting
from hgld.pipelines.hierarchy.review.state import Review, Thumbnails
from hgld.pipelines.hierarchy.review.tables import BuildTables
from tests.pipelines.reviewed_build import write_build

WHEN = datetime(2026, 1, 1, tzinfo=UTC)
PLACE = {"tug": 0, "schooner": 0, "peak": 1, "ridge": 1, "gap": 2}
LABELS = {0: "ship", 1: "mountain", 2: "pass"}


def by(who: str) -> dict[str, Any]:
    return {"who": who, "when": WHEN, "why": f"{who} says"}


def written(said: dict[str, Any], who: str) -> Decision:
    values = {field: tuple(value) if isinstance(value, list) else value for field, value in said.items()}
    kind = ACTIONS[str(values.pop("action"))]
    return kind(**values, **by(who))


def entries(*decisions: Decision) -> list[Entry]:
    files = [Path(f"{decision.who}.yaml") for decision in decisions]
    return [Entry(decision, file, n, line=0) for n, (decision, file) in enumerate(zip(decisions, files, strict=True))]


def adopted(ada: list[Entry], bob: list[Entry]) -> list[tuple[str, str, bool]]:
    """What ada and bob disagree on: kind, matter, and whether ada can decide as bob did; if so, it is tried."""
    mine = Grouping.of(PLACE, LABELS).apply_all(ada)
    found = []
    for conflict in settle(PLACE, LABELS, [*ada, *bob]).conflicts:
        claim = next((side.claim for side in conflict.verdicts if side.who == "bob"), None)
        if claim is None:
            continue  # a label is at stake
        (subject,) = conflict.subjects
        more = entries(*(written(said, "ada") for said in adopting(subject, claim, mine)))
        after = Grouping.of(PLACE, LABELS).apply_all([*ada, *more])
        if more:
            assert len(after.unmatched) == len(mine.unmatched)
            assert after.claims[subject].value == claim.value
            left = settle(PLACE, LABELS, [*ada, *more, *bob]).conflicts
            assert all(subject not in other.subjects for other in left if other.kind == conflict.kind)
        found.append((conflict.kind, conflict.of, bool(more)))
    return found


ADA, BOB = by("ada"), by("bob")
DISAGREEMENTS: dict[str, tuple[list[Decision], list[Decision], str]] = {
    "moved": ([Move(names=("tug",), to="mountain", **ADA)], [Move(names=("tug",), to="pass", **BOB)], "name tug"),
    "dropped": ([Move(names=("tug",), to="mountain", **ADA)], [Drop(names=("tug",), **BOB)], "name tug"),
    "split off": (
        [Move(names=("tug",), to="mountain", **ADA)],
        [Split(group="ship", names=("tug",), to="tugboat", **BOB)],
        "name tug",
    ),
    "split off what one dropped": (
        [Drop(names=("tug",), **ADA)],
        [Split(group="ship", names=("tug",), to="tugboat", **BOB)],
        "name tug",
    ),
    "moved to a group that the other renamed": (
        [Move(names=("tug",), to="mountain", **ADA)],
        [Move(names=("tug",), to="pass", **BOB), Rename(group="pass", to="gap", **BOB)],
        "name tug",
    ),
    "moved to a group that one renamed": (
        [Move(names=("tug",), to="mountain", **ADA), Rename(group="pass", to="gap", **ADA)],
        [Move(names=("tug",), to="pass", **BOB)],
        "name tug",
    ),
    "renamed": ([Rename(group="ship", to="boat", **ADA)], [Rename(group="ship", to="vessel", **BOB)], "group ship"),
    "renamed what one dropped": (
        [Drop(group="ship", **ADA)],
        [Rename(group="ship", to="vessel", **BOB)],
        "group ship",
    ),
    "merged": (
        [Rename(group="ship", to="boat", **ADA), Rename(group="pass", to="gap", **ADA)],
        [Merge(groups=("ship", "pass"), to="pass", **BOB)],
        "group ship",
    ),
    "merged elsewhere": (
        [Merge(groups=("ship", "pass"), to="pass", **ADA)],
        [Merge(groups=("ship", "mountain"), to="mountain", **BOB)],
        "group ship",
    ),
    "dropped a group": ([Rename(group="ship", to="boat", **ADA)], [Drop(group="ship", **BOB)], "group ship"),
    "another top": (
        [Rename(group="pass", to="gap", **ADA), SetTop(group="gap", top="natural", **ADA)],
        [SetTop(group="pass", top="human-made", **BOB)],
        "top pass",
    ),
}


@pytest.mark.parametrize(("ada", "bob", "about"), DISAGREEMENTS.values(), ids=DISAGREEMENTS)
def test_one_decides_as_the_other_did(ada, bob, about):
    kind, of = about.split()
    assert (kind, of, True) in adopted(entries(*ada), entries(*bob))


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("renamed", [{"action": "rename", "group": "boat", "to": "vessel"}]),
        ("merged", [{"action": "merge", "groups": ["boat"], "to": "gap"}]),
        ("dropped a group", [{"action": "drop", "group": "boat"}]),
        ("moved", [{"action": "move", "names": ["tug"], "to": "pass"}]),
    ],
)
def test_a_decision_of_the_same_kind_is_offered(name, offered):
    """A merge into a group of that label ends alike, and is not what the other said."""
    ada, bob = (entries(*decisions) for decisions in DISAGREEMENTS[name][:2])
    mine, about = Grouping.of(PLACE, LABELS).apply_all(ada), DISAGREEMENTS[name][2]
    found = [
        adopting(subject, side.claim, mine)
        for conflict in settle(PLACE, LABELS, [*ada, *bob]).conflicts
        for side in conflict.verdicts
        for subject in conflict.subjects
        if side.who == "bob" and side.claim is not None and f"{conflict.kind} {conflict.of}" == about
    ]
    assert found == [offered]


def test_what_no_decision_can_say_is_not_offered():
    """Ada's own group has the label that bob gave to a new one: two groups of one label cannot be."""
    ada = [Rename(group="pass", to="tugboat", **ADA), Move(names=("tug",), to="mountain", **ADA)]
    bob = [Split(group="ship", names=("tug",), to="tugboat", **BOB)]
    assert ("name", "tug", False) in adopted(entries(*ada), entries(*bob))


label = st.sampled_from([*LABELS.values(), "tugboat", "gap"])
names = st.lists(st.sampled_from([*PLACE]), min_size=1, max_size=3, unique=True).map(tuple)
fields = st.one_of(
    st.fixed_dictionaries({"action": st.just("rename"), "group": label, "to": label}),
    st.fixed_dictionaries({"action": st.just("move"), "names": names, "to": label}),
    st.fixed_dictionaries({"action": st.just("merge"), "groups": st.tuples(label), "to": label}),
    st.fixed_dictionaries({"action": st.just("split"), "group": label, "names": names, "to": label}),
    st.fixed_dictionaries({"action": st.just("drop"), "names": names}),
    st.fixed_dictionaries({"action": st.just("drop"), "group": label}),
    st.fixed_dictionaries(
        {"action": st.just("set"), "group": label, "top": st.sampled_from(["natural", "human-made"])}
    ),
).filter(lambda one: one.get("to") not in (one.get("group", ""), *one.get("groups", ())))
decided = st.lists(fields, min_size=1, max_size=4)


@given(decided, decided)
def test_what_is_offered_always_settles_it(ada, bob):
    adopted(entries(*(written(said, "ada") for said in ada)), entries(*(written(said, "bob") for said in bob)))


# -- whose decisions they are -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return write_build(tmp_path_factory.mktemp("side_by_side") / "build")


def opened(build, file, who, others=(), role: Role = "annotator"):
    return Review(BuildTables(build), Journal(file, who, role), others, Thumbnails(None))


def moved(file, who, to, name="tug"):
    append_decision(file, Move(names=(name,), to=to, **by(who)))
    return file


def test_two_people_of_one_name_are_refused(build, tmp_path):
    bob = moved(tmp_path / "bob.yaml", "root", "pass")
    with pytest.raises(InputError, match=r"bob\.yaml: its decisions are by 'root'.*--annotator NAME"):
        opened(build, tmp_path / "ada.yaml", "root", [bob])  # before the first decision already
    assert opened(build, tmp_path / "ada.yaml", "ada", [bob]).snapshot()["others"] == ["root"]
    eve = moved(tmp_path / "eve.yaml", "root", "pass")
    with pytest.raises(InputError, match="'root'"):
        opened(build, tmp_path / "judge.yaml", "judge", [bob, eve], "adjudicator")
    assert opened(build, tmp_path / "judge.yaml", "root", [bob], "adjudicator").snapshot()["others"] == ["root"]


def test_ones_own_file_is_not_anothers(build, tmp_path):
    file = moved(tmp_path / "ada.yaml", "ada", "pass")
    with pytest.raises(InputError, match="your own file is given with --compare-with"):
        opened(build, file, "ada", [file.parent / ".." / file.parent.name / file.name])


def test_a_file_of_two_people_shows_the_others_decisions_as_theirs(build, tmp_path):
    file = moved(moved(tmp_path / "decisions.yaml", "ada", "pass"), "bob", "mountain")
    review = opened(build, file, "bob")
    shown = review.snapshot()
    assert (shown["others"], shown["decisions"], [one["who"] for one in shown["history"]]) == (["ada"], 1, ["bob"])
    tug = next(row for row in review.names(0)["rows"] if row[0] == "tug")
    assert (tug[5], tug[7]) == ("mountain", "bob")
    assert "decisions of ada too" in shown["note"]
    assert "--decisions FILE --compare-with" in shown["note"]
    (conflict,) = review.team()["conflicts"]
    assert {side["who"]: side["verdict"] for side in conflict["verdicts"]} == {"ada": "pass", "bob": "mountain"}
    review.undo(review.revision)
    with pytest.raises(InputError, match="ada's"):
        review.undo(review.revision)
    assert opened(build, moved(tmp_path / "eve.yaml", "eve", "pass"), "eve").snapshot()["note"] is None

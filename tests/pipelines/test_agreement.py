"""Effects of decisions by one or several annotators: conflicts, adjudication, kappa, adoption."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgld.errors import InputError
from hgld.pipelines.hierarchy.review.agreement import Settlement, adopting, agreement, settle
from hgld.pipelines.hierarchy.review.decisions import (
    Accept,
    Decision,
    Drop,
    Entry,
    GiveItem,
    Merge,
    Move,
    New,
    Refuse,
    Rename,
    SetTop,
    Split,
    make_decision,
)
from hgld.pipelines.hierarchy.review.grouping import Grouping, Subject
from hgld.pipelines.hierarchy.review.journal import append_decision
from tests.pipelines.reviewed_build import opened, write_build
from tests.rows import each_row

CLASSES = {"top": ("natural", "human-made")}
MACHINE = {
    "mountain": ["mountain", "stratovolcano", "hill"],
    "summit": ["summit", "mountain pass", "rail mountain pass"],
    "lake": ["lake", "reservoir"],
    "junk": ["bridge failure", "list"],
}
LABELS = dict(enumerate(MACHINE))
PLACE = {name: group for group, label in LABELS.items() for name in MACHINE[label]}
START = datetime(2026, 11, 21, tzinfo=UTC)


def said(who, *decisions, role="annotator"):
    """Return the entries of one annotator's file, one minute apart."""
    return [
        Entry(
            kind(who=who, when=START + timedelta(minutes=i), why=f"{who} says so", **fields),
            Path(f"{who}.yaml"),
            i + 1,
            role,
        )
        for i, (kind, fields) in enumerate(decisions)
    ]


def rename(group, to):
    return Rename, {"group": group, "to": to}


def move(to, *names):
    return Move, {"names": names, "to": to}


def merge(to, *groups):
    return Merge, {"groups": groups, "to": to}


def split(group, to, *names):
    return Split, {"group": group, "names": names, "to": to}


def drop(*names):
    return Drop, {"names": names}


def drop_group(group):
    return Drop, {"group": group}


def top(group, value):
    return SetTop, {"group": group, "top": value}


def item(group):
    return GiveItem, {"split": "s", "id": "1", "group": group}


def groups(result: Settlement) -> dict[str, set[str]]:
    grouping = result.grouping
    found = {grouping.labels[group]: grouping.members[group] for group in grouping.live()}
    assert len(found) == len(grouping.live()), "labels are unique"
    return found


def changed(result):
    """Return the groups that decisions changed; removed groups are empty sets."""
    found, before = groups(result), {label: set(names) for label, names in MACHINE.items()}
    return {k: found.get(k, set()) for k in found.keys() | before.keys() if found.get(k) != before.get(k)}


def tops(result: Settlement) -> dict[str, Any]:
    claims = result.grouping.claims.items()
    return {result.grouping.labels[subject.of]: claim.value for subject, claim in claims if subject.kind == "top"}


def run(*entries: list[Entry]) -> Settlement:
    together = sorted((e for side in entries for e in side), key=lambda e: (e.decision.when, e.file.name, e.number))
    return settle(PLACE, LABELS, together, CLASSES)


def clean_run(*entries: list[Entry]) -> Settlement:
    result = run(*entries)
    assert (result.unmatched, result.conflicts, result.withheld) == ((), (), ())
    return result


# -- one annotator ---------------------------------------------------------------------------------------------------


@each_row(
    ("decisions", "expected"),
    [
        # later decisions apply to the result of earlier decisions
        (
            [rename("summit", "peak"), move("peak", "hill"), rename("peak", "top"), drop("hill")],
            {"summit": set(), "top": set(MACHINE["summit"]), "mountain": {"mountain", "stratovolcano"}},
        ),
        ([rename("lake", "water"), split("water", "lake", "lake")], {"water": {"reservoir"}, "lake": {"lake"}}),
        # later decisions that undo earlier decisions
        ([(New, {"names": ("hill",), "to": "geology"}), (Refuse, {"names": ("hill",), "group": "geology"})], {}),
        ([merge("lake", "junk"), split("lake", "junk", "list", "bridge failure")], {}),
        (
            [split("lake", "dam", "reservoir"), move("lake", "reservoir"), move("dam", "reservoir")],
            {"lake": {"lake"}, "dam": {"reservoir"}},
        ),
    ],
)
def test_decisions_of_one_annotator_change_the_groups(decisions, expected):
    result = clean_run(said("ada", *decisions))
    assert changed(result) == expected
    judged = clean_run(said("eve", *decisions, role="adjudicator"))
    assert changed(judged) == expected


def test_top_class_stays_with_its_renamed_group():
    result = clean_run(
        said(
            "ada",
            top("lake", "natural"),
            rename("lake", "water"),
            split("junk", "l", "list"),
            top("l", "human-made"),
            rename("l", "m"),
        )
    )
    assert tops(result) == {"water": "natural", "m": "human-made"}
    assert len(result.applied) == 5


def test_unmatched_parts_of_decisions_are_reported_and_matched_parts_applied():
    result = run(said("ada", move("lake", "hill", "dale"), merge("lake", "junk", "pond")))
    assert changed(result) == {
        "mountain": {"mountain", "stratovolcano"},
        "junk": set(),
        "lake": {*MACHINE["lake"], *MACHINE["junk"], "hill"},
    }
    assert [miss.reason for miss in result.unmatched] == ["no name 'dale'", "no group 'pond'"]
    assert len(result.applied) == 2
    unfit = {
        "no group 'sumit'; did you mean 'summit'?": rename("sumit", "peak"),
        "there is already a group 'lake'; to join the two, merge them": rename("summit", "lake"),
        "no name 'hil'; did you mean 'hill'?": move("lake", "hil"),
        "there is already a group 'lake'; move the names there": split("summit", "lake", "summit"),
        "'hill' is in 'mountain', not in 'summit'": split("summit", "pass", "hill"),
        "the group 'junk' has no names any more": rename("junk", "rest"),
    }
    result = run(said("ada", merge("lake", "junk"), *unfit.values()))
    assert [miss.reason for miss in result.unmatched] == list(unfit)
    assert (len(result.applied), result.overruled) == (1, ())


# -- several annotators -----------------------------------------------------------------------------------------------


@each_row(
    ("ada", "bob", "conflict"),
    [
        ([move("lake", "hill")], [move("summit", "hill")], ("name", "hill", {"ada": "lake", "bob": "summit"})),
        (
            [rename("summit", "peak")],
            [merge("mountain", "summit")],
            ("group", "summit", {"ada": "rename to peak", "bob": "merge into mountain"}),
        ),
        (
            [(Accept, {"group": "lake", "names": ("hill",)})],
            [(Refuse, {"group": "lake", "names": ("hill",)})],
            ("name", "hill", {"ada": "lake", "bob": "not lake"}),
        ),
        (
            [top("lake", "natural")],
            [top("lake", "human-made")],
            ("top", "lake", {"ada": "natural", "bob": "human-made"}),
        ),
        (
            [rename("summit", "top")],
            [split("lake", "top", "reservoir")],
            ("label", "top", {"ada": "rename to top", "bob": "split to top"}),
        ),
    ],
)
def test_conflicting_decisions_are_listed_and_not_applied(ada, bob, conflict):
    result = run(said("ada", *ada), said("bob", *bob))
    [found] = result.conflicts
    assert (found.kind, found.of, {v.who: v.verdict for v in found.verdicts}) == conflict
    assert found.settled is None
    assert changed(result) == {}
    assert tops(result) == {}
    assert (len(result.withheld), result.applied, result.overruled) == (2, (), ())


def test_conflict_about_one_name_leaves_other_names_of_the_decision_in_effect():
    result = run(said("ada", merge("mountain", "summit")), said("bob", move("lake", "rail mountain pass")))
    assert [(c.kind, c.of) for c in result.conflicts] == [("name", "rail mountain pass")]
    assert changed(result) == {
        "mountain": {*MACHINE["mountain"], "summit", "mountain pass"},
        "summit": {"rail mountain pass"},
    }
    assert (len(result.applied), len(result.withheld)) == (1, 1)


def test_annotators_agree_if_their_final_labels_are_equal():
    a = said("ada", split("lake", "dam", "reservoir"), rename("dam", "barrage"))
    b = said("bob", split("lake", "barrage", "reservoir"))
    assert changed(clean_run(a, b)) == {"lake": {"lake"}, "barrage": {"reservoir"}}


def test_adjudicator_settles_conflicts():
    for decide, both, expected in (
        (lambda to: split("lake", to, "reservoir"), ("dam", "pond"), {"lake": {"lake"}, "pond": {"reservoir"}}),
        (lambda of: rename(of, "top"), ("summit", "junk"), {"junk": set(), "top": set(MACHINE["junk"])}),
    ):
        judge = said("eve", decide(both[1]), role="adjudicator")
        result = run(said("ada", decide(both[0])), said("bob", decide(both[1])), judge)
        assert [c.settled for c in result.conflicts] == ["decided by eve"]
        assert changed(result) == expected
        assert (result.applied, result.withheld, len(result.overruled)) == (tuple(judge), (), 2)


def test_later_decisions_overrule_earlier_agreed_ones():
    a, b = said("ada", move("lake", "hill")), said("bob", move("lake", "hill"))
    judge = said("eve", move("summit", "hill"), role="adjudicator")
    result = clean_run(a, b, judge)
    assert groups(result)["summit"] == {*MACHINE["summit"], "hill"}
    assert (result.applied, set(result.overruled)) == (tuple(judge), {*a, *b})
    a, b = said("ada", merge("lake", "junk")), said("bob", top("junk", "natural"))
    result = run(a, b)
    assert (result.applied, result.overruled, result.conflicts) == (tuple(a), tuple(b), ())
    a, b = said("ada", rename("junk", "x")), said("bob", rename("junk", "y"))
    result = run(a, b, said("cid", move("lake", *MACHINE["junk"])))
    assert [c.settled for c in result.conflicts] == ["the group has no names left"]


def any_of(kind: type[Decision], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[type[Decision], dict]]:
    return st.fixed_dictionaries(given).map(lambda fields: (kind, fields))


names = st.sampled_from(sorted(PLACE))
texts = st.sampled_from([*MACHINE, "x", "y", "z"])
some = st.lists(names, min_size=1, max_size=3, unique=True).map(tuple)
two = st.lists(texts, min_size=2, max_size=3, unique=True).map(tuple)
any_decision = st.one_of(
    any_of(Rename, group=texts, to=texts),
    any_of(Move, names=some, to=texts),
    any_of(Merge, groups=two, to=texts),
    any_of(Split, group=texts, names=some, to=texts).filter(lambda made: made[1]["group"] != made[1]["to"]),
    any_of(Drop, names=some),
    any_of(Drop, group=texts),
    any_of(SetTop, group=texts, top=st.sampled_from(CLASSES["top"])),
    any_of(Accept, group=texts, names=st.none() | some),
    any_of(New, names=some, to=texts),
    any_of(Refuse, names=some, group=texts),
    any_of(GiveItem, split=st.just("s"), id=st.sampled_from("12"), name=names, group=texts),
)
a_side = st.lists(any_decision, max_size=6)


@settings(max_examples=50)
@given(a_side, a_side, a_side)
def test_any_decisions_lose_no_name_or_decision_and_the_order_of_annotators_does_not_matter(ada, bob, eve):
    entries = [*said("ada", *ada), *said("bob", *bob), *said("eve", *eve, role="adjudicator")]
    result = run(entries)
    found = groups(result)  # groups() asserts that labels are unique
    placed = Counter(name for members in found.values() for name in members)
    dropped = {name for name, group in result.grouping.place.items() if group is None}
    assert placed == Counter(PLACE.keys() - dropped)
    told = Counter([*result.applied, *result.withheld, *result.overruled])
    assert all(count == 1 for count in told.values())
    assert set(told) | {miss.entry for miss in result.unmatched} == set(entries)
    moved = {name for name in PLACE if result.grouping.place[name] != PLACE[name]}
    assert all(result.grouping.claims[Subject("name", name)].entries for name in moved)
    other = run(said("bob", *ada), said("ada", *bob), said("eve", *eve, role="adjudicator"))
    assert groups(other) == found
    assert [(c.kind, c.of) for c in other.conflicts] == [(c.kind, c.of) for c in result.conflicts]
    assert groups(run(said("ada", *ada))) == groups(run(said("ada", *ada), said("bob", *ada)))


# -- kappa --------------------------------------------------------------------------------------------------------


def test_decisions_of_a_language_model_are_never_applied():
    model = said("model:m", move("lake", "hill"), rename("lake", "water"), drop_group("junk"))
    mine = said("ada", move("summit", "hill"))
    found = run(model, mine)
    assert changed(found) == changed(run(mine))
    assert (found.applied, found.conflicts, found.withheld, found.overruled) == (tuple(mine), (), (), ())
    (votes,) = found.models
    assert votes.place["hill"] == 2
    (names, _) = found.agreements
    assert (names.annotators, names.count, names.observed) == (("ada", "model:m"), 1, 0.0)


def test_kappa_is_defined_if_all_verdicts_are_equal_or_none_is():
    nothing = agreement(("a", "b"), "names", [], [])
    assert (nothing.count, nothing.observed, nothing.kappa) == (0, None, None)
    assert agreement(("a", "b"), "names", ["x", "x"], ["x", "x"]).kappa == 1.0
    assert agreement(("a", "b"), "names", ["x", "x"], ["y", "y"]).kappa == 0.0
    # 3/4 of the verdicts are equal; 2/4 * 3/4 + 1/4 * 1/4 = 7/16 by chance
    assert agreement(("a", "b"), "names", [1, None, "z", 1], [1, None, 1, 1]).kappa == pytest.approx(5 / 9)


def test_agreement_counts_only_subjects_that_both_annotators_decided():
    a = said("ada", move("lake", "hill", "list"), drop("summit"), merge("mountain", "summit"), top("lake", "natural"))
    b = said("bob", move("lake", "list"), move("junk", "hill"), drop("summit"), top("lake", "human-made"))
    found = {one.about: (one.annotators, one.count, one.observed) for one in run(a, b).agreements}
    both = ("ada", "bob")
    assert found == {"names": (both, 3, pytest.approx(2 / 3)), "tops": (both, 1, 0.0)}


# -- adopting another annotator's decisions -------------------------------------------------------------------------


def adopted(ada, bob):
    """Return, per conflict, the decisions that let ada adopt bob's claim, and check that they do."""
    mine, other = said("ada", *ada), said("bob", *bob)
    before, found = Grouping.of(PLACE, LABELS, CLASSES).apply_all(mine), []
    for conflict in run(mine, other).conflicts:
        side = next(side for side in conflict.verdicts if side.who == "bob")
        subject, claim = side.subject, side.claim
        if subject is None or claim is None:
            continue  # conflicts about a label offer no decision to adopt
        found.append(adopting(subject, claim, before))
        own = {"who": "ada", "when": START + timedelta(hours=1)}
        more = [*mine, *(Entry(make_decision(one, **own), Path("ada.yaml"), 99) for one in found[-1])]
        if len(more) > len(mine):
            after = Grouping.of(PLACE, LABELS, CLASSES).apply_all(more)
            assert len(after.unmatched) == len(before.unmatched)
            assert after.claims[subject].value == claim.value
            left = run(more, other).conflicts
            assert all(subject not in one.subjects for one in left if one.kind == conflict.kind)
    return found


@each_row(
    ("ada", "bob", "offered"),
    [
        ([drop("hill")], [split("mountain", "knoll", "hill")], {"action": "new", "names": ["hill"], "to": "knoll"}),
        (  # ada renamed the group, so the offer uses her label
            [move("lake", "hill"), rename("summit", "gap")],
            [move("summit", "hill"), rename("summit", "pass")],
            {"action": "move", "names": ["hill"], "to": "gap"},
        ),
        (
            [rename("summit", "peak"), rename("junk", "rest")],
            [merge("junk", "summit", "junk")],
            {"action": "merge", "groups": ["peak"], "to": "rest"},
        ),
        (
            [rename("lake", "water"), top("water", "natural")],
            [top("lake", "human-made")],
            {"action": "set", "group": "water", "top": "human-made"},
        ),
        ([rename("junk", "rest")], [drop_group("junk")], {"action": "drop", "group": "rest"}),
        ([item("lake")], [item("summit")], {"action": "item", "split": "s", "id": "1", "group": "summit"}),
        # no offer: ada has already given the label of bob's new group to another group
        ([rename("junk", "knoll"), move("lake", "hill")], [split("mountain", "knoll", "hill")], None),
    ],
)
def test_conflict_offers_the_decision_of_the_other_annotator(ada, bob, offered):
    assert ([offered] if offered else []) in adopted(ada, bob)


@given(a_side, a_side)
def test_adopting_the_offered_decision_always_settles_the_conflict(ada, bob):
    adopted(ada, bob)


# -- one file per annotator -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def build(module_path):
    return write_build(module_path / "build")


def moved(file, who, to, name="tug"):
    append_decision(file, Move(names=(name,), to=to, who=who, when=START))
    return file


def test_two_files_of_one_annotator_are_refused(build, tmp_path):
    bob, eve = (moved(tmp_path / name, "root", "pass") for name in ("bob.yaml", "eve.yaml"))
    mine, judge = {"file": tmp_path / "ada.yaml"}, {"file": tmp_path / "judge.yaml", "role": "adjudicator"}
    with pytest.raises(InputError, match=r"bob\.yaml: its decisions are by 'root'.*--annotator NAME"):
        opened(build, "root", (bob,), **mine)  # refused even before root's first decision
    with pytest.raises(InputError, match="'root'"):
        opened(build, "judge", (bob, eve), **judge)
    assert opened(build, "root", (bob,), **judge).snapshot()["others"] == ["root"]
    with pytest.raises(InputError, match="this is your own file, but --compare-with lists it"):
        opened(build, "root", (tmp_path / ".." / tmp_path.name / "bob.yaml",), file=bob)


def test_decision_file_with_two_annotators_is_refused(build, tmp_path):
    file = moved(tmp_path / "decisions.yaml", "ada", "pass")
    with pytest.raises(InputError, match=r"holds decisions of ada.*--compare-with .*--annotator NAME"):
        moved(file, "bob", "mountain")
    judge = moved(tmp_path / "judge.yaml", "ada", "pass")
    judge.write_text(judge.read_text().replace("annotator", "adjudicator"))
    review = opened(build, "bob", file=judge, role="adjudicator")  # adjudicators share one file, so bob may open it
    with pytest.raises(InputError, match="ada's"):
        review.undo(review.revision)

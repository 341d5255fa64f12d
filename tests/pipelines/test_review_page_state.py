"""The page's model and journal: every change on the disk, undo, other writers, several annotators."""

import io

import numpy as np
import pytest
from PIL import Image

from hgld import files
from hgld.errors import ConfigError, InputError, StorageError, TableError
from hgld.pipelines.hierarchy.review.decisions import journal as journal_module
from hgld.pipelines.hierarchy.review.decisions.agreement import settle
from hgld.pipelines.hierarchy.review.decisions.decision_files import format_decision, read_decisions
from hgld.pipelines.hierarchy.review.decisions.decisions import Role
from hgld.pipelines.hierarchy.review.decisions.journal import Journal
from hgld.pipelines.hierarchy.review.state import Review, StaleError, Thumbnails
from hgld.pipelines.hierarchy.review.tables import BuildTables
from tests.pipelines.reviewed_build import BREAKOUT, GROUPS, SCRIPT, write_build

MOVE = {"action": "move", "names": ["mountain pass"], "to": "pass", "why": "a way, not a summit"}


@pytest.fixture
def build(tmp_path):
    return write_build(tmp_path / "build")


def opened(build, who="ada", others=(), role: Role = "annotator", images=None):
    file = build / f"{who}.yaml"
    return Review(BuildTables(build), Journal(file, who, role), others, Thumbnails(images))


def names_of(review):
    """Every name's label, doubt and annotator."""
    return {row[0]: row[5:] for row in review.names(0)["rows"]}


def groups_of(review):
    return {label: state for label, *state in review.groups(0)["rows"]}


def all_of(review):
    return names_of(review), groups_of(review), review.snapshot()


ACTIONS = [
    (MOVE, {"mountain pass": "pass"}),
    ({"action": "rename", "group": "ship", "to": "vessel", "why": "w"}, {"tug": "vessel", "schooner": "vessel"}),
    ({"action": "merge", "groups": ["ship", "pass"], "to": "pass", "why": "w"}, {"tug": "pass", "schooner": "pass"}),
    ({"action": "split", "group": "mountain", "names": ["peak"], "to": "summit", "why": "w"}, {"peak": "summit"}),
    ({"action": "drop", "names": ["tug"], "why": "w"}, {"tug": None}),
    ({"action": "drop", "group": "ship", "why": "w"}, {"tug": None, "schooner": None}),
    ({"action": "rename", "group": SCRIPT, "to": BREAKOUT, "why": SCRIPT}, {SCRIPT: BREAKOUT, "__proto__": BREAKOUT}),
]


def test_an_item_is_shown_with_the_label_of_its_group_whatever_the_number(build):
    review = opened(build)
    for number, label in sorted(review.tables.labels.items()):
        landmark = review.name_details("mountain", 0, 1)["landmarks"][0]
        said = {"action": "item", "split": landmark["split"], "id": landmark["id"], "group": label}
        review.decide([[said]], review.revision)
        shown = review.name_details("mountain", 0, 1)["landmarks"][0]["given"]
        assert shown == {"name": None, "group": label}, number


@pytest.mark.parametrize(("given", "moved"), ACTIONS, ids=[f"{a['action']}-{i}" for i, (a, _) in enumerate(ACTIONS)])
def test_a_decision_is_on_the_disk_with_who_and_why_and_can_be_taken_back(build, given, moved):
    review = opened(build)
    before = names_of(review), groups_of(review)
    change = review.decide([[given]], 0)
    (entry,) = read_decisions([build / "ada.yaml"])
    assert (entry.decision.action, entry.decision.who, entry.decision.why) == (given["action"], "ada", given["why"])
    assert {name: change["names"][name][0] for name in moved} == moved
    again = opened(build)  # another start shows the same
    assert (names_of(again), groups_of(again)) == (names_of(review), groups_of(review))
    undone = review.undo(change["revision"])
    assert [one["action"] for one in undone["undone"]] == [given["action"]]
    assert read_decisions([build / "ada.yaml"]) == []
    assert (names_of(review), groups_of(review)) == before
    assert set(undone["names"]) == set(change["names"])


def test_a_top_is_set(build):
    review = opened(build)
    change = review.decide([[{"action": "set", "group": "pass", "top": "natural", "why": "w"}]], 0)
    assert change["groups"] == {"pass": ["natural", "ada"]}
    assert review.group_details("pass")["method"] == "decision"
    assert change["names"] == {}


def test_confirming_a_name_takes_its_doubt_away(build):
    review = opened(build)
    assert names_of(review)["tug"] == ["ship", None, None]
    change = review.decide([[{"action": "accept", "names": ["tug"], "group": "ship"}]], 0)
    assert change["names"] == {"tug": ("ship", 0.0, "ada")}


def test_undo_goes_back_past_what_is_remembered_and_across_starts(build, monkeypatch):
    first = opened(build)
    seen = [names_of(first)]
    for revision, (given, _) in enumerate([ACTIONS[0], ACTIONS[3], ACTIONS[4]]):
        first.decide([[given]], revision)
        seen.append(names_of(first))
    again = opened(build)
    for revision, names in enumerate(reversed(seen[:-1])):
        again.undo(revision)
        assert names_of(again) == names
    with pytest.raises(InputError, match="nothing to undo"):
        again.undo(again.revision)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({**MOVE, "to": "nowhere"}, "no group 'nowhere'"),
        ({**MOVE, "names": ["mountain pas"]}, "did you mean 'mountain pass'"),
        ({**MOVE, "why": " "}, "why is empty"),
        ({**MOVE, "who": "bob"}, "'who' is unexpected, or its value has the wrong type"),
        ({**MOVE, "names": "mountain pass"}, "'names' is unexpected, or its value has the wrong type"),
        ({**MOVE, "names": []}, "expected 1 to"),
        ({**MOVE, "file": "/x"}, "'file' is unexpected, or its value has the wrong type"),
        ({"action": "move", "why": "w"}, "missing"),
        ({"action": "eval"}, "action is 'eval'"),
        ({"action": "rename", "group": "ship", "to": "pass", "why": "w"}, "merge them"),
        ({"action": "set", "group": "ship", "top": "animal", "why": "w"}, "natural or human-made"),
    ],
)
def test_what_fits_nothing_is_refused_and_not_written(build, given, said):
    review = opened(build)
    before = all_of(review)
    with pytest.raises(InputError, match=said):
        review.decide([[given]], 0)
    assert all_of(review) == before
    assert not (build / "ada.yaml").exists()


def test_a_disk_that_refuses_leaves_page_and_file_as_they_were(build, monkeypatch):
    review = opened(build)
    review.decide([[MOVE]], 0)
    text, before = (build / "ada.yaml").read_bytes(), all_of(review)

    def full(*_args, **_kwargs):
        raise StorageError("full")

    monkeypatch.setattr(journal_module, "append_locked", full)
    with pytest.raises(StorageError):
        review.decide([[ACTIONS[4][0]]], 1)
    assert all_of(review) == before
    assert (build / "ada.yaml").read_bytes() == text


def test_an_edit_by_hand_and_a_second_window_are_noticed(build):
    one = opened(build)
    one.decide([[MOVE]], 0)
    two = opened(build)
    two.decide([[ACTIONS[4][0]]], 0)
    with pytest.raises(StaleError):
        one.decide([[ACTIONS[3][0]]], one.revision)
    assert names_of(one) == names_of(two)
    one.decide([[ACTIONS[3][0]]], one.revision)
    with pytest.raises(StaleError):
        one.decide([[ACTIONS[1][0]]], one.revision - 1)
    assert [e.decision.action for e in read_decisions([build / "ada.yaml"])] == ["move", "drop", "split"]


def test_a_write_between_the_check_and_the_lock_is_noticed(build, monkeypatch):
    """Another window that appends just before this one has the file's lock."""
    one, two = opened(build), opened(build)
    one.decide([[ACTIONS[4][0]]], 0)
    two.snapshot()  # takes it over
    lock = files.fcntl.flock

    def late(descriptor: int, how: int) -> None:
        monkeypatch.setattr(files.fcntl, "flock", lock)
        two.decide([[meanwhile.pop()]], two.revision)
        lock(descriptor, how)

    meanwhile = [MOVE, ACTIONS[1][0]]
    for change in (lambda: one.decide([[ACTIONS[3][0]]], one.revision), lambda: one.undo(one.revision)):
        monkeypatch.setattr(files.fcntl, "flock", late)
        with pytest.raises(StaleError):
            change()
        one.snapshot()  # as the page does
        assert (names_of(one), groups_of(one)) == (names_of(two), groups_of(two))
    assert [e.decision.action for e in read_decisions([build / "ada.yaml"])] == ["drop", "rename", "move"]
    assert one.undo(one.revision)["undone"][0]["action"] == "move"


def test_an_action_of_several_decisions_is_taken_back_as_one(build):
    review = opened(build)
    before = names_of(review)
    several = [{"action": "move", "names": [n], "to": to, "why": "w"} for n, to in (("tug", "ship"), ("peak", "pass"))]
    review.decide([[MOVE]], 0)
    with pytest.raises(InputError, match="no group 'nowhere'"):
        review.decide([[*several, {**MOVE, "to": "nowhere"}]], 1)
    assert review.decide([several], 1)["decisions"] == 3
    assert opened(build).undo(0)["decisions"] == 1  # also after another start
    review.snapshot()
    review.decide([several], review.revision)
    assert [one["names"] for one in review.undo(review.revision)["undone"]] == [("tug",), ("peak",)]
    assert len(read_decisions([build / "ada.yaml"])) == 1
    review.undo(review.revision)
    assert names_of(review) == before


@pytest.mark.parametrize(
    ("file", "who", "error", "said"),
    [
        ("w.yaml", " ada", InputError, "take away the spaces.*--annotator NAME"),
        ("w.yaml", "x" * 101, InputError, "at most 100.*--annotator NAME"),
        ("w.yaml", "", InputError, "who is empty.*--annotator NAME"),
        ("none/w.yaml", "ada", ConfigError, "no folder .*none.*--decisions FILE"),
        ("stages/toplevel/done.json/w.yaml", "ada", ConfigError, "no folder"),
    ],
)
def test_where_no_decision_could_be_written_the_page_does_not_open(build, file, who, error, said):
    with pytest.raises(error, match=said):
        Journal(build / file, who, "annotator")


def test_a_file_that_may_not_be_written_is_refused_at_once(build, monkeypatch):
    monkeypatch.setattr(journal_module.os, "access", lambda path, _how: path != build)
    with pytest.raises(StorageError, match=r"w\.yaml.*--decisions FILE"):
        Journal(build / "w.yaml", "ada", "annotator")


def test_a_name_is_the_same_however_its_accents_are_typed(build):
    one = Review(BuildTables(build), Journal(build / "w.yaml", "Zoe\u0308", "annotator"), (), Thumbnails(None))
    one.decide([[MOVE]], 0)
    again = Review(BuildTables(build), Journal(build / "w.yaml", "Zo\u00eb", "annotator"), (), Thumbnails(None))
    assert again.undo(0)["undone"][0]["who"] == "Zo\u00eb"


def test_undo_refuses_what_it_did_not_write(build):
    review = opened(build)
    review.decide([[MOVE]], 0)
    file = build / "ada.yaml"
    file.write_text(file.read_text() + "# a note of mine\n")
    text = file.read_bytes()
    again = opened(build)
    with pytest.raises(InputError, match="by hand"):
        again.undo(0)
    assert file.read_bytes() == text
    with pytest.raises(InputError, match="ada's"):
        Review(BuildTables(build), Journal(file, "bob", "annotator"), (), Thumbnails(None)).undo(0)


def test_times_never_go_back(build):
    (build / "ada.yaml").write_text(
        "schema_version: 1\ndecisions:\n- action: drop\n  names: [tug]\n  who: ada\n  when: 2999-01-01\n  why: later\n"
    )
    review = opened(build)
    review.decide([[{"action": "move", "names": ["tug"], "to": "ship", "why": "back"}]], 0)
    assert names_of(opened(build))["tug"][0] == "ship"


@pytest.mark.parametrize(
    ("theirs", "mine", "adopted"),
    [
        (
            {"action": "rename", "group": "ship", "to": "vessel"},
            {"action": "merge", "groups": ["ship", "pass"], "to": "pass"},
            [("move", "ship"), ("rename", "vessel")],
        ),
        (
            {"action": "refuse", "group": "ship", "names": ["tug"]},
            {"action": "accept", "group": "ship", "names": ["tug"]},
            [("refuse", "ship")],
        ),
        (
            {"action": "refuse", "group": "ship", "other": "pass"},
            {"action": "merge", "groups": ["ship", "pass"], "to": "pass"},
            [],  # one of the two is gone here
        ),
        (
            {"action": "item", "split": "train", "id": "0", "group": "ship"},
            {"action": "item", "split": "train", "id": "0", "group": "pass"},
            [("item", "ship")],
        ),
    ],
)
def test_what_another_claims_can_be_adopted(build, theirs, mine, adopted):
    opened(build, "bob").decide([[theirs]], 0)
    ada = opened(build, "ada", [build / "bob.yaml"])
    ada.decide([[mine]], 0)
    (conflict,) = ada.team()["conflicts"]
    (side,) = [side for side in conflict["verdicts"] if side["who"] == "bob"]
    assert [(one["action"], one.get("to", one.get("group"))) for one in side["adopt"]] == adopted
    if adopted:
        ada.decide([side["adopt"]], 1)
        assert ada.team()["conflicts"] == []


def test_what_an_earlier_release_wrote_is_taken_back(build):
    whole = "schema_version: 1\nrole: annotator\ndecisions:\n"
    entry = '- action: move\n  names:\n  - "{}"\n  to: "pass"\n  who: "ada"\n  when: 2026-11-21T09:30:00Z\n  why: "w"\n'
    (build / "ada.yaml").write_text(whole + entry.format("peak") + entry.format("tug"))
    review = opened(build)
    assert [one["names"] for one in review.undo(0)["undone"]] == [("tug",)]  # one second is not one action
    assert (build / "ada.yaml").read_text() == whole + entry.format("peak")


def test_nothing_comes_after_the_last_time_that_there_is(build):
    (build / "ada.yaml").write_text(
        "schema_version: 1\ndecisions:\n- {action: drop, names: [tug], who: ada, when: '9999-12-31T23:59:59.999999Z'}\n"
    )
    with pytest.raises(InputError, match="nothing comes after"):
        opened(build).decide([[MOVE]], 0)


def test_undo_survives_every_cut(build):
    """Whatever bytes of an appended entry a crash leaves, the entries before it are whole and the rest is named."""
    review = opened(build)
    review.decide([[MOVE]], 0)
    whole = (build / "ada.yaml").read_bytes()
    change = review.decide([[ACTIONS[3][0]]], 1)
    tail = format_decision(review.journal.entries[-1].decision).encode()
    assert (build / "ada.yaml").read_bytes() == whole + tail
    for cut in range(1, len(tail) - 1):
        (build / "cut.yaml").write_bytes(whole + tail[:cut])
        with pytest.raises(InputError, match="entry 2"):
            read_decisions([build / "cut.yaml"])
    review.undo(change["revision"])
    assert (build / "ada.yaml").read_bytes() == whole


def test_annotators_side_by_side_and_their_judge(build):
    ada, bob = opened(build, "ada"), opened(build, "bob")
    for review, to in ((ada, "pass"), (bob, "ship")):
        for name in ("mountain pass", "peak"):
            target = to if name == "mountain pass" else "mountain"
            review.decide(
                [[{**MOVE, "names": [name], "to": target, "why": f"{review.journal.who} says"}]], review.revision
            )
    files = [build / "bob.yaml"]
    team = opened(build, "ada", files).team()
    (conflict,) = team["conflicts"]
    sides = {v["who"]: (v["verdict"], v["why"]) for v in conflict["verdicts"]}
    assert (conflict["of"], conflict["settled"]) == ("mountain pass", None)
    assert sides == {"ada": ("pass", "ada says"), "bob": ("ship", "bob says")}
    names = team["agreements"][0]
    # by hand: both decided two names and agree on one; p_o = 1/2, p_e = 1/4
    assert (names["count"], names["observed"]) == (2, 0.5)
    assert names["kappa"] is None  # two names say nothing
    entries = [e for file in (build / "ada.yaml", build / "bob.yaml") for e in read_decisions([file])]
    (told, _) = settle(BuildTables(build).place, BuildTables(build).labels, entries).agreements
    assert told.kappa == pytest.approx((0.5 - 0.25) / (1 - 0.25))

    judge = opened(build, "eve", [build / "ada.yaml", build / "bob.yaml"], role="adjudicator")
    assert names_of(judge)["mountain pass"][0] == "mountain"  # neither side is applied
    judge.decide([[{**MOVE, "to": "ship", "why": "settled"}]], 0)
    assert judge.team()["conflicts"][0]["settled"] == "decided by eve"
    everyone = read_decisions([build / f"{who}.yaml" for who in ("ada", "bob", "eve")])
    tables = BuildTables(build)
    assert settle(tables.place, tables.labels, everyone).grouping.place["mountain pass"] == 1
    with pytest.raises(InputError, match="adjudicator"):
        opened(build, "eve")


def test_details_examples_and_thumbnails(build, tmp_path):
    landmark = BuildTables(build).landmarks("mountain", 4, 1)[0]
    folder = tmp_path / "images" / "train" / str(landmark["landmark_id"])
    folder.mkdir(parents=True)
    Image.fromarray(np.full((300, 600, 3), 90, np.uint8)).save(folder / "a.jpg")
    (folder / "b.jpg").write_bytes(b"no image")
    review = opened(build, images=tmp_path / "images")
    found = review.name_details("mountain", 0, 60)
    assert [row["images"] for row in found["landmarks"]] == [0, 0, 0, 0, 2, 0]
    assert found["classes"] == [
        [
            ["Q1000001", "mountain range", "https://www.wikidata.org/wiki/Q1000001"],
            ["Q8502", "mountain", "https://www.wikidata.org/wiki/Q8502"],
        ]
    ]
    assert found["spellings"] == ["mountain", "MOUNTAIN"]
    assert [row["landmark_id"] for row in review.name_details("mountain", 4, 60)["landmarks"]] == [
        row["landmark_id"] for row in found["landmarks"][4:]
    ]
    assert review.name_details("no such", 0, 60)["landmarks"] == []
    examples = review.group_details("mountain")["examples"]
    assert [row["name"] for row in examples] == ["mountain", "mountain pass", "peak"]
    assert examples[0]["images"] == 2
    data = review.thumbnails.jpeg(("train", landmark["landmark_id"]), 0)
    assert data is not None
    assert Image.open(io.BytesIO(data)).size == (240, 120)
    assert review.thumbnails.jpeg(("train", landmark["landmark_id"]), 2) is None


def test_what_is_no_build_is_refused(build, tmp_path):
    with pytest.raises(ConfigError, match="build-hierarchy"):
        BuildTables(tmp_path / "nothing")
    (build / "stages" / "clean" / "names.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(TableError, match=r"clean/names\.parquet"):
        BuildTables(build)


def test_facts_cover_every_name(build):
    facts = BuildTables(build).facts()
    assert {row[0] for row in facts} == {name for _, _, members in GROUPS.values() for name in members}
    assert ["tug", 1, 0.02, "ship", "mountain"] in facts

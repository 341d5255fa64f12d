"""The queue behind the page: proposals and the decisions that answer them, pieces, pace, labels, bad bodies."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

from hgld.errors import ConfigError, InputError
from hgld.pipelines.hierarchy.review import pace, state
from hgld.pipelines.hierarchy.review.decisions import decisions as decisions_module
from hgld.pipelines.hierarchy.review.decisions.decision_files import read_decisions
from hgld.pipelines.hierarchy.review.decisions.decisions import Accept
from hgld.pipelines.hierarchy.review.decisions.journal import Journal
from hgld.pipelines.hierarchy.review.learning import proposals
from hgld.pipelines.hierarchy.review.learning.label_proposals import propose
from hgld.pipelines.hierarchy.review.server import application
from hgld.pipelines.hierarchy.review.state import Review
from hgld.pipelines.hierarchy.review.tables import BuildTables, link_of, wikidata_link
from hgld.pipelines.hierarchy.review.thumbnails import Thumbnails
from tests.pipelines.made_teacher import MadeProposal, MadeTeacher
from tests.pipelines.reviewed_build import GROUPS, write_build

TOKEN = {"X-Hgld-Token": "secret"}
NAMES = sorted(name for _, _, members in GROUPS.values() for name in members)


def opened(build, kinds=("sort", "accept", "place", "merge", "new")) -> Review:
    tables = BuildTables(build)
    journal = Journal(build / "ada.yaml", "ada", "annotator")
    return Review(tables, journal, (), Thumbnails(None), MadeTeacher(tables.sizes, kinds))


@pytest.fixture
def build(tmp_path):
    return write_build(tmp_path / "build")


@pytest.fixture
def client(build):
    return TestClient(application(opened(build), "secret"), base_url="http://127.0.0.1:8123")


def ask(client, path, body=None):
    answer = client.get(path, headers=TOKEN) if body is None else client.post(path, json=body, headers=TOKEN)
    return answer.status_code, answer.json()


# -- answers --------------------------------------------------------------------------------------------------------

PROPOSAL = MadeProposal("place", "pass", ("a", "b", "c", "d"), (0.1, 0.2, 0.3, 0.4), 2.0)
NOW = {"a": "hill", "b": "hill", "c": "ship", "d": "ship"}.get


@pytest.mark.parametrize(
    ("kind", "said", "expected"),
    [
        ("place", {}, [("accept", "a b c d", "pass")]),
        ("accept", {"exceptions": ["b"]}, [("accept", "a c d", "pass"), ("refuse", "b", "pass")]),
        (
            "place",
            {"exceptions": ["b", "c"], "also": [{"action": "move", "names": ["c"], "to": "ship"}]},
            [("accept", "a d", "pass"), ("refuse", "b", "pass"), ("move", "c", "ship")],
        ),
        ("new", {"exceptions": ["d"], "to": "gap"}, [("new", "a b c", "gap"), ("refuse", "d", "gap")]),
        ("new", {"exceptions": ["a", "b", "c", "d"]}, [("refuse", "a b c d", "pass")]),
        ("sort", {}, [("accept", "a b", "hill"), ("accept", "c d", "ship")]),
        (
            "sort",
            {"exceptions": ["a", "d"]},
            [
                ("accept", "b", "hill"),
                ("accept", "c", "ship"),
                ("refuse", "a", "hill"),
                ("refuse", "d", "ship"),
            ],
        ),
        ("split", {"exceptions": ["d"]}, [("new", "a b c", "pass"), ("refuse", "d", "pass")]),
        ("rename", {}, [("rename", "pass", "ship")]),
        ("rename", {"to": "gap", "exceptions": ["d"]}, [("rename", "pass", "gap"), ("refuse", "d", "gap")]),
        ("merge", {}, [("merge", "pass ship", "pass")]),
        ("merge", {"to": "water", "exceptions": ["a"]}, [("merge", "pass ship", "water"), ("refuse", "a", "water")]),
    ],
)
def test_accepting_a_proposal(kind, said, expected):
    made = replace(PROPOSAL, kind=kind, other="ship" if kind in ("merge", "split", "rename") else None)
    assert brief(proposals.answered(made, "accept", NOW, **said)) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("place", [("refuse", "a b c d", "pass")]),
        ("merge", [("refuse", "ship", "pass")]),
        ("split", [("refuse", "a b c d", "pass")]),
        ("rename", [("rename", "pass", "pass")]),
        ("sort", [("refuse", "a b", "hill"), ("refuse", "c d", "ship")]),
    ],
)
def test_refusing_a_proposal(kind, expected):
    made = replace(PROPOSAL, kind=kind, other="ship" if kind in ("merge", "split", "rename") else None)
    assert brief(proposals.answered(made, "refuse", NOW)) == expected


def brief(said):
    return [
        (
            one["action"],
            " ".join(one.get("names") or one.get("groups") or [one.get("other") or one["group"]]),
            one.get("to") or one["group"],
        )
        for one in said
    ]


def test_an_exception_must_be_a_name_of_the_proposal():
    with pytest.raises(InputError, match="'x' is no name"):
        proposals.answered(PROPOSAL, "accept", NOW, exceptions=["x"])


def test_more_names_than_a_decision_takes_are_several_decisions(monkeypatch):
    monkeypatch.setattr(proposals, "MOST_NAMES", 3)
    assert brief(proposals.answered(PROPOSAL, "accept", NOW)) == [("accept", "a b c", "pass"), ("accept", "d", "pass")]
    made = replace(PROPOSAL, kind="new")
    assert brief(proposals.answered(made, "accept", NOW)) == [("new", "a b c", "pass"), ("accept", "d", "pass")]


def test_names_that_are_decided_already_are_left_out_of_an_answer(build):
    review = opened(build, ("accept",))
    shown = next(p for p in review.queue(0, 10)["proposals"] if p["group"] == "mountain")
    review.decide([[{"action": "move", "names": ["peak"], "to": "pass"}]], 0)
    answer = review.answer(shown["id"], "accept", [], [])
    assert brief(answer) == [("accept", "mountain mountain pass", "mountain")]


# -- the queue over the wire ----------------------------------------------------------------------------------------


def test_a_program_works_through_the_queue(client, build):
    _, state_now = ask(client, "/api/state")
    assert "names" not in state_now
    assert state_now["progress"] | {"still_wrong": None} == {
        "names": 9,
        "names_done": 0,
        "items": 20,
        "items_done": 0,
        "still_wrong": None,
        "seconds_left": None,
    }
    _, queue = ask(client, "/api/queue?count=100")
    assert [p["kind"] for p in queue["proposals"]] == ["sort"] * 2 + ["accept"] * 4 + ["place", "merge", "new"]
    first = queue["proposals"][0]
    assert (first["names"], first["size"]) == (NAMES[:8], 8)
    assert first["groups"] == [label_of(name) for name in NAMES[:8]]
    assert [0, 8] in first["blocks"]
    body = {"revision": 0, "proposal": first["id"], "verdict": "accept", "except": ["peak"], "why": "seen"}
    status, change = ask(client, "/api/decide", body)
    assert status == 200
    assert change["progress"]["names_done"] == 7
    assert change["names"]["mountain"] == ["mountain", 0.0, "ada"]
    assert {entry.decision.why for entry in read_decisions([build / "ada.yaml"])} == {"seen"}
    assert ask(client, "/api/undo", {"revision": 1})[1]["progress"]["names_done"] == 0
    assert read_decisions([build / "ada.yaml"]) == []
    assert ask(client, "/api/decide", body)[0] == 409


def label_of(name):
    return next(label for label, _, members in GROUPS.values() if name in members)


def test_several_actions_of_one_request_are_undone_one_by_one(client):
    actions = [[{"action": "accept", "names": [n], "group": label_of(n)}] for n in ("tug", "peak", "water gap")]
    _, change = ask(client, "/api/decide", {"revision": 0, "actions": actions})
    assert change["decisions"] == 3
    for left in (2, 1, 0):
        _, change = ask(client, "/api/undo", {"revision": change["revision"]})
        assert change["decisions"] == left
    wrong = [*actions, [{"action": "drop", "names": ["nobody"]}]]
    assert ask(client, "/api/decide", {"revision": change["revision"], "actions": wrong})[0] == 422
    assert ask(client, "/api/state")[1]["decisions"] == 0


def test_what_was_put_off_is_not_proposed_until_its_estimates_change(client):
    _, queue = ask(client, "/api/queue")
    first, accept = queue["proposals"][0], queue["proposals"][2]
    _, less = ask(client, "/api/skip", {"proposal": first["id"]})
    assert first["id"] not in {p["id"] for p in less["proposals"]}
    assert (less["revision"], ask(client, "/api/state")[1]["decisions"]) == (0, 0)
    merge = next(p for p in less["proposals"] if p["kind"] == "merge")
    assert "merge" not in {p["kind"] for p in ask(client, "/api/skip", {"proposal": merge["id"]})[1]["proposals"]}
    moved = [{"action": "move", "names": [accept["names"][0]], "to": "ship"}]
    assert ask(client, "/api/decide", {"revision": 0, "decisions": moved})[0] == 200
    assert ask(client, "/api/skip", {"proposal": "x"})[0] == 422


def test_what_is_long_comes_in_pieces(build, monkeypatch):
    for module, piece in ((state, 2), (proposals, 3)):
        monkeypatch.setattr(module, "PIECE", piece)
    monkeypatch.setattr(Review.names, "__defaults__", (2,))
    review = opened(build)
    rows = [row for start in range(0, 9, 2) for row in review.names(start)["rows"]]
    assert [row[0] for row in rows] == NAMES
    whole = review.queue(0, 1)["proposals"][0]
    monkeypatch.setattr(proposals.shown, "__defaults__", (0, 3))
    short = review.queue(0, 1)["proposals"][0]
    assert (short["names"], short["size"], short["id"]) == (whole["names"][:3], 8, whole["id"])
    change = review.decide([[{"action": "drop", "names": NAMES[:5]}]], 0)
    found, start = dict(change["names"]), 2
    while change["more"]:
        change = review.changes(start)
        found |= change["names"]
        start += 2
    assert found.keys() >= set(NAMES[:5])


def test_the_teacher_moves_what_nobody_decided_and_the_page_says_so(build):
    review = opened(build)
    change = review.decide([[{"action": "move", "names": ["mountain"], "to": "pass"}]], 0)
    assert change["names"]["mountain pass"][0] == "pass"  # it begins alike
    assert (change["queue"]["moved"], review.snapshot()["progress"]["names_done"]) == (1, 1)
    review.decide([[{"action": "refuse", "names": ["peak"], "group": "mountain"}]], 1)
    assert review.name_details("peak", 0, 1)["not_in"] == ["mountain"]


# -- labels that are proposed ---------------------------------------------------------------------------------------

BOATS = {  # the group's label was its largest name's
    0: ("ship", None, {"ship": (3, 0.5, False, 1), **{f"{kind} boat": (2, 0.5, False, 1) for kind in "abcdefgh"}}),
    1: ("hill", None, {"hill": (1, 0.5, False, 0), "boat hill": (1, 0.5, False, 0)}),
}


def accepting(names):
    return {"action": "accept", "names": sorted(names), "group": "ship"}


def test_a_group_gets_a_label_that_says_what_it_holds_once_all_of_it_is_decided(tmp_path):
    build = write_build(tmp_path / "build", BOATS)
    boats = list(BOATS[0][2])
    review = opened(build, ("sort",))
    assert not renames(review)  # nothing is decided, and the build chose this label
    review.decide([[accepting(boats[:8])]], 0)
    assert not renames(review)
    review.decide([[accepting(boats[8:])]], 1)
    [one] = renames(review)
    assert (one["group"], one["other"], one["size"]) == ("ship", "boat", 9)
    assert one["items"] == 16 - 3  # boats, and ships
    review.put_off(one["id"])
    assert not renames(review)
    again = opened(build, ("sort",))
    [one] = renames(again)
    again.decide([again.answer(one["id"], "refuse", [], [])], 0)
    assert not renames(again)
    assert not renames(opened(build, ("sort",)))  # the file says that the label stays
    assert again.groups(0)["total"] == 2


def test_a_label_that_is_taken_or_that_a_person_gave_is_not_proposed(tmp_path):
    boats = list(BOATS[0][2])
    for number, more in enumerate(
        (
            {"action": "rename", "group": "ship", "to": "vessel"},
            {"action": "rename", "group": "ship", "to": "ship"},
            {"action": "rename", "group": "hill", "to": "boat"},
        )
    ):
        build = write_build(tmp_path / f"build{number}", BOATS)
        review = opened(build, ("sort",))
        review.decide([[accepting(boats)]], 0)
        assert len(renames(review)) == 1
        review.decide([[more]], 1)
        assert not renames(review)


def renames(review):
    return [one for one in review.queue(0, 50)["proposals"] if one["kind"] == "rename"]


# -- pace -----------------------------------------------------------------------------------------------------------


def at(*seconds, names=2):
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        Accept(group="g", names=tuple(f"{i} {n}" for n in range(names)), who="a", when=start + timedelta(seconds=s))
        for i, s in enumerate(seconds)
    ]


def test_the_rest_takes_as_long_as_the_last_actions_tell():
    assert pace.seconds_left(at(0, 10, 20, 30), 100) is None  # four actions tell nothing
    assert pace.seconds_left(at(0, 10, 20, 30, 40), 100) == 100 * 40 / 8
    assert pace.seconds_left(at(0, 10, 20, 30, 40 + 3600), 100) == 100 * (30 + 120) / 8  # a pause is two minutes
    assert pace.seconds_left(at(0, 0, 0, 0, 0, 10, 20, 30, 40), 100) == 100 * 40 / 8  # one time is one action
    assert pace.seconds_left(at(*range(0, 600, 10), names=1), 100) == 1_000


# -- labels and links -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("english", "label"), [(True, "platanoide"), (False, "platanoides")])
def test_labels_of_names_that_are_not_english_are_not_cut(tmp_path, english, label):
    names = {f"{genus} platanoides": (1, 0.5, False, 0) for genus in ("Acer", "Tilia")}
    tables = BuildTables(write_build(tmp_path / "build", {0: ("trees", None, names)}, english=english))
    assert label in [one["label"] for one in propose(sorted(names), tables, set())]


def test_labels_are_proposed_and_none_that_is_taken(client):
    _, found = ask(client, "/api/labels", {"names": ["mountain pass", "water gap", "mountain"]})
    labels = [one["label"] for one in found["labels"]]
    assert labels
    assert not {"mountain", "pass", "ship"} & set(labels)  # groups that are there
    assert all(one["why"] for one in found["labels"])
    assert ask(client, "/api/labels", {"names": []})[0] == 422
    assert ask(client, "/api/labels", {"names": ["nobody"]})[0] == 422


@pytest.mark.parametrize(
    ("category", "id_", "link"),
    [
        ("http://commons.wikimedia.org/wiki/Category:A b", "3", "http://commons.wikimedia.org/wiki/Category:A%20b"),
        ("https://wiki.example/Category:A", "3", "https://wiki.example/Category:A"),
        ("oak", "tree-3", None),
        ("oak", "Q12004", "https://www.wikidata.org/wiki/Q12004"),
        ("javascript:alert(1)", "3", None),
        ("http://[", "3", None),
        ("//evil.example/x", "3", None),
        ("https:///x", "3", None),
        ("http://a/" + "x" * 3_000, "3", None),
        (None, "3", None),
    ],
)
def test_links_follow_the_source(category, id_, link):
    assert link_of(category, id_) == link


def test_only_ids_of_wikidata_have_its_links():
    assert [wikidata_link(one) for one in ("Q5", "Q0", "n02084071", "q5", "Q5/../x")] == [
        "https://www.wikidata.org/wiki/Q5",
        None,
        None,
        None,
        None,
    ]


# -- whatever is sent ------------------------------------------------------------------------------------------------

TEXT = st.sampled_from([*NAMES, "mountain", "ship", "pass", "nobody", "", " x ", "\ud800", "__proto__", "x" * 600])
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "action",
    "names",
    "group",
    "groups",
    "to",
    "other",
    "top",
    "level",
    "split",
    "id",
    "name",
    "why",
    "who",
    "when",
)
DECISION = st.fixed_dictionaries(
    {"action": st.sampled_from([*decisions_module.ACTIONS, "eval"]) | VALUE},
    optional={field: st.lists(TEXT, max_size=3) | VALUE for field in FIELDS[1:]},
)
BODY = st.fixed_dictionaries(
    {},
    optional={
        "revision": st.just(0) | VALUE,
        "decisions": st.lists(DECISION, max_size=2) | VALUE,
        "actions": st.lists(st.lists(DECISION, max_size=2), max_size=2) | VALUE,
        "proposal": VALUE,
        "verdict": st.sampled_from(["accept", "refuse"]) | VALUE,
        "except": VALUE,
        "also": VALUE,
        "names": VALUE,
    },
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["decide", "undo", "skip", "labels"]), BODY)
def test_no_body_breaks_the_server(build, path, body):
    (build / "ada.yaml").unlink(missing_ok=True)
    client = TestClient(application(opened(build), "secret"), base_url="http://127.0.0.1:8123")
    answer = client.post(f"/api/{path}", content=json.dumps(body), headers=TOKEN)  # raises what would be a 500
    assert answer.status_code in (200, 400, 409, 422)
    answer.json() if answer.status_code != 400 else answer.text
    if answer.status_code == 200 and path == "decide":
        assert read_decisions([build / "ada.yaml"])


# -- items of a list of names ---------------------------------------------------------------------------------------


@pytest.fixture
def listed(tmp_path):
    """A build of a list with ids, descriptions and images."""
    build = write_build(
        tmp_path / "build", {0: ("tree", None, {"oak": (2, 0.5, False, 0), "pine": (1, 0.5, False, 0)})}
    )
    clean = build / "stages" / "clean" / "landmarks.parquet"
    pl.read_parquet(clean).with_columns(split=pl.lit("classes"), category="name", title=None).write_parquet(clean)
    rows = [
        ("classes", 0, "Q12004", "a tree", ["oak.png"]),
        ("classes", 1, "o-2", None, []),
        ("classes", 2, "p", None, None),
    ]
    kinds = {"split": pl.String, "landmark_id": pl.Int64, "id": pl.String, "description": pl.String}
    table = pl.DataFrame(rows, schema={**kinds, "images": pl.List(pl.String)}, orient="row")
    table.write_parquet(build / "stages" / "scrape" / "landmarks.parquet")
    Image.new("RGB", (8, 8)).save(tmp_path / "oak.png")
    return build


def test_items_have_their_own_ids_links_and_images(listed, tmp_path):
    tables = BuildTables(listed)
    images = Thumbnails(tmp_path, tables.images())
    review = Review(tables, Journal(listed / "ada.yaml", "ada", "annotator"), (), images)
    assert (review.snapshot()["item"], review.snapshot()["levels"]) == (
        "item",
        [["natural_or_human_made", ["natural", "human-made"]]],
    )
    one, two = review.name_details("oak", 0, 9)["landmarks"]
    assert (one["id"], one["description"], one["images"]) == ("Q12004", "a tree", 1)
    assert (one["link"], two["link"]) == ("https://www.wikidata.org/wiki/Q12004", None)
    assert images.jpeg(("classes", 0), 0)
    review.decide([[{"action": "item", "split": "classes", "id": "o-2", "name": "pine"}]], 0)
    assert review.name_details("oak", 0, 9)["landmarks"][1]["given"] == {"name": "pine", "group": None}
    with pytest.raises(InputError, match="no item '1'"):
        review.decide([[{"action": "item", "split": "classes", "id": "1", "name": "pine"}]], 1)
    with pytest.raises(ConfigError, match="outside the folder"):
        Thumbnails(tmp_path, {("classes", 0): ["../../etc/passwd"]})
    with pytest.raises(ConfigError, match="expected the folder"):
        Thumbnails(tmp_path / "nothing", tables.images())

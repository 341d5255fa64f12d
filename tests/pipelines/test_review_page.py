"""The review page without a browser: its state, its decision file, and responses of the server."""

import io
import json
import signal
import subprocess
import sys
from dataclasses import fields
from urllib.parse import urlsplit

import numpy as np
import polars as pl
import pytest
import requests
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

from hgld import files
from hgld.cli.hierarchy_commands import review as review_command
from hgld.errors import ConfigError, InputError, StorageError
from hgld.pipelines.hierarchy.review import journal as journal_module
from hgld.pipelines.hierarchy.review import server
from hgld.pipelines.hierarchy.review.decisions import ACTIONS as KINDS
from hgld.pipelines.hierarchy.review.decisions import read_decisions
from hgld.pipelines.hierarchy.review.journal import Journal, StaleError
from hgld.pipelines.hierarchy.review.tables import BuildTables, Thumbnails, link_of, wikidata_link
from tests.pipelines.reviewed_build import BREAKOUT, GROUPS, SCRIPT, opened, write_build
from tests.rows import each_row, refused

TOKEN = {"X-Hgld-Token": "secret"}
HOME = "http://127.0.0.1:8123"
NAMES = sorted(name for _, _, members in GROUPS.values() for name in members)
MOVE = {"action": "move", "names": ["mountain pass"], "to": "pass", "why": "a way, not a summit"}
SPLIT = {"action": "split", "group": "mountain", "names": ["peak"], "to": "summit", "why": "w"}
DROP = {"action": "drop", "names": ["tug"], "why": "w"}
ACTIONS = [
    (MOVE, {"mountain pass": "pass"}),
    ({"action": "rename", "group": "ship", "to": "vessel", "why": "w"}, {"tug": "vessel", "schooner": "vessel"}),
    (SPLIT, {"peak": "summit"}),
    (DROP, {"tug": None}),
    ({"action": "rename", "group": SCRIPT, "to": BREAKOUT, "why": SCRIPT}, {SCRIPT: BREAKOUT, "__proto__": BREAKOUT}),
]


@pytest.fixture
def build(tmp_path):
    return write_build(tmp_path / "build")


def names_of(review):
    """Return label, error probability and annotator of every name."""
    return {row[0]: row[5:] for row in review.snapshot()["names"]}


def groups_of(review):
    return review.snapshot()["groups"]


def actions_in(file):
    return [entry.decision.action for entry in read_decisions([file])]


# -- deciding and undoing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learns", [False, True])
def test_decisions_are_written_with_annotator_and_reason_and_undone_after_a_restart(build, learns):
    first, shown = opened(build, learns=learns), []
    for revision, (said, moved) in enumerate(ACTIONS):
        shown.append((names_of(first), groups_of(first)))
        change = first.decide([[said]], revision)
        # the learner may move the undecided names of a renamed group
        assert learns or {name: change["names"][name][0] for name in moved} == moved
    entries = [entry.decision for entry in read_decisions([build / "ada.yaml"])]
    assert [(d.action, d.who, d.why) for d in entries] == [(said["action"], "ada", said["why"]) for said, _ in ACTIONS]
    again = opened(build, learns=learns)
    assert (names_of(again), groups_of(again)) == (names_of(first), groups_of(first))
    for revision, before in enumerate(reversed(shown)):
        assert [one["action"] for one in again.undo(revision)["undone"]] == [entries[-1 - revision].action]
        assert (names_of(again), groups_of(again)) == before
    with pytest.raises(InputError, match="nothing to undo"):
        again.undo(again.revision)


def test_page_shows_top_classes_confirmations_refusals_and_item_decisions(build):
    review = opened(build)
    change = review.decide([[{"action": "set", "group": "pass", "top": "natural", "why": "w"}]], 0)
    assert (change["groups"], change["names"]) == ({"pass": ["natural", "ada", ["natural"], ["ada"]]}, {})
    assert review.group_details("pass")["method"] == "decision"
    assert names_of(review)["tug"] == ["ship", None, None]
    change = review.decide([[{"action": "accept", "names": ["tug"], "group": "ship"}]], 1)
    assert change["names"] == {"tug": ("ship", 0.0, "ada")}
    review.decide([[{"action": "refuse", "names": ["peak"], "group": "mountain"}]], 2)
    assert review.name_details("peak", 0, 1)["not_in"] == ["mountain"]
    # group number 0 must not be treated as no group
    item = review.name_details("tug", 0, 1)["landmarks"][0]
    review.decide([[{"action": "item", "split": item["split"], "id": item["id"], "group": "mountain"}]], 3)
    shown = review.name_details("tug", 0, 1)["landmarks"][0]["given"]
    assert shown == {"name": None, "group": "mountain"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({**MOVE, "names": ["mountain pas"]}, "did you mean 'mountain pass'"),
        ({**MOVE, "who": "bob"}, "move has no field 'who'"),
        ({"action": "item", "split": "train", "id": "99", "group": "ship"}, "no item '99'"),
    ],
)
def test_decisions_about_unknown_names_or_groups_are_refused_and_not_written(build, given, said):
    review = opened(build)
    before = review.snapshot()
    with pytest.raises(InputError, match=said):
        review.decide([[given]], 0)
    assert review.snapshot() == before
    assert not (build / "ada.yaml").exists()


def test_undo_removes_all_decisions_of_one_action(build):
    review = opened(build)
    before = names_of(review)
    several = [{"action": "move", "names": [n], "to": to, "why": "w"} for n, to in (("tug", "ship"), ("peak", "pass"))]
    with pytest.raises(InputError, match="no group 'nowhere'"):
        review.decide([[*several, {**MOVE, "to": "nowhere"}]], 0)
    assert review.decide([several, [DROP]], 0)["decisions"] == 3
    assert review.undo(1)["decisions"] == 2
    again = opened(build)  # the undone decision stays undone after a restart
    assert [one["names"] for one in again.undo(0)["undone"]] == [("tug",), ("peak",)]
    assert (names_of(again), actions_in(build / "ada.yaml")) == (before, [])


# -- the file ------------------------------------------------------------------------------------------------------


def test_failing_disk_is_reported_and_page_and_file_stay_equal(build, monkeypatch):
    review = opened(build)
    for revision, said in enumerate((MOVE, SPLIT)):
        review.decide([[said]], revision)
    text, before = (build / "ada.yaml").read_bytes(), review.snapshot()

    def fail(*_args):
        raise OSError(28, "No space left on device")

    write = journal_module.os.write
    for name, fault, said in (
        ("write", lambda file, data: write(file, data[:10]), "could not be written"),
        ("fsync", fail, "was removed, but the disk did not confirm it"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(journal_module.os, name, fault)
            with pytest.raises(StorageError, match=said):
                review.decide([[DROP]], 2)
    assert (review.snapshot(), (build / "ada.yaml").read_bytes()) == (before, text)
    with monkeypatch.context() as patch:
        patch.setattr(journal_module, "sync", fail)
        with pytest.raises(StorageError, match="was removed, but the disk did not confirm it"):
            review.undo(2)
    assert actions_in(build / "ada.yaml") == ["move"]
    assert names_of(review) == names_of(opened(build))
    assert review.undo(review.revision)["undone"][0]["action"] == "move"


def test_deleted_file_is_written_again(build):
    review = opened(build)
    review.decide([[MOVE]], 0)
    before, text = names_of(review), (build / "ada.yaml").read_bytes()
    (build / "ada.yaml").unlink()
    with pytest.raises(StaleError):
        review.decide([[DROP]], 1)
    assert (names_of(review), (build / "ada.yaml").read_bytes()) == (before, text)
    review.decide([[DROP]], review.revision)
    assert actions_in(build / "ada.yaml") == ["move", "drop"]


def test_write_between_check_and_lock_is_detected(build, monkeypatch):
    """A second window appends a decision just before the first window gets the lock."""
    one, two = opened(build), opened(build)
    one.decide([[DROP]], 0)
    two.snapshot()  # refresh window two, so that it reads the new decision
    lock = files.fcntl.flock

    def late(descriptor, how):
        monkeypatch.setattr(files.fcntl, "flock", lock)
        two.decide([[meanwhile.pop()]], two.revision)
        lock(descriptor, how)

    meanwhile = [MOVE, ACTIONS[1][0]]
    for change in (lambda: one.decide([[SPLIT]], one.revision), lambda: one.undo(one.revision)):
        monkeypatch.setattr(files.fcntl, "flock", late)
        with pytest.raises(StaleError):
            change()
        one.snapshot()  # the page also refreshes before it decides again
        assert (names_of(one), groups_of(one)) == (names_of(two), groups_of(two))
    assert actions_in(build / "ada.yaml") == ["drop", "rename", "move"]
    assert one.undo(one.revision)["undone"][0]["action"] == "move"


def open_journal(file, who, *, build, monkeypatch):
    monkeypatch.setattr(journal_module.os, "access", lambda path, _how: path != build or file != "locked.yaml")
    Journal(build / file, who, "annotator")


test_page_opens_only_with_a_writable_decision_file_and_a_valid_annotator_name = refused(
    open_journal,
    [
        ("w.yaml", " ada", InputError, "remove the spaces.*--annotator NAME"),
        ("none/w.yaml", "ada", ConfigError, "no folder .*none.*--decisions FILE"),
        ("locked.yaml", "ada", StorageError, r"locked\.yaml.*--decisions FILE"),
    ],
)


def test_annotator_name_matches_in_both_unicode_forms(build):
    file = build / "w.yaml"
    opened(build, "Zoe\u0308", file=file).decide([[MOVE]], 0)
    assert opened(build, "Zo\u00eb", file=file).undo(0)["undone"][0]["who"] == "Zo\u00eb"


def test_new_decision_gets_a_later_time_than_all_earlier_entries(build):
    head = "schema_version: 1\ndecisions:\n"
    (build / "ada.yaml").write_text(f"{head}- {{action: drop, names: [tug], who: ada, when: 2999-01-01}}\n")
    with pytest.raises(InputError, match="by hand"):
        opened(build).undo(0)
    (build / "ada.yaml").write_text(f"{head}- action: drop\n  names: [tug]\n  who: ada\n  when: 2999-01-01\n")
    opened(build).decide([[{"action": "move", "names": ["tug"], "to": "ship"}]], 0)
    assert names_of(opened(build))["tug"][0] == "ship"


# -- several annotators -----------------------------------------------------------------------------------------------


def test_second_annotator_and_adjudicator_see_and_settle_a_conflict(build):
    for who, to in (("ada", "pass"), ("bob", "ship")):
        review = opened(build, who)
        review.decide([[{**MOVE, "to": to, "why": f"{who} says"}], [{**MOVE, "names": ["peak"], "to": "mountain"}]], 0)
    both = (build / "ada.yaml", build / "bob.yaml")
    team = opened(build, "ada", both[1:]).team()
    (conflict,) = team["conflicts"]
    assert (conflict["of"], conflict["settled"]) == ("mountain pass", None)
    assert [side["why"] for side in conflict["verdicts"]] == ["ada says", "bob says"]
    names = team["agreements"][0]
    # kappa is None, because two names are too few
    assert (names["count"], names["observed"], names["kappa"]) == (2, 0.5, None)
    judge = opened(build, "eve", both, role="adjudicator")
    assert names_of(judge)["mountain pass"][0] == "mountain"  # neither of the conflicting decisions is applied
    judge.decide([[{**MOVE, "to": "ship", "why": "settled"}]], 0)
    assert judge.team()["conflicts"][0]["settled"] == "decided by eve"
    assert names_of(judge)["mountain pass"][0] == "ship"
    with pytest.raises(InputError, match="adjudicator"):
        opened(build, "eve")


# -- shown details ---------------------------------------------------------------------------------------------------


def test_page_shows_details_examples_and_thumbnails(build, tmp_path):
    number = BuildTables(build).landmarks("mountain", 4, 1)[0]["landmark_id"]
    folder = tmp_path / "images" / "train" / str(number)
    folder.mkdir(parents=True)
    Image.fromarray(np.full((300, 600, 3), 90, np.uint8)).save(folder / "a.jpg")
    (folder / "b.jpg").write_bytes(b"no image")
    review = opened(build, images=tmp_path / "images")
    found = review.name_details("mountain", 0, 60)
    assert [row["images"] for row in found["landmarks"]] == [0, 0, 0, 0, 2, 0]
    assert found["classes"] == [["Q1000001", "mountain range", "https://www.wikidata.org/wiki/Q1000001"]]
    assert found["spellings"] == ["mountain", "MOUNTAIN"]
    assert review.name_details("mountain", 4, 60)["landmarks"] == found["landmarks"][4:]
    examples = review.group_details("mountain")["examples"]
    assert [(row["name"], row["images"]) for row in examples] == [("mountain", 2), ("mountain pass", 0), ("peak", 0)]
    data = review.thumbnails.jpeg(("train", number), 0)
    assert data is not None
    assert Image.open(io.BytesIO(data)).size == (240, 120)
    assert review.thumbnails.jpeg(("train", number), 2) is None


def test_items_of_a_list_have_ids_links_and_images(tmp_path):
    trees = {0: ("tree", None, {"oak": (2, 0.5, False, 0), "pine": (1, 0.5, False, 0)})}
    build = write_build(tmp_path / "build", trees)
    clean = build / "stages/clean/landmarks.parquet"
    pl.read_parquet(clean).with_columns(split=pl.lit("classes"), category="name", title=None).write_parquet(clean)
    table = {"split": ["classes"] * 3, "landmark_id": range(3), "id": ["Q12004", "o-2", "p"]}
    table |= {"description": ["a tree", None, None], "images": [["oak.png"], [], None]}
    pl.DataFrame(table).write_parquet(build / "stages/scrape/landmarks.parquet")
    Image.new("RGB", (8, 8)).save(tmp_path / "oak.png")
    review = opened(build, images=tmp_path)
    assert review.snapshot()["item"] == "item"
    one, two = review.name_details("oak", 0, 9)["landmarks"]
    assert (one["id"], one["description"], one["images"]) == ("Q12004", "a tree", 1)
    assert (one["link"], two["link"]) == ("https://www.wikidata.org/wiki/Q12004", None)
    assert review.thumbnails.jpeg(("classes", 0), 0)
    review.decide([[{"action": "item", "split": "classes", "id": "o-2", "name": "pine"}]], 0)
    assert review.name_details("oak", 0, 9)["landmarks"][1]["given"] == {"name": "pine", "group": None}
    with pytest.raises(ConfigError, match="expected the folder"):
        Thumbnails(tmp_path / "nothing", review.tables.images())


@each_row(
    ("category", "id_", "link"),
    [
        ("http://commons.wikimedia.org/wiki/Category:A b", "3", "http://commons.wikimedia.org/wiki/Category:A%20b"),
        ("oak", "Q12004", "https://www.wikidata.org/wiki/Q12004"),
        ("javascript:alert(1)", "3", None),
        ("http://[", "3", None),
        ("http://a/" + "x" * 3_000, "3", None),
        (None, "3", None),
    ],
)
def test_links_of_items_come_from_the_source_or_wikidata(category, id_, link):
    assert link_of(category, id_) == link
    assert [wikidata_link(one) for one in ("Q0", "n02084071", "q5", "Q5/../x")] == [None] * 4


# -- the server -------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(build):
    return client_of(build, learns=True)


@pytest.fixture(scope="module")
def reader(module_path):
    """Return a client of a build that no test decides about."""
    return client_of(write_build(module_path / "build"))


def client_of(build, **options):
    return TestClient(server.application(opened(build, **options), "secret"), base_url=HOME)


def ask(client, path, body=None):
    answer = client.get(path, headers=TOKEN) if body is None else client.post(path, json=body, headers=TOKEN)
    return answer.status_code, answer.json()


@pytest.mark.parametrize("headers", [{}, TOKEN | {"Host": "evil.example:8123"}, TOKEN | {"Origin": "null"}])
def test_requests_without_the_token_or_from_other_sites_are_refused(client, build, headers):
    for path in ("state", "team", "name?name=tug", "group?label=ship", "thumbnail?split=a&id=1"):
        answer = client.get(f"/api/{path}", headers=headers)
        assert (answer.status_code, "tug" in answer.text) == (403, False), path
    assert client.post("/api/decide", json={"decisions": [MOVE], "revision": 0}, headers=headers).status_code == 403
    assert not (build / "ada.yaml").exists()


def test_page_has_security_headers_and_no_data(reader):
    for path in ("/", "/app.js", "/style.css"):
        answer = reader.get(path)
        policy = answer.headers["content-security-policy"]
        assert (answer.status_code, "default-src 'none'" in policy, "unsafe" in policy) == (200, True, False)
        # links to Wikimedia use https, so "http://" is absent
        assert not [text for text in ("tug", "http://", "innerHTML") if text in answer.text]


def test_api_decides_names_of_the_queue_and_undoes_decisions(client):
    _, now = ask(client, "/api/state")
    progress = {"names": 9, "names_done": 0, "items": 20, "items_done": 0}
    assert now["progress"] == {**progress, "still_wrong": now["progress"]["still_wrong"]}
    assert sorted(n for screen in now["queue"] if not screen["level"] for n in screen["names"]) == NAMES
    names, labels = now["queue"][0]["names"], {row[0]: row[5] for row in now["names"]}
    said = [{"action": "accept", "names": [n], "group": labels[n], "why": "seen"} for n in names]
    status, change = ask(client, "/api/decide", {"revision": 0, "decisions": said})
    assert (status, change["progress"]["names_done"]) == (200, len(names))
    assert change["names"][names[0]] == [labels[names[0]], 0.0, "ada"]
    assert not {*names} & {name for screen in change["queue"] if not screen["level"] for name in screen["names"]}
    status, stale = ask(client, "/api/undo", {"revision": 0})
    assert (status, stale["stale"]) == (409, True)
    assert ask(client, "/api/undo", {"revision": 1})[1]["progress"]["names_done"] == 0
    assert ask(client, "/api/undo", {"revision": 2})[0] == 422


def test_skipped_names_return_only_if_no_other_names_are_left(client):
    _, now = ask(client, "/api/state")
    seen = set()
    while len(seen) < len(NAMES):
        first = now["queue"][0]
        assert not seen & {*first["names"]}
        seen |= {*first["names"]}
        _, now = ask(client, "/api/skip", {"names": first["names"]})
    assert now["queue"]
    assert (now["revision"], now["decisions"]) == (0, 0)
    assert ask(client, "/api/skip", {"names": ["x"]})[0] == 422


def test_proposed_labels_exclude_labels_of_existing_groups(client):
    _, found = ask(client, "/api/labels", {"names": ["mountain pass", "water gap", "mountain"]})
    labels = [one["label"] for one in found["labels"]]
    assert labels
    assert not {"mountain", "pass", "ship"} & set(labels)  # labels of existing groups are not proposed
    assert all(one["why"] for one in found["labels"])
    assert ask(client, "/api/labels", {"names": ["nobody"]})[0] == 422


def test_labels_by_a_language_model_are_offered_and_its_votes_change_estimates(build):
    by = {"who": "model:m", "when": "2026-01-01"}
    votes = [
        {"action": "move", "names": ["tug"], "to": "ship", **by},
        {"action": "rename", "group": "ship", "to": "vessel", **by},
    ]
    file = build / "votes.yaml"
    file.write_text(f"schema_version: 1\ndecisions: {json.dumps(votes)}\n")
    page, without = opened(build, others=(file,), learns=True), opened(build, "eve", learns=True)
    assert page.labels(["schooner"])["labels"][0] == {"label": "vessel", "why": "by a language model"}
    label, wrong, who = names_of(page)["tug"]
    assert (label, who) == ("ship", None)  # nobody decided
    assert wrong < names_of(without)["tug"][1] - 0.2
    assert page.snapshot()["others"] == ["model:m"]


def test_names_move_into_predefined_groups_that_are_empty(tmp_path):
    build = write_build(tmp_path / "build", {**GROUPS, 4: ("harbour", None, {})})
    page = opened(build, learns=True)
    assert page.snapshot()["predefined"] == ["harbour"]
    assert "harbour" not in page.snapshot()["groups"]
    change = page.decide([[{"action": "move", "names": ["tug"], "to": "harbour"}]], page.revision)
    assert change["names"]["tug"][0] == "harbour"
    assert "harbour" in page.snapshot()["groups"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'"' + b"x" * 2**23 + b'"', 413),
        (b'{"a":' * 200_000, 400),
        (b'{"actions": [[{"action": "drop"}], 3], "revision": 0}', 400),
    ],
)
def test_malformed_requests_are_refused(client, build, body, status):
    assert client.post("/api/decide", content=body, headers=TOKEN).status_code == status
    assert not (build / "ada.yaml").exists()


def test_malformed_queries_are_refused(reader):
    for query in ("", "?name=tug&start=-1", "?name=tug&start=" + "9" * 30):
        assert reader.get(f"/api/name{query}", headers=TOKEN).status_code == 400


TEXT = st.sampled_from([*NAMES, "ship", "pass", "nobody", "", " x ", "\ud800", "__proto__", "x" * 600])
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 3) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({field.name for kind in KINDS.values() for field in fields(kind)})
DECISION = st.fixed_dictionaries(
    {"action": st.sampled_from([*KINDS]) | VALUE},
    optional={field: st.lists(TEXT, max_size=3) | VALUE for field in FIELDS},
)
BODY = st.fixed_dictionaries(
    {},
    optional={
        "revision": st.just(0) | VALUE,
        "decisions": st.lists(DECISION, max_size=2) | VALUE,
        "names": VALUE,
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["decide", "undo", "skip", "labels"]), BODY)
def test_any_request_body_gets_a_response(build, path, body):
    (build / "ada.yaml").unlink(missing_ok=True)
    client = client_of(build)
    # the test client raises unhandled errors of the server
    answer = client.post(f"/api/{path}", content=json.dumps(body), headers=TOKEN)
    assert answer.status_code in (200, 400, 409, 422)
    if answer.status_code == 200 and path == "decide":
        assert read_decisions([build / "ada.yaml"])


@pytest.mark.slow  # starts a process
def test_review_command_serves_the_page_until_it_is_stopped(build, refusal):
    command = [sys.executable, "-m", "hgld", "review", str(build), "--no-browser", "--annotator", "ada", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            home, token = json.loads(process.stdout.readline())["address"].split("/#")
            assert len(token) >= 32
            assert requests.get(f"{home}/api/state", timeout=10).status_code == 403
            given = {"X-Hgld-Token": token}
            now = requests.get(f"{home}/api/state", headers=given, timeout=10).json()
            assert (now["who"], now["file"]) == ("ada", "decisions.yaml")
            body = {"revision": now["revision"], "decisions": [MOVE]}
            assert requests.post(f"{home}/api/decide", json=body, headers=given, timeout=30).status_code == 200
            port = urlsplit(home).port
            said = refusal("review", build, "--no-browser", "--annotator", "ada", "--port", port)
            assert f"--port {port} is in use" in said
        finally:
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in told) == (130, False)
    assert actions_in(build / "decisions.yaml") == ["move"]


def test_review_command_without_an_annotator_name_asks_for_the_option(build, monkeypatch):
    def nameless():
        raise KeyError("getpwuid(): uid not found: 54321")

    monkeypatch.setattr("getpass.getuser", nameless)
    said = CliRunner().invoke(review_command, [str(build), "--no-browser"], catch_exceptions=True)
    assert isinstance(said.exception, ConfigError)
    assert "--annotator NAME" in str(said.exception)

"""The page's server: who gets in, what it answers, and the verb that starts it."""

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest
import requests
from click.testing import CliRunner
from starlette.testclient import TestClient

from hgld.cli.hierarchy_commands import review
from hgld.errors import ConfigError
from hgld.pipelines.hierarchy.review.decisions.decision_files import append_decision, read_decisions
from hgld.pipelines.hierarchy.review.decisions.decisions import Move
from hgld.pipelines.hierarchy.review.decisions.journal import Journal
from hgld.pipelines.hierarchy.review.server import application
from hgld.pipelines.hierarchy.review.state import Review, Thumbnails
from hgld.pipelines.hierarchy.review.tables import BuildTables
from tests.pipelines.reviewed_build import write_build

TOKEN = {"X-Hgld-Token": "secret"}
HOME = "http://127.0.0.1:8123"
MOVE = {"action": "move", "names": ["mountain pass"], "to": "pass", "why": "a way"}


@pytest.fixture
def build(tmp_path):
    return write_build(tmp_path / "build")


@pytest.fixture
def client(build):
    review = Review(BuildTables(build), Journal(build / "ada.yaml", "ada", "annotator"), (), Thumbnails(None))
    return TestClient(application(review, "secret"), base_url=HOME)


API = [
    "/api/state",
    "/api/team",
    "/api/name?name=tug",
    "/api/group?label=ship",
    "/api/names",
    "/api/groups",
    "/api/queue",
    "/api/thumbnail?split=a&id=1",
]


@pytest.mark.parametrize("path", API)
@pytest.mark.parametrize("headers", [{}, {"X-Hgld-Token": "Secret"}, {"X-Hgld-Token": ""}, {"Cookie": "token=secret"}])
def test_no_data_without_the_token(client, path, headers):
    answer = client.get(path, headers=headers)
    assert answer.status_code == 403
    assert "tug" not in answer.text


@pytest.mark.parametrize("headers", [{"Host": "evil.example:8123"}, {"Host": "127.0.0.1:1"}, {"Host": ""}])
@pytest.mark.parametrize("path", ["/", "/api/state"])
def test_a_foreign_name_for_this_machine_is_refused(client, path, headers):
    assert client.get(path, headers=TOKEN | headers).status_code == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8123", "http://127.0.0.1:99"])
def test_another_sites_request_is_refused_even_with_the_token(client, build, origin):
    body = {"decisions": [MOVE], "revision": 0}
    answer = client.post("/api/decide", json=body, headers=TOKEN | {"Origin": origin})
    assert answer.status_code == 403
    assert not (build / "ada.yaml").exists()


def test_a_form_cannot_decide(client, build):
    assert client.post("/api/decide", data={"decision": "x"}).status_code == 403
    assert client.get("/api/decide", headers=TOKEN).status_code == 405
    assert not (build / "ada.yaml").exists()


@pytest.mark.parametrize("path", ["/", "/app.js", "/style.css", "/model.js"])
def test_the_page_is_bound_by_its_headers_and_holds_no_data(client, path):
    answer = client.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "tug" not in answer.text
    assert "http://" not in answer.text  # nothing from elsewhere; links to Wikimedia are https
    assert "innerHTML" not in answer.text


@pytest.mark.parametrize("path", ["/../server.py", "/%2e%2e/server.py", "/page/app.js", "/server.py", "/index.htm"])
def test_only_the_pages_own_files_are_served(client, path):
    assert client.get(path).status_code == 404


def test_decide_and_undo(client, build):
    answer = client.post("/api/decide", json={"decisions": [MOVE], "revision": 0}, headers=TOKEN | {"Origin": HOME})
    assert answer.status_code == 200
    assert answer.json()["names"] == {"mountain pass": ["pass", 0.0, "ada"]}
    assert [entry.decision.why for entry in read_decisions([build / "ada.yaml"])] == ["a way"]
    assert client.get("/api/state", headers=TOKEN).json()["decisions"] == 1
    stale = client.post("/api/undo", json={"revision": 0}, headers=TOKEN)
    assert (stale.status_code, stale.json()["stale"]) == (409, True)
    assert client.post("/api/undo", json={"revision": 1}, headers=TOKEN).status_code == 200
    refused = client.post("/api/undo", json={"revision": 2}, headers=TOKEN)
    assert (refused.status_code, refused.json()["error"][:16]) == (422, "there is nothing")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"\xff", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b'{"decisions": [], "revision": 0}', 400),
        (b'{"decisions": {}, "revision": 0}', 400),
        (b'{"decisions": [1], "revision": 0}', 400),
        (b'{"decisions": [{"action": "drop"}], "revision": "0"}', 400),
        (b'{"decisions": [{"action": "drop", "why": "w"}], "revision": 0}', 422),
        (b'"' + b"x" * 2**23 + b'"', 413),
        (b'["' * 200_000, 400),
        (b'{"a":' * 200_000, 400),
        (b"1" * 10_000, 400),
        (b'{"decisions": [{"action": ["drop"]}], "revision": 0}', 422),
        (b'{"decisions": [{"action": "drop", "\\ud800": "w"}], "revision": 0}', 422),
        (b'{"decisions": [{"action": "drop", "group": "\\ud800"}], "revision": 0}', 422),
        (b'{"decisions": [{"action": "drop", "group": "x"}], "revision": true}', 400),
        (b'{"decisions": [{"action": "drop", "group": "x"}], "revision": 0.0}', 400),
        (b'{"actions": [], "revision": 0}', 400),
        (b'{"actions": [[]], "revision": 0}', 400),
        (b'{"actions": [[{"action": "drop"}], 3], "revision": 0}', 400),
        (b'{"proposal": 3, "verdict": "accept", "revision": 0}', 400),
        (b'{"proposal": "x", "verdict": "accept", "revision": 0}', 422),
        (b'{"proposal": "x", "verdict": "maybe", "revision": 0}', 400),
        (b'{"proposal": "x", "verdict": "accept", "except": "tug", "revision": 0}', 400),
    ],
)
def test_bodies_that_are_no_decision(client, build, body, status):
    assert client.post("/api/decide", content=body, headers=TOKEN).status_code == status
    assert not (build / "ada.yaml").exists()


@pytest.mark.parametrize("query", ["", "?name=tug&start=-1", "?name=tug&start=x", "?name=tug&start=" + "9" * 30])
def test_queries_that_are_none(client, query):
    assert client.get(f"/api/name{query}", headers=TOKEN).status_code == 400


@pytest.mark.slow  # a process of the verb
def test_the_verb_serves_on_this_machine_until_it_is_stopped(build):
    command = [sys.executable, "-m", "hgld", "review", str(build), "--annotator", "ada", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        home, token = said["address"].split("/#")
        assert home.startswith("http://127.0.0.1:")
        assert len(token) >= 32
        assert requests.get(f"{home}/api/state", timeout=10).status_code == 403
        state = requests.get(f"{home}/api/state", headers={"X-Hgld-Token": token}, timeout=10).json()
        assert (state["who"], state["file"]) == ("ada", "decisions.yaml")
        body = {"decisions": [MOVE], "revision": 0}
        requests.post(f"{home}/api/decide", json=body, headers={"X-Hgld-Token": token}, timeout=10).raise_for_status()
        process.send_signal(signal.SIGKILL)
    (entry,) = read_decisions([build / "decisions.yaml"])
    assert entry.decision.why == "a way"


def test_a_user_without_a_name_is_asked_for_one(build, monkeypatch):
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 54321")

    monkeypatch.setattr("getpass.getuser", nameless)
    said = CliRunner().invoke(review, [str(build), "--no-browser"], catch_exceptions=True)
    assert isinstance(said.exception, ConfigError)
    assert "--annotator NAME" in str(said.exception)


def test_the_verb_tells_that_others_decide_in_the_same_file(build, monkeypatch):
    monkeypatch.setattr("hgld.pipelines.hierarchy.review.server.serve", lambda *_: None)
    append_decision(
        build / "decisions.yaml",
        Move(names=("tug",), to="pass", who="ada", when=datetime(2026, 1, 1, tzinfo=UTC), why="w"),
    )
    assert "decisions of ada too" in CliRunner().invoke(review, [str(build), "--annotator", "bob"]).stderr
    assert not CliRunner().invoke(review, [str(build), "--annotator", "ada"]).stderr


@pytest.mark.slow
def test_ctrl_c_and_a_taken_port(build):
    command = [sys.executable, "-m", "hgld", "review", str(build), "--no-browser"]
    environment = os.environ | {"LOGNAME": "ada"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as one:
        assert one.stdout is not None
        address = one.stdout.readline().split()[1]
        port = address.split(":")[2].split("/")[0]
        two = subprocess.run([*command, "--port", port], capture_output=True, text=True, timeout=60, check=False)
        one.send_signal(signal.SIGINT)
        _, said = one.communicate(timeout=30)
    assert one.returncode == 130
    assert "Traceback" not in said
    assert two.returncode == 2
    assert f"--port {port} is taken" in two.stderr

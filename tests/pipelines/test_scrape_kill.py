"""Scrapes killed at random moments lose no response and repeat at most the request in progress."""

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from hgld.pipelines.hierarchy.config import ScrapeConfig
from hgld.pipelines.hierarchy.scrape.scrape import run
from tests.pipelines.wikimedia_server import Wiki, WikimediaServer

CLASSES, KILLS = 60, 3
SCRAPE = """
import json, sys
from pathlib import Path
from hgld.pipelines.hierarchy.config import ScrapeConfig
from hgld.pipelines.hierarchy.scrape.scrape import run

options = json.loads(sys.argv[1])
config = ScrapeConfig(commons_url=options["url"], wikidata_url=options["url"], rate=1000.0, route=options["route"])
run(Path(options["root"]), {"train": Path(options["table"])}, config)
"""
TABLES = ("landmarks.parquet", "classes.parquet", "dropped.parquet")


def wiki(landmarks):
    """Return wikis with linked, unlinked, renamed and missing categories, and a deep graph of classes."""
    made = Wiki()
    for i in range(CLASSES):
        made.item(f"Q{i + 1}", f"class {i}", P279=[f"Q{i // 2 + 1}"] if i else [])
    for i in range(landmarks):
        name, subject = f"Landmark {i}", f"Q{10_000 + i}"
        if i % 7 == 6:
            continue  # categories without a page are missing on the wiki
        if i % 5 == 4:
            made.category(name, text=f"{{{{Category redirect|Landmark {i - i % 5}}}}}")
            continue
        made.item(subject, name, P31=[f"Q{random.Random(i).randrange(CLASSES // 2, CLASSES) + 1}"] if i % 11 else [])
        made.category(name, subject, linked=i % 3 > 0)
    return made


def write_table(file, landmarks):
    rows = (f"{i},https://commons.wikimedia.org/wiki/Category:Landmark_{i}\n" for i in range(landmarks))
    file.write_text("landmark_id,category\n" + "".join(rows))
    return file


def start(server, root, table, route):
    options = json.dumps({"url": server.url, "root": str(root), "table": str(table), "route": route})
    return subprocess.Popen([sys.executable, "-W", "error", "-c", SCRAPE, options], cwd=Path(__file__).parents[2])


def written(root):
    return [(root / "scrape" / name).read_bytes() for name in TABLES]


def wait_for(server, requests, process):
    """Wait until the server has received a number of requests; the process must still run."""
    deadline = time.monotonic() + 60
    while len(server.log) < requests:
        assert process.poll() is None, "the scrape ended before it could be killed"
        assert time.monotonic() < deadline, "the scrape sends no requests"
        time.sleep(0.001)


def kill(process, server):
    """Kill the process, and return the server's last request, which may have been in progress."""
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    time.sleep(0.05)  # give the server time to read a request that was already sent
    return server.log[-1]


def keys(requests):
    return Counter((request.kind, key) for request in requests for key in request.keys)


@pytest.mark.slow
@pytest.mark.parametrize(("route", "landmarks", "delay"), [("api", 600, 0.02), ("html", 200, 0.005)])
def test_scrape_killed_at_random_moments_resumes_without_repeated_requests(tmp_path, route, landmarks, delay):
    table = write_table(tmp_path / "train.csv", landmarks)
    with WikimediaServer(wiki(landmarks), delay) as server:
        config = ScrapeConfig(commons_url=server.url, wikidata_url=server.url, rate=1000.0, route=route)
        run(tmp_path / "whole", {"train": table}, config)
        whole, asked = written(tmp_path / "whole"), keys(server.log)
        # Kills are spread over the run; each may cause at most one repeated request.
        mean_gap = (len(server.log) - KILLS) / KILLS
    assert mean_gap > 1.5, "too few requests for so many kills"
    chance = random.Random(7)
    with WikimediaServer(wiki(landmarks), delay) as server:
        in_flight = []
        for n in range(KILLS):
            process = start(server, tmp_path / "killed", table, route)
            wait_for(server, max(len(server.log) + 1, round((n + chance.random()) * mean_gap)), process)
            time.sleep(chance.uniform(0, 2 * delay))
            in_flight.append(kill(process, server))
        assert start(server, tmp_path / "killed", table, route).wait(120) == 0
        assert written(tmp_path / "killed") == whole
        repeated = keys(server.log) - asked
        assert repeated <= keys(in_flight), "a title was requested again after its response"
        assert repeated.keys() <= asked.keys()
        assert keys(server.log).keys() == asked.keys()

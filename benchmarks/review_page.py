"""Delay of the review page from an action to the frame that shows it, with 5,700 names of 200,000 landmarks.

    PYTHONPATH=. python benchmarks/review_page.py [--rounds 9] [--names 5700] [--opening]

Headless Chromium (Debian's) on the same machine, by the page's own clock; medians and the slowest of the rounds, in
milliseconds. After each decision all other names are placed anew and the queue is made anew; the next name is active in
the frame after the press, whatever that takes. The aim is 150 ms an action, and 1 s with 50,000 names.

``--opening`` measures the opening in place of the actions, a new ``hgld review`` a round: from the command to the
address that it prints, from there to the frame that shows the first names, and the server's processor time until then.
The aim is 2 s for the page.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.pipelines.headless_chromium import Page
from tests.pipelines.reviewed_build import write_build
from tests.pipelines.test_review_browser import FLUID, READY, WIDE, many, milliseconds, page_of

COMMAND, PAGE, SERVER = (
    "the command, until it prints the address",
    "the page",
    "processor time of the server until then",
)
FRAME = "new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(true))))"


def act(build: Path, profile: Path, rounds: int, names: int) -> dict[str, list[float]]:
    """Return milliseconds of every action, one a round."""
    spent: dict[str, list[float]] = {name: [] for name in FLUID}
    with page_of(build, profile, is_taught=True) as page:
        for _ in range(rounds):
            page.run("document.querySelector('#groups .row.all').click()")
            page.until(f"document.getElementById('names').scrollHeight > {names} * 40")
            page.run("document.getElementById('names').focus()")
            for name, action in FLUID.items():
                spent[name].append(milliseconds(page, *action))
    return spent


def open_anew(build: Path, profile: Path, rounds: int) -> dict[str, list[float]]:
    """Return milliseconds of opening a build's page, one a round."""
    spent: dict[str, list[float]] = {COMMAND: [], PAGE: [], SERVER: []}
    command = (sys.executable, "-m", "hgld", "review", str(build), "--who", "ada", "--no-browser", "--json")
    with Page(profile, *WIDE) as page:
        for _ in range(rounds):
            begun = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
                try:
                    assert server.stdout is not None
                    address = json.loads(server.stdout.readline())["address"]
                    printed = time.perf_counter()
                    page.open(address)
                    page.until(f"{READY} && document.querySelector('#names .row') !== null && {FRAME}")
                    shown = time.perf_counter()
                    used = _processor_seconds(server.pid)
                finally:
                    server.terminate()
            for name, seconds in zip(spent, (printed - begun, shown - printed, used), strict=True):
                spent[name].append(1000 * seconds)
    return spent


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def table(spent: Mapping[str, Sequence[float]]) -> str:
    rows = [f"| {name} | {statistics.median(found):.0f} | {max(found):.0f} |" for name, found in spent.items()]
    return "\n".join(["| ms | median | slowest |", "|---|---:|---:|", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--names", type=int, default=5_700)
    parser.add_argument("--opening", action="store_true", help="measure the opening in place of the actions")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        groups = max(78, told.names // 250)
        build, profile = (
            write_build(Path(folder, "build"), many(told.names, groups, 35 * told.names)),
            Path(folder, "p"),
        )
        measured = (
            open_anew(build, profile, told.rounds) if told.opening else act(build, profile, told.rounds, told.names)
        )
    print(table(measured))


if __name__ == "__main__":
    main()

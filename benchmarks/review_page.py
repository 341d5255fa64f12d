"""Delay of the review page from an action to the frame that shows it, with 5,700 names of 200,000 landmarks.

    PYTHONPATH=. python benchmarks/review_page.py [--rounds 9]

Headless Chromium (Debian's) on the same machine, by the page's own clock; medians and the slowest of the rounds, in
milliseconds. The aim is 100 ms an action.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from tests.pipelines.reviewed_build import write_build
from tests.pipelines.test_review_browser import FLUID, many, milliseconds, page_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    spent: dict[str, list[float]] = {name: [] for name in FLUID}
    with tempfile.TemporaryDirectory() as folder:
        build = write_build(Path(folder, "build"), many(5_700, 78, 200_000))
        with page_of(build, Path(folder, "profile")) as page:
            for _ in range(options.rounds):
                page.run("document.querySelector('#groups .row.all').click()")
                page.until("document.getElementById('names').scrollHeight > 5700 * 40")
                page.run("document.getElementById('names').focus()")
                for name, action in FLUID.items():
                    spent[name].append(milliseconds(page, *action))
    print("| action | median | slowest |\n|---|---:|---:|")
    for name, found in spent.items():
        print(f"| {name} | {statistics.median(found):.0f} | {max(found):.0f} |")


if __name__ == "__main__":
    main()

"""Delay of the review page from an action to the frame that shows it, with 5,700 names of 200,000 landmarks.

    PYTHONPATH=. python benchmarks/review_page.py [--rounds 9] [--names 5700]

Headless Chromium (Debian's) on the same machine, by the page's own clock; medians and the slowest of the rounds, in
milliseconds. After each decision all other names are placed anew and the queue is made anew; the next name is active in
the frame after the press, whatever that takes. The aim is 150 ms an action, and 1 s with 50,000 names.
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
    parser.add_argument("--names", type=int, default=5_700)
    options = parser.parse_args()
    spent: dict[str, list[float]] = {name: [] for name in FLUID}
    with tempfile.TemporaryDirectory() as folder:
        build = write_build(
            Path(folder, "build"), many(options.names, max(78, options.names // 250), 35 * options.names)
        )
        with page_of(build, Path(folder, "profile"), is_taught=True) as page:
            for _ in range(options.rounds):
                page.run("document.querySelector('#groups .row.all').click()")
                page.until(f"document.getElementById('names').scrollHeight > {options.names} * 40")
                page.run("document.getElementById('names').focus()")
                for name, action in FLUID.items():
                    spent[name].append(milliseconds(page, *action))
    print("| action | median | slowest |\n|---|---:|---:|")
    for name, found in spent.items():
        print(f"| {name} | {statistics.median(found):.0f} | {max(found):.0f} |")


if __name__ == "__main__":
    main()

"""Searching on the review page: what opens a group, and what keys of a group act on meanwhile."""

import pytest

from tests.pipelines.headless_chromium import CHROMIUM, Page
from tests.pipelines.reviewed_build import write_build
from tests.pipelines.test_review_browser import DIALOG, TOAST, after, decided, page_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
TITLE = "document.getElementById('title').textContent"
GROUP = """(label =>
  [...document.querySelectorAll('#groups .row')].find((r) => r.querySelector('.label').textContent === label))"""


def click(page: Page, selector: str) -> None:
    """With the mouse, which moves the focus too."""
    box = page.run(f"document.querySelector('{selector}').getBoundingClientRect().toJSON()")
    for kind in ("mousePressed", "mouseReleased"):
        page.mouse(kind, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def test_opening_a_group_that_was_searched_ends_the_search(tmp_path):
    with page_of(write_build(tmp_path / "build"), tmp_path / "profile") as page:
        for open_first in (
            lambda: click(page, "#groups .row.group"),
            lambda: [page.press(key) for key in ("Enter", "ArrowLeft", "Enter")],
        ):
            page.press("/")
            page.write("mount")
            page.until("document.querySelectorAll('#groups .row').length === 1")
            open_first()
            page.until(f"{TITLE} === 'mountain' && document.querySelectorAll('#names .row').length === 3")
            assert page.run("document.getElementById('search').value") == ""
            assert page.run("document.querySelector('#groups .active .label').textContent") == "mountain"
            assert page.run("document.querySelectorAll('#groups .row').length") > 4
            page.press("r")
            page.until(f"{DIALOG} && document.querySelector('#dialog .about').textContent === 'mountain'")
            page.press("Escape")
            page.until(f"!{DIALOG}")
            page.run("document.querySelector('#groups .row.all').click()")


def test_keys_of_a_group_do_nothing_while_searching(tmp_path):
    build = write_build(tmp_path / "build")
    with page_of(build, tmp_path / "profile") as page:
        page.run(f"{GROUP}('ship').click()")
        page.until(f"{TITLE} === 'ship'")
        page.press("/")
        page.write("pass")
        page.press("Enter")
        page.press("ArrowLeft")
        page.until("document.activeElement.id === 'groups'")
        assert page.run("document.querySelector('#groups .active .label').textContent") == "pass"
        for key in "drgnhs":
            page.run(f"{TOAST.removesuffix('.textContent')}.textContent = ''")
            page.press(key)
            page.until(f"{TOAST}.startsWith('Open a group first')")
            assert not page.run(DIALOG)
        page.press("ArrowDown")
        page.until("document.querySelector('#details h2').textContent === 'pass'")  # looked at, not opened
        assert page.run("document.getElementById('search').value") == "pass"
    assert decided(build) == []


def test_names_found_from_the_history_can_be_decided(tmp_path):
    build = write_build(tmp_path / "build")
    with page_of(build, tmp_path / "profile") as page:
        click(page, "#groups .row.history")
        assert page.run("document.getElementById('actions').hidden")
        page.press("/")
        page.write("tug")
        page.until("document.querySelectorAll('#names .row').length === 1")
        click(page, "#act-confirm")
        after(page, 1)
    assert len(decided(build)) == 1

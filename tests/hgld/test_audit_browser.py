"""The audit page in a browser: keyboard shortcuts, stored verdicts, and files of the accepted findings."""

import pytest

from tests.hgld.test_audit_files import EVIL, written

__all__ = ["written"]
pytestmark = pytest.mark.slow
STATE = "document.getElementById('state').textContent"


def saved(page, button):
    page.run(
        "window.text = null; URL.createObjectURL = (b) => { b.text().then((t) => { window.text = t; }); return '#'; }"
    )
    page.run(f"document.getElementById('{button}').click()")
    return page.until("window.text")


def test_keyboard_shortcuts_accept_and_reject_findings(written, chromium):
    folder, _ = written
    chromium.open((folder / "audit.html").as_uri())
    chromium.until(f"{STATE} === '1 of 4: 0 accepted, 0 rejected, 4 open'")
    assert chromium.run("document.getElementById('save-exclude').disabled")
    for key, state in [
        ("a", "2 of 4: 1 accepted, 0 rejected, 3 open"),
        ("x", "3 of 4: 1 accepted, 1 rejected, 2 open"),
        ("k", "2 of 4: 1 accepted, 1 rejected, 2 open"),
        ("u", "2 of 4: 1 accepted, 0 rejected, 3 open"),
        ("j", "3 of 4: 1 accepted, 0 rejected, 3 open"),
        ("a", "4 of 4: 2 accepted, 0 rejected, 2 open"),
    ]:
        chromium.press(key)
        chromium.until(f"{STATE} === '{state}'")
    lines = (folder / "exclude.csv").read_text().splitlines()
    assert saved(chromium, "save-exclude").splitlines() == lines[:2]
    assert saved(chromium, "save-decisions") == (folder / "decisions.yaml").read_text()
    chromium.open((folder / "audit.html").as_uri())
    chromium.until(f"{STATE} === '1 of 4: 2 accepted, 0 rejected, 2 open'")
    chromium.run("document.querySelector('tbody th').textContent = 'supercategory_of_the_landmark_or_building'")
    chromium.resize(420, 900)
    chromium.until("window.innerWidth === 420 && document.documentElement.scrollWidth <= 420")
    assert chromium.run("(e => e.scrollWidth - e.clientWidth)(document.querySelector('.scroll'))") <= 0
    assert EVIL in chromium.run("document.querySelector('h1').textContent")
    assert not chromium.errors
    assert not chromium.dialogs

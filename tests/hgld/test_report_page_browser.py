"""The report page in a real browser: its script runs, scripts in names do not, and the page fits phones."""

import html
import re
import shutil
import subprocess

import pytest
from PIL import Image

from hgld.report_page.page import make_report
from tests.hgld.test_report_page_page import write_run
from tests.pipelines.headless_chromium import Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install Debian's package chromium"),
]


def browse(tmp_path, *options):
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    hostile = ["<script>document.title='owned'</script>", "<img src=x onerror=\"document.title='owned'\">"]
    write_run(folder / "first", names=hostile)
    write_run(folder / "second", seed=1, names=hostile)
    make_report([folder / "first", folder / "second"], folder / "r.html", title="A report")
    return folder / "r.html"


def test_tables_sort_and_scripts_in_names_do_not_run(tmp_path, report):
    with Page(tmp_path / "profile", 1280, 900) as page:
        page.open(report.as_uri())
        page.until("document.readyState === 'complete' && document.querySelector('.sortable button') !== null")
        table = "document.querySelector('table.sortable.scores')"
        cells = f"[...{table}.querySelectorAll('tbody tr > :nth-child(2) .value')]"
        head = f"{table}.querySelector('thead tr:nth-child(2) button')"
        for turn in ("ascending", "descending"):
            page.run(f"{head}.focus()")
            page.press("Enter")
            page.until(f"{head}.parentElement.getAttribute('aria-sort') === '{turn}'")
            values = page.run(f"{cells}.map(cell => parseFloat(cell.textContent))")
            assert len(values) == 2
            assert values == sorted(values, reverse=turn == "descending")
        assert page.run("document.title") == "A report"
        assert not page.errors
        assert not page.dialogs


def test_dark_and_light_themes_differ_and_are_not_blank(tmp_path, report):
    found = {}
    for theme, options in {"light": [], "dark": ["--blink-settings=preferredColorScheme=0"]}.items():
        picture = tmp_path / f"{theme}.png"
        browse(tmp_path, "--window-size=1280,1600", f"--screenshot={picture}", *options, report.as_uri())
        with Image.open(picture) as image:
            found[theme] = image.convert("RGB").getpixel((3, 3)), len(image.convert("RGB").getcolors(1 << 24) or ())
    assert min(found["light"][0]) > 200
    assert max(found["dark"][0]) < 60
    assert all(colors > 50 for _, colors in found.values())


def test_a_phone_shows_the_page_without_horizontal_scrolling(tmp_path, report):
    # The page is in a frame of 420 pixels, because windows of Chromium are at least 500 pixels wide.
    frame = tmp_path / "phone.html"
    measure = "const e = this.contentDocument.documentElement; document.title = `${e.clientWidth} ${e.scrollWidth}`"
    text = html.escape(report.read_text(encoding="utf-8"))
    frame.write_text(f'<iframe width=420 height=800 style="border:0" onload="{measure}" srcdoc="{text}"></iframe>')
    shown = browse(tmp_path, "--dump-dom", frame.as_uri())
    [(width, needed)] = re.findall(r"<title>(\d+) (\d+)</title>", shown)
    assert 400 <= int(width) <= 420
    assert int(needed) <= int(width)

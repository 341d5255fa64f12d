"""The report page in a real browser: its scripts run, scripts in names do not, and the page fits phones."""

import pytest
from PIL import Image

from hgld.report_page.page import make_report
from tests.hgld.test_report_page_page import write_run
from tests.pipelines.headless_chromium import CHROMIUM, Page

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    hostile = ["<script>document.title='owned'</script>", "<img src=x onerror=\"document.title='owned'\">"]
    write_run(folder / "first", names=hostile)
    write_run(folder / "second", seed=1, names=hostile)
    make_report([folder / "first", folder / "second"], folder / "r.html", title="A report")
    return folder / "r.html"


def test_tables_sort_and_the_page_fits_both_widths_and_themes(tmp_path, report):
    with Page(tmp_path / "profile", 1280, 900) as page:
        # A smooth scroll to the last focus would go on while the lasso is drawn.
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
        page.open(report.as_uri())
        page.until("performance.getEntriesByName('icicle drawn').length === 1")
        assert page.run("document.documentElement.scrollHeight") < 4_000  # later sections are collapsed
        worst = "[...document.querySelectorAll('[data-path]:not([hidden])')].map(one => one.dataset.path)"
        everything = page.run(worst)
        page.run("document.querySelector('canvas').focus()")
        page.press("ArrowDown")
        page.until(f"{worst}.length > 0 && {worst}.every(path => path.endsWith({worst}[0].slice(-2)))")
        chosen = page.run(worst)
        assert len(chosen) < len(everything)
        assert chosen == [path for path in everything if path.endswith(chosen[0][-2:])]
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
        page.run("document.querySelectorAll('details').forEach(one => one.open = true)")
        page.until(
            "performance.getEntriesByName('map drawn').length === 1"
            " && (map => map.width === map.clientWidth)(document.querySelector('.map canvas'))"
        )
        told = "document.querySelector('.map [role=status]').textContent"
        assert page.run(told) == "24 images."
        page.run("getSelection().selectAllChildren(document.body)")  # browsers drag selected text, unless told not to
        place = "(r => [r.left, r.top, r.width])(document.querySelector('.map canvas').getBoundingClientRect())"
        around_all = f"{told}.startsWith('24 images: ') && {told}.includes('test/0000')"
        for _ in range(9):  # an image that is decoded late may move the canvas under the lasso
            page.run("document.querySelector('.map').scrollIntoView({behavior: 'instant'})")
            left, top, side = page.run(place)
            page.mouse("mousePressed", left + 1, top + 1)
            for x, y in ((1, 0), (1, 1), (0, 1)):
                page.mouse("mouseMoved", left + 1 + x * (side - 2), top + 1 + y * (side - 2))
            page.mouse("mouseReleased", left + 1, top + side - 1)
            if page.run(around_all):
                break
        assert page.run(around_all), (page.run(told), page.run(place))
        page.run("document.querySelector('.map .legend button').focus()")
        page.press("Enter")
        page.until(f"/^12 images: .* 12[.] /.test({told})")  # all images of one of two classes
        opened = "document.querySelectorAll('[popover]:popover-open figure.tile').length"
        page.run("document.querySelector('.confusion td button').focus()")
        page.press("Enter")
        page.until(f"{opened} >= 2 && {opened} % 2 === 0")  # queries, each with its first result
        page.press("Escape")
        page.until(f"{opened} === 0 && document.activeElement.matches('.confusion td button')")
        corners = []
        for width, scheme in ((1280, "light"), (420, "dark")):
            page.scheme(scheme)
            page.resize(width, 900)
            page.until(f"innerWidth === {width} && document.documentElement.scrollWidth <= {width}")
            page.screenshot(tmp_path / "page.png")
            with Image.open(tmp_path / "page.png").convert("RGB") as image:
                corners.append(image.getpixel((3, 3)))
                assert len(image.getcolors(1 << 24) or ()) > 50
        assert min(corners[0]) > 200
        assert max(corners[1]) < 60
        assert page.run("document.title") == "A report"
        assert (page.errors, page.dialogs) == ([], [])

"""The report page in a real browser: its scripts run, and the page fits phones."""

import pytest
from PIL import Image

from hgld.report_page.page import make_report
from tests.hgld.test_report_page_page import write_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report(module_path):
    for seed in (0, 1):
        write_run(module_path / f"{seed}", seed=seed)
    make_report([module_path / "0", module_path / "1"], module_path / "r.html")
    return module_path / "r.html"


def test_tables_sort_and_the_page_fits_both_widths_and_themes(tmp_path, chromium, report):
    # A smooth scroll to the last focus would go on while the lasso is drawn.
    chromium.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    chromium.open(report.as_uri())
    chromium.until("performance.getEntriesByName('icicle drawn').length === 1")
    assert chromium.run("document.documentElement.scrollHeight") < 4_000  # later sections are collapsed
    worst = "[...document.querySelectorAll('[data-path]:not([hidden])')].map(one => one.dataset.path)"
    everything = chromium.run(worst)
    chromium.run("document.querySelector('canvas').focus()")
    chromium.press("ArrowDown")
    chromium.until(f"{worst}.length > 0 && {worst}.every(path => path.endsWith({worst}[0].slice(-2)))")
    chosen = chromium.run(worst)
    assert len(chosen) < len(everything)
    assert chosen == [path for path in everything if path.endswith(chosen[0][-2:])]
    table = "document.querySelector('table.sortable.scores')"
    cells = f"[...{table}.querySelectorAll('tbody tr > :nth-child(2) .value')]"
    head = f"{table}.querySelector('thead tr:nth-child(2) button')"
    for turn in ("ascending", "descending"):
        chromium.run(f"{head}.focus()")
        chromium.press("Enter")
        chromium.until(f"{head}.parentElement.getAttribute('aria-sort') === '{turn}'")
        values = chromium.run(f"{cells}.map(cell => parseFloat(cell.textContent))")
        assert len(values) == 2
        assert values == sorted(values, reverse=turn == "descending")
    chromium.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    chromium.until(
        "performance.getEntriesByName('map drawn').length === 1"
        " && (map => map.width === map.clientWidth)(document.querySelector('.map canvas'))"
    )
    told = "document.querySelector('.map [role=status]').textContent"
    assert chromium.run(told) == "24 images."
    chromium.run("getSelection().selectAllChildren(document.body)")  # browsers drag selected text, unless told not to
    place = "(r => [r.left, r.top, r.width])(document.querySelector('.map canvas').getBoundingClientRect())"
    around_all = f"{told}.startsWith('24 images: ') && {told}.includes('test/0000')"
    for _ in range(9):  # an image that is decoded late may move the canvas under the lasso
        chromium.run("document.querySelector('.map').scrollIntoView({behavior: 'instant'})")
        left, top, side = chromium.run(place)
        chromium.mouse("mousePressed", left + 1, top + 1)
        for x, y in ((1, 0), (1, 1), (0, 1)):
            chromium.mouse("mouseMoved", left + 1 + x * (side - 2), top + 1 + y * (side - 2))
        chromium.mouse("mouseReleased", left + 1, top + side - 1)
        if chromium.run(around_all):
            break
    assert chromium.run(around_all), (chromium.run(told), chromium.run(place))
    chromium.run("document.querySelector('.map .legend button').focus()")
    chromium.press("Enter")
    chromium.until(f"/^12 images: .* 12[.] /.test({told})")  # all images of one of two classes
    opened = "document.querySelectorAll('[popover]:popover-open figure.tile').length"
    chromium.run("document.querySelector('.confusion td button').focus()")
    chromium.press("Enter")
    chromium.until(f"{opened} >= 2 && {opened} % 2 === 0")  # queries, each with its first result
    chromium.press("Escape")
    chromium.until(f"{opened} === 0 && document.activeElement.matches('.confusion td button')")
    corners = []
    for width, scheme in ((1280, "light"), (420, "dark")):
        chromium.scheme(scheme)
        chromium.resize(width, 900)
        chromium.until(f"innerWidth === {width} && document.documentElement.scrollWidth <= {width}")
        chromium.screenshot(tmp_path / "chromium.png")
        with Image.open(tmp_path / "chromium.png").convert("RGB") as image:
            corners.append(image.getpixel((3, 3)))
            assert len(image.getcolors(1 << 24) or ()) > 50
    assert min(corners[0]) > 200
    assert max(corners[1]) < 60
    assert (chromium.errors, chromium.dialogs) == ([], [])

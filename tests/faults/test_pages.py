"""Pages with hostile names in Chromium: no script in a name runs, and the page requests nothing."""

import numpy as np
import polars as pl
import pytest

from hgld.report_page.page import make_report
from tests.faults.commands import succeed
from tests.hgld.test_report_page_page import write_run

pytestmark = pytest.mark.slow
HOSTILE = (
    "<script>window.broken=1</script>",
    "</script><script>window.broken=1</script>",
    "</style><img src=https://evil.example/x onerror=window.broken=1>",
    "\"'><svg onload=window.broken=1>",
    "javascript:window.broken=1",
    "data:text/html,<script>window.broken=1</script>",
    "\u202egnp.\u2066exe\u2069",
    "]]><!--<iframe srcdoc='<script>parent.broken=1</script>'>",
    "{{7*7}} ${7*7} %s __proto__",
    "x" * 5_000,
)
LISTEN = (
    "window.broken = undefined; window.blocked = [];"
    "addEventListener('securitypolicyviolation', e => window.blocked.push(`${e.violatedDirective} ${e.blockedURI}`))"
)


def names(count):
    """Return this many distinct hostile names."""
    return [f"{HOSTILE[n % len(HOSTILE)]}{n}" for n in range(count)]


def report(folder):
    write_run(folder / "<b>run'\"", names=list(HOSTILE))
    write_run(folder / "javascript:x", seed=1, names=list(HOSTILE))
    make_report([folder / "<b>run'\"", folder / "javascript:x"], folder / "r.html", title=HOSTILE[1])
    return folder / "r.html"


def build_report(folder):
    (folder / "list.csv").write_text(
        "name\n" + "\n".join(f'"{n.replace(chr(34), chr(34) * 2)[:300]}"' for n in names(12))
    )
    succeed("build-hierarchy --classes list.csv --encoder lexical --out out", folder, folder)
    return folder / "out" / "report.html"


def tree(folder):
    build_report(folder)
    succeed("show out --html tree.html", folder, folder)
    return folder / "tree.html"


def audit(folder):
    rng, count = np.random.default_rng(0), 200
    fine = np.arange(count) % 10
    rows = np.eye(10, dtype=np.float32)[fine] + 0.05 * rng.standard_normal((count, 10), dtype=np.float32)
    np.save(folder / "e.npy", rows)
    shown = fine.copy()
    shown[:5] = (shown[:5] + 1) % 10
    columns = {"fine": [HOSTILE[n] for n in shown], "coarse": [f"{HOSTILE[n % 2]}{n % 2}" for n in shown]}
    pl.DataFrame({"key": names(count), **columns}).write_parquet(folder / "e.labels.parquet")
    succeed("audit --embeddings e.npy --out out", folder, folder)
    return folder / "out" / "audit.html"


SCRIPTS = {"report": 3, "build_report": 2, "tree": 2, "audit": 1}  # the page's own script, and data of tree and map


def assert_harmless(page, scripts):
    assert page.run("window.broken === undefined")
    assert page.run("document.scripts.length") == scripts
    assert page.run("window.blocked") == []
    assert (page.errors, page.dialogs) == ([], [])


def test_hostile_names_run_no_script_and_load_nothing(chromium, tmp_path):
    pages = {}
    for make in (report, build_report, tree, audit):
        (tmp_path / make.__name__).mkdir()
        pages[make.__name__] = make(tmp_path / make.__name__)
    chromium.call("Page.addScriptToEvaluateOnNewDocument", source=LISTEN)
    chromium.call("Network.enable")
    for name, file in pages.items():
        chromium.requests.clear()
        chromium.open(file.as_uri())
        chromium.until("document.readyState === 'complete' && location.href.startsWith('file:')")
        assert chromium.run("document.body.textContent.includes('window.broken=1')"), name
        chromium.run("document.querySelectorAll('button, summary, th').forEach(e => e.click())")
        made = "[href^='javascript' i], [onclick], [onerror], [onload]"
        assert chromium.run(f'document.querySelectorAll("{made}").length') == 0, name
        assert_harmless(chromium, SCRIPTS[name])
        assert {one for one in chromium.requests if not one.startswith("data:")} == {file.as_uri()}, name

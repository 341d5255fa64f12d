"""The scrape by both routes against a real MediaWiki: categories with redirects and missing pages."""

import os
import shutil
import socket
import sqlite3
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen
from xml.sax.saxutils import escape

import pytest

from hgld.pipelines.hierarchy.config import ScrapeConfig
from hgld.pipelines.hierarchy.scrape.scrape import run
from hgld.pipelines.hierarchy.scrape.titles import category_title
from tests.pipelines.test_scrape import COMMONS, EXPECTED, by_name, world, write_table
from tests.pipelines.wikimedia_server import WikimediaServer

# -- a wiki on this machine: installed into a folder from Debian's package, filled, served by PHP ---------------------

DEBIAN = Path("/usr/share/mediawiki")
# templates of Commons need the extension, and MediaWiki needs a skin to render pages
EXTENSION, SKIN = "ParserFunctions", "Vector"
_NOT_COPIED = ("LocalSettings.php", "config", "extensions", "extensions-core", "images", "skins")
_SETTINGS = """
$wgJobRunRate = 0;  // a page view would run jobs, and those rewrite the page properties that the test states
$wgLocalisationCacheConf["store"] = "array";  // messages from a file: a page takes a third less time
$wgCacheDirectory = __DIR__ . "/images";
"""


class MediaWikiSite:
    """A wiki in ``folder``, filled by MediaWiki's maintenance scripts."""

    def __init__(self, folder):
        self._code, self._data, self._files = folder / "mediawiki", folder / "data", folder
        self._port = _free_port()
        self.url = f"http://127.0.0.1:{self._port}/api.php"
        self._copy()
        self._maintain(
            *("install.php", "--dbtype=sqlite", f"--dbpath={self._data}", "--dbname=wiki", "--scriptpath="),
            *(f"--server=http://127.0.0.1:{self._port}", "--lang=en", "--pass=correct-horse-battery"),
            *(f"--extensions={EXTENSION}", f"--skins={SKIN}", "Wikimedia Commons", "Admin"),
        )
        with (self._code / "LocalSettings.php").open("a") as settings:
            settings.write(_SETTINGS)

    def edit(self, title, text):
        """Save one page like an editor."""
        self._maintain("edit.php", "--user=Admin", title, stdin=text)

    def import_pages(self, pages):
        """Save many pages, given as wikitext by title, from one XML dump."""
        members = "".join(
            f"<page><title>{escape(title)}</title><ns>{14 if title.startswith('Category:') else 10}</ns>"
            "<revision><timestamp>2024-01-01T00:00:00Z</timestamp><contributor><username>Admin</username></contributor>"
            f'<model>wikitext</model><format>text/x-wiki</format><text xml:space="preserve">{escape(text)}</text>'
            "</revision></page>"
            for title, text in pages.items()
        )
        dump = self._files / "dump.xml"
        dump.write_text(
            f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11">{members}</mediawiki>'
        )
        self._maintain("importDump.php", "--quiet", "--no-updates", str(dump))

    def state_items(self, items):
        """Write the page property ``wikibase_item`` of each title, as the Wikibase extension does."""
        with sqlite3.connect(self._data / "wiki.sqlite") as database:
            for title, item in items.items():
                key = title.removeprefix("Category:").replace(" ", "_")
                wanted = database.execute(
                    "SELECT page_id FROM page WHERE page_namespace = 14 AND page_title = ?", (key,)
                ).fetchone()
                assert wanted is not None, f"{title} is not on the wiki"
                database.execute(
                    "INSERT INTO page_props (pp_page, pp_propname, pp_value) VALUES (?, 'wikibase_item', ?)",
                    (*wanted, item),
                )
        database.close()

    @contextmanager
    def served(self, workers=2):
        """Serve the wiki within the context; yield the URL of its action API."""
        log = self._files / "php.log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                ["php", "-d", "opcache.enable_cli=1", "-S", f"127.0.0.1:{self._port}", "-t", str(self._code)],
                cwd=self._code,
                env={**os.environ, "PHP_CLI_SERVER_WORKERS": str(workers)},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                self._wait(server, log)
                yield self.url
            finally:
                os.killpg(server.pid, 15)  # stop the process group, because PHP's workers are separate processes
                server.wait(10)

    def _wait(self, server, log):
        for _ in range(100):
            assert server.poll() is None, log.read_text(errors="replace")
            try:
                with urlopen(f"{self.url}?action=query&format=json", timeout=30) as answer:
                    assert answer.status == 200
                    return
            except URLError:
                time.sleep(0.1)
        raise AssertionError(f"PHP's server does not answer: {log.read_text(errors='replace')}")

    def _copy(self):
        """Copy the required parts of Debian's package; its other extensions take 90 MB."""
        self._data.mkdir(parents=True)
        shutil.copytree(DEBIAN, self._code, ignore=lambda folder, _: _NOT_COPIED if Path(folder) == DEBIAN else ())
        (self._code / "images").mkdir()
        shutil.copytree(DEBIAN / "extensions" / EXTENSION, self._code / "extensions" / EXTENSION)
        shutil.copytree(DEBIAN / "skins" / SKIN, self._code / "skins" / SKIN)

    def _maintain(self, script, *arguments, stdin=""):
        command = ["php", f"maintenance/{script}", *arguments]
        done = subprocess.run(command, cwd=self._code, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


# -- the scrape --------------------------------------------------------------------------------------------------------

IS_INSTALLED = DEBIAN.is_dir() and shutil.which("php")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not IS_INSTALLED, reason="needs Debian's packages mediawiki, php-cli and php-sqlite3"),
]

CROWDED = "Members_and_no_page"  # MediaWiki serves such a page with HTTP 200
# Reduced versions of Commons' templates; they render to the same HTML structure as pages of Commons.
TEMPLATES = {
    "Template:Category redirect": (
        '<table class="messagebox"><tr><td>This category is located at '
        "'''{{#ifeq:{{NAMESPACE:{{{1}}}}}|Category|[[:{{{1}}}]]|[[:Category:{{{1}}}]]}}'''<br />"
        "Note: This category should be empty.</td></tr></table>"
    ),
    "Template:Cat-redirect": "#REDIRECT [[Template:Category redirect]]",
    "Template:Wikidata Infobox": (
        '<table class="fileinfotpl-type-information vevent infobox mw-collapsible" dir="ltr" id="wdinfobox">'
        '<caption class="fn org" id="wdinfoboxcaption"><b>{{PAGENAME}} </b></caption>'
        '{{#if:{{{classes|}}}|<tr><th class="wikidatainfobox-lcell">Instance of</th><td>{{{classes}}}</td></tr>}}'
        '<tr class="wdinfo_nomobile"><th class="wikidatainfobox-lcell">Country</th><td>'
        "[https://www.wikidata.org/wiki/Q183 Germany]</td></tr>"
        '<tr><td colspan="2">[https://www.wikidata.org/wiki/{{{item}}} Wikidata: {{{item}}}]</td></tr></table>'
    ),
}


def wikitext(wiki, title, names):
    """Return the text of a category page; its infobox has the names of the classes."""
    page = wiki.pages[title]
    if "redirect" in page:
        return f"#REDIRECT [[:{page['redirect']}]]"
    if page.get("item") not in wiki.entities:
        return page["text"]
    classes = "<br />".join(name.replace("<", "&lt;") for name in names)
    return f"{{{{Wikidata Infobox|item={page['item']}|classes={classes}}}}}\n[[Category:Landmarks]]"


@pytest.fixture(scope="module")
def commons(module_path):
    """URL of a real MediaWiki with the category pages of the scrape's tests."""
    site, wiki = MediaWikiSite(module_path), world()
    for name, text in TEMPLATES.items():
        site.edit(name, text)
    names = {category_title(f"{COMMONS}Category:{name}"): found for name, (_, _, found) in EXPECTED.items()}
    pages = {title: wikitext(wiki, title, names.get(title, ())) for title in wiki.pages}
    # Edits also fill MediaWiki's link tables, imports do not: edit one page of each kind, and import the others.
    for name in ("Windsor Castle", "Renamed", "Moved"):
        site.edit(f"Category:{name}", pages.pop(f"Category:{name}"))
    site.edit("Category:Member", f"[[Category:{CROWDED}]]")
    site.import_pages(pages)
    site.state_items({title: page["item"] for title, page in wiki.pages.items() if "item" in page})
    with site.served() as url:
        yield url


@pytest.mark.parametrize("route", ["api", "html"])
def test_both_routes_find_all_statuses_on_a_real_mediawiki(commons, tmp_path, route):
    table = write_table(tmp_path / "train.csv", [f"{COMMONS}Category:{name}" for name in (*EXPECTED, CROWDED)])
    with WikimediaServer(world()) as wikidata:
        config = ScrapeConfig(commons_url=commons, wikidata_url=wikidata.url, rate=10_000.0, route=route)
        found = by_name(run(tmp_path / "stages", {"train": table}, config))
    assert found == EXPECTED | {CROWDED: ("missing", None, [])}
    assert bool(wikidata.log) == (route == "api")

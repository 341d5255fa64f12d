"""The scrape by both routes against a real MediaWiki: categories with redirects and missing pages."""

import os
import shutil
import socket
import sqlite3
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen
from xml.sax.saxutils import escape

import polars as pl
import pytest

from hgld.pipelines.hierarchy.config import ScrapeConfig
from hgld.pipelines.hierarchy.scrape.scrape import run
from tests.pipelines.wikimedia_server import Wiki, WikimediaServer

# -- a wiki on this machine: installed into a folder from Debian's package, filled, served by PHP ---------------------

DEBIAN = Path("/usr/share/mediawiki")
# templates of Commons need the extension, and MediaWiki needs a skin to render pages
EXTENSION, SKIN = "ParserFunctions", "Vector"
_PHP_EXTENSIONS = ("intl", "mbstring", "pdo_sqlite", "xml")
_NOT_COPIED = ("LocalSettings.php", "config", "extensions", "extensions-core", "images", "skins")
_SETTINGS = """
$wgJobRunRate = 0;  // a page view would run jobs, and those rewrite the page properties that the test states
$wgLocalisationCacheConf["store"] = "array";  // messages from a file: a page takes a third less time
$wgCacheDirectory = __DIR__ . "/images";
"""


def lacking():
    """Return why MediaWiki cannot be installed here, or None if it can."""
    if not (DEBIAN / "maintenance/install.php").is_file():
        return f"Debian's package mediawiki is not installed ({DEBIAN} is missing)"
    if shutil.which("php") is None:
        return "php is not installed (Debian's php-cli)"
    listed = subprocess.run(["php", "-m"], capture_output=True, text=True, check=True).stdout.lower().split()
    missing = [name for name in _PHP_EXTENSIONS if name not in listed]
    return f"php lacks {', '.join(missing)} (Debian's php-sqlite3 php-mbstring php-xml php-intl)" if missing else None


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

pytestmark = [pytest.mark.slow, pytest.mark.skipif(lacking() is not None, reason=str(lacking()))]

SUBJECTS = 24
CROWDED = "Category:Members and no page"  # MediaWiki serves such a page with HTTP 200
CLASSES = (
    "church building (1172-1954)",
    "castle",
    "horse racing venue",
    "lake",
    "château",
    "city, or town",
    "<script>x</script>",
)
SOFT_LINKS = (
    "{{{{Category redirect|{}}}}}",
    "{{{{category redirect|1=Category:{}}}}}",
    "{{{{Cat redirect|{}}}}}",
    "{{{{Category_redirect |1= {} }}}}\n<!-- moved -->",
)
# Reduced versions of Commons' templates; they render to the same HTML structure as pages of Commons.
TEMPLATES = {
    "Template:Category redirect": (
        '<table class="messagebox"><tr><td>This category is located at '
        "'''{{#ifeq:{{NAMESPACE:{{{1}}}}}|Category|[[:{{{1}}}]]|[[:Category:{{{1}}}]]}}'''<br />"
        "Note: This category should be empty.</td></tr></table>"
    ),
    "Template:Cat redirect": "#REDIRECT [[Template:Category redirect]]",
    "Template:Wikidata Infobox": (
        '<table class="fileinfotpl-type-information vevent infobox mw-collapsible" dir="ltr" id="wdinfobox">'
        '<caption class="fn org" id="wdinfoboxcaption"><b>{{PAGENAME}} </b></caption>'
        '{{#if:{{{classes|}}}|<tr><th class="wikidatainfobox-lcell">Instance of</th><td>{{{classes}}}</td></tr>}}'
        '<tr class="wdinfo_nomobile"><th class="wikidatainfobox-lcell">Country</th><td>'
        "[https://www.wikidata.org/wiki/Q183 Germany]</td></tr>"
        '<tr><td colspan="2">[https://www.wikidata.org/wiki/{{{item}}} Wikidata: {{{item}}}]</td></tr></table>'
    ),
}


@dataclass
class World:
    """The pages of the wikis, and the expected result of the scrape."""

    wikidata: Wiki = field(default_factory=Wiki)
    pages: dict[str, str] = field(default_factory=dict)
    items: dict[str, str] = field(default_factory=dict)
    expected: dict[str, tuple[str, str | None, str | None, tuple[str, ...]]] = field(default_factory=dict)

    def add(self, title, text, status, end=None):
        """Add a page with its expected status; a redirect to ``end`` has the same expected result as ``end``."""
        self.pages[title] = text
        self.expect(title, status, end)

    def expect(self, title, status, end=None):
        item, names = self.expected[end][2:] if status == "found" and end else (None, ())
        self.expected[title] = (status, end, item, names)

    def subject(self, title, classes, *, linked, listed):
        """Add a category with infobox and item; unless ``linked``, only the page (not Wikidata) states the item."""
        item = f"Q{10_000 + len(self.pages)}"
        names = tuple(CLASSES[c] for c in classes)
        self.wikidata.item(item, title.removeprefix("Category:"), P31=[f"Q{c + 1}" for c in classes])
        self.items[title] = item
        if linked:
            self.wikidata.sitelinks[title] = item
        self.pages[title] = (
            f"{{{{Wikidata Infobox|item={item}|classes={markup(names, listed)}}}}}\n[[Category:Landmarks]]"
        )
        self.expected[title] = ("found" if names else "no-instance-of", None, item, names)


def markup(names, listed):
    links = [f"[[:Category:{n.title()}|{n}]]" if n.isalpha() else n.replace("<", "&lt;") for n in names]
    if listed and links:
        return '<div class="plainlist"><ul>' + "".join(f"<li>{link}</li>" for link in links) + "</ul></div>"
    return "<br />".join(links)


def title(kind, n):
    """Return a title with special characters of URLs, SQL, wikitext and CSV."""
    shapes = (
        "{} {}",
        'Tower, "{}" {}',
        "{}'s Castle ({})",
        "{} & Sons {}",
        "What? {} {}",
        "{}++ {}",
        "Église {}/{}",
        "寺院 {} {}",
    )
    return "Category:" + shapes[n % len(shapes)].format(kind, n)


def world():
    made = World()
    for i, name in enumerate(CLASSES):
        made.wikidata.item(f"Q{i + 1}", name)
    made.wikidata.item("Q4167836", "Wikimedia category")
    for n in range(SUBJECTS):
        classes = ((n % 7,), (n % 5, n % 5 + 1), ())[0 if n % 4 else 1 if n % 3 else 2]
        made.subject(title("Subject", n), classes, linked=n % 5 > 0, listed=n % 2 == 0 or 5 in classes)
    for n in range(2):
        subject = title("Topic", n)
        made.subject(subject, (1,), linked=True, listed=True)
        category = made.wikidata.item(f"Q{20_000 + n}", subject, P31=["Q4167836"], P301=[made.items[subject]])
        made.items[subject] = made.wikidata.sitelinks[subject] = category
    for n in range(3):
        made.add(title("Plain", n), "Some text, no infobox.", "no-item")
        made.expect(title("Never", n), "missing")
    made.expect(CROWDED, "missing")
    renamed(made)
    return made


def renamed(made):
    """Add hard and soft redirects, chains of both, loops, and redirects to missing pages."""
    for n in range(8):
        old, new = title("Old", n), title("New", n)
        made.subject(new, (n % 7,), linked=n % 2 > 0, listed=True)
        made.add(old, f"#REDIRECT [[:{new}]]", "found", new)
        link = SOFT_LINKS[n % len(SOFT_LINKS)]
        made.add(title("Soft", n), link.format(new.removeprefix("Category:")), "found", new)
    soft = "{{{{Category redirect|1={}}}}}"
    for n in range(2):
        new = title("New", n)
        made.add(title("Soft to soft", n), soft.format(title("Soft", n)), "found", new)
        made.add(title("Soft to hard", n), soft.format(title("Old", n)), "found", new)
        made.add(title("Hard to soft", n), f"#REDIRECT [[:{title('Soft', n)}]]", "found", new)
        made.add(title("Hard to hard", n), f"#REDIRECT [[:{title('Old', n)}]]", "found", new)
        made.add(title("Soft to nowhere", n), soft.format(title("Never", n)), "missing", title("Never", n))
        made.add(title("Hard to nowhere", n), f"#REDIRECT [[:{title('Never', n)}]]", "missing", title("Never", n))
    made.add("Category:Itself", soft.format("Itself"), "error(redirect-loop)")
    made.add("Category:Here", soft.format("There"), "error(redirect-loop)", "Category:There")
    made.add("Category:There", soft.format("Here"), "error(redirect-loop)", "Category:Here")
    made.add("Category:Round", "#REDIRECT [[:Category:About]]", "error(redirect-loop)")
    made.add("Category:About", "#REDIRECT [[:Category:Round]]", "error(redirect-loop)")


@pytest.fixture(scope="module")
def made():
    return world()


@pytest.fixture(scope="module")
def commons(made, tmp_path_factory):
    site = MediaWikiSite(tmp_path_factory.mktemp("wiki"))
    for name, text in TEMPLATES.items():
        site.edit(name, text)
    # Edits also fill MediaWiki's link tables, imports do not: edit one page of each kind, and import the others.
    edited = ["Category:Here", title("Subject", 1), title("Soft", 0), title("Hard to soft", 0)]
    for name in edited:
        site.edit(name, made.pages[name])
    site.edit("Category:Member", f"[[{CROWDED}]]")
    site.import_pages({name: text for name, text in made.pages.items() if name not in edited})
    site.state_items(made.items)
    with site.served() as url:
        yield url


@pytest.fixture(scope="module")
def table(made, commons, tmp_path_factory):
    file = tmp_path_factory.mktemp("lists") / "train.csv"
    urls = (
        "http://commons.wikimedia.org/wiki/" + quote(name.replace(" ", "_"), safe=":/,()") for name in made.expected
    )
    rows = (f'{n},"{url}"\n' for n, url in enumerate(urls))
    file.write_text("landmark_id,category\n" + "".join(rows))
    return file


def scrape(made, commons, table, root, **options):
    with WikimediaServer(made.wikidata) as wikidata:
        config = ScrapeConfig(commons_url=commons, wikidata_url=wikidata.url, rate=10_000.0, **options)  # pyright: ignore[reportArgumentType]
        return run(root, {"train": table}, config), wikidata


def found(done):
    frame = pl.read_parquet(done.path("landmarks.parquet"))
    columns = frame.select("title", "status", "redirected_to", "item", "names").iter_rows()
    return {title: (status, end, item, tuple(names)) for title, status, end, item, names in columns}


def test_api_route_finds_all_statuses_on_a_real_mediawiki(made, commons, table, tmp_path):
    statuses = {status for status, *_ in made.expected.values()}
    assert statuses == {"found", "missing", "no-item", "no-instance-of", "error(redirect-loop)"}
    done, wikidata = scrape(made, commons, table, tmp_path)
    assert found(done) == made.expected
    # Each title and each item is requested once.
    assert len(set(wikidata.asked("titles"))) == len(wikidata.asked("titles"))
    assert len(set(wikidata.asked("ids"))) == len(wikidata.asked("ids"))
    assert all(len(request.keys) <= 50 for request in wikidata.log)


def test_html_route_finds_all_statuses_on_a_real_mediawiki(made, commons, table, tmp_path):
    done, wikidata = scrape(made, commons, table, tmp_path, route="html")
    assert found(done) == made.expected
    assert not wikidata.log

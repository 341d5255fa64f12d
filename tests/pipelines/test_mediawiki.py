"""The scrape by both routes against a real MediaWiki: 500 categories, redirects, renamed, missing and deleted ones."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import polars as pl
import pytest

from hgld.pipelines.hierarchy.config import ScrapeConfig
from hgld.pipelines.hierarchy.scrape.scrape import run
from hgld.pipelines.stage import StageRun
from tests.pipelines.mediawiki_site import MediaWikiSite, lacking
from tests.pipelines.wikimedia_server import Wiki, WikimediaServer

pytestmark = [pytest.mark.slow, pytest.mark.skipif(lacking() is not None, reason=str(lacking()))]

SUBJECTS = 248
CROWDED = "Category:Members and no page"  # MediaWiki serves it, with HTTP 200
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
# Commons' own templates in little: what the wiki makes of them is what the pages there look like.
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
    """What is to be on the wikis, and what the scrape has to find."""

    wikidata: Wiki = field(default_factory=Wiki)
    pages: dict[str, str] = field(default_factory=dict)
    moves: dict[str, str] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    items: dict[str, str] = field(default_factory=dict)
    expected: dict[str, tuple[str, str | None, str | None, tuple[str, ...]]] = field(default_factory=dict)

    def add(self, title: str, text: str, status: str, end: str | None = None) -> None:
        """A page and its expected status; ``end`` is the category that it leads to and shares the finding of."""
        self.pages[title] = text
        self.expect(title, status, end)

    def expect(self, title: str, status: str, end: str | None = None) -> None:
        item, names = self.expected[end][2:] if status == "found" and end else (None, ())
        self.expected[title] = (status, end, item, names)

    def subject(self, title: str, classes: tuple[int, ...], *, linked: bool, listed: bool) -> None:
        """A category with its item, linked from Wikidata or stated on the page alone, and with its infobox."""
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


def markup(names: tuple[str, ...], listed: bool) -> str:
    links = [f"[[:Category:{n.title()}|{n}]]" if n.isalpha() else n.replace("<", "&lt;") for n in names]
    if listed and links:
        return '<div class="plainlist"><ul>' + "".join(f"<li>{link}</li>" for link in links) + "</ul></div>"
    return "<br />".join(links)


def title(kind: str, n: int) -> str:
    """Titles with all that URLs, SQL, wikitext and CSV find special."""
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


def world() -> World:
    made = World()
    for i, name in enumerate(CLASSES):
        made.wikidata.item(f"Q{i + 1}", name)
    made.wikidata.item("Q4167836", "Wikimedia category")
    for n in range(SUBJECTS):
        classes = ((n % 7,), (n % 5, n % 5 + 1), ())[0 if n % 4 else 1 if n % 3 else 2]
        made.subject(title("Subject", n), classes, linked=n % 5 > 0, listed=n % 2 == 0 or 5 in classes)
    for n in range(10):
        subject = title("Topic", n)
        made.subject(subject, (1,), linked=True, listed=True)
        category = made.wikidata.item(f"Q{20_000 + n}", subject, P31=["Q4167836"], P301=[made.items[subject]])
        made.items[subject] = made.wikidata.sitelinks[subject] = category
    for n in range(30):
        made.add(title("Plain", n), "Some text, no infobox.", "no-item")
        made.expect(title("Never", n), "missing")
    for n in range(8):
        made.add(title("Deleted", n), "Soon gone.", "missing")
        made.deleted.append(title("Deleted", n))
    made.expect(CROWDED, "missing")
    renamed(made)
    return made


def renamed(made: World) -> None:
    """Hard and soft redirects, chains of both, loops, and redirects to nowhere."""
    for n in range(40):
        old, new = title("Old", n), title("New", n)
        made.subject(new, (n % 7,), linked=n % 2 > 0, listed=True)
        made.pages[old] = made.pages.pop(new)
        made.moves[old] = new
        made.expect(old, "found", new)
        link = SOFT_LINKS[n % len(SOFT_LINKS)]
        made.add(title("Soft", n), link.format(new.removeprefix("Category:")), "found", new)
    soft = "{{{{Category redirect|1={}}}}}"
    for n in range(8):
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
def made() -> World:
    return world()


@pytest.fixture(scope="module")
def commons(made: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    site = MediaWikiSite(tmp_path_factory.mktemp("wiki"))
    for name, text in TEMPLATES.items():
        site.edit(name, text)
    # What has to be in MediaWiki's tables of links, and one page of every kind, is saved as editors save it.
    edited = ["Category:Here", title("Subject", 1), title("Soft", 0), title("Hard to soft", 0)]
    for name in edited:
        site.edit(name, made.pages[name])
    site.edit("Category:Member", f"[[{CROWDED}]]")
    site.import_pages({name: text for name, text in made.pages.items() if name not in edited})
    site.move(made.moves)
    site.delete(*made.deleted)
    site.state_items(made.items)
    with site.served() as url:
        yield url


@pytest.fixture(scope="module")
def table(made: World, commons: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("lists") / "train.csv"
    urls = (
        "http://commons.wikimedia.org/wiki/" + quote(name.replace(" ", "_"), safe=":/,()") for name in made.expected
    )
    rows = (f'{n},"{url}"\n' for n, url in enumerate(urls))
    file.write_text("landmark_id,category\n" + "".join(rows))
    return file


def scrape(made: World, commons: str, table: Path, root: Path, **options: str) -> tuple[StageRun, WikimediaServer]:
    with WikimediaServer(made.wikidata) as wikidata:
        config = ScrapeConfig(commons_url=commons, wikidata_url=wikidata.url, rate=10_000.0, **options)  # pyright: ignore[reportArgumentType]
        return run(root, {"train": table}, config), wikidata


def found(done: StageRun) -> dict[str, tuple[str, str | None, str | None, tuple[str, ...]]]:
    frame = pl.read_parquet(done.path("landmarks.parquet"))
    columns = frame.select("title", "status", "redirected_to", "item", "names").iter_rows()
    return {title: (status, end, item, tuple(names)) for title, status, end, item, names in columns}


def test_there_are_500_categories_of_every_kind(made: World, table: Path):
    assert len(made.expected) == 500
    statuses = {status for status, *_ in made.expected.values()}
    assert statuses == {"found", "missing", "no-item", "no-instance-of", "error(redirect-loop)"}


def test_by_the_api(made: World, commons: str, table: Path, tmp_path: Path):
    done, wikidata = scrape(made, commons, table, tmp_path)
    assert found(done) == made.expected
    # One hop for what Wikidata links (500 titles and the ends of redirects), and no item asked for twice.
    assert len(set(wikidata.asked("titles"))) == len(wikidata.asked("titles"))
    assert len(set(wikidata.asked("ids"))) == len(wikidata.asked("ids"))
    assert all(len(request.keys) <= 50 for request in wikidata.log)


def test_by_the_pages(made: World, commons: str, table: Path, tmp_path: Path):
    done, wikidata = scrape(made, commons, table, tmp_path, route="html")
    assert found(done) == made.expected
    assert not wikidata.log

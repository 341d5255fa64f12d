"""A real MediaWiki on 127.0.0.1, made from Debian's package: installed into a folder, filled, served by PHP."""

import os
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen
from xml.sax.saxutils import escape

DEBIAN = Path("/usr/share/mediawiki")
EXTENSION, SKIN = "ParserFunctions", "Vector"  # Commons' templates need the one, every page the other
_PHP_EXTENSIONS = ("intl", "mbstring", "pdo_sqlite", "xml")
_NOT_COPIED = ("LocalSettings.php", "config", "extensions", "extensions-core", "images", "skins")
_SETTINGS = """
$wgJobRunRate = 0;  // a page view would run jobs, and those rewrite the page properties that the test states
$wgLocalisationCacheConf["store"] = "array";  // messages from a file: a page takes a third less time
$wgCacheDirectory = __DIR__ . "/images";
"""


def lacking() -> str | None:
    """Why no MediaWiki can be installed here, or None if it can."""
    if not (DEBIAN / "maintenance/install.php").is_file():
        return f"Debian's package mediawiki is not installed ({DEBIAN} is missing)"
    if shutil.which("php") is None:
        return "php is not installed (Debian's php-cli)"
    listed = subprocess.run(["php", "-m"], capture_output=True, text=True, check=True).stdout.lower().split()
    missing = [name for name in _PHP_EXTENSIONS if name not in listed]
    return f"php lacks {', '.join(missing)} (Debian's php-sqlite3 php-mbstring php-xml php-intl)" if missing else None


class MediaWikiSite:
    """A wiki of its own under ``folder``; its text comes by MediaWiki's own maintenance scripts."""

    def __init__(self, folder: Path):
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

    def edit(self, title: str, text: str) -> None:
        """Save one page as an editor does."""
        self._maintain("edit.php", "--user=Admin", title, stdin=text)

    def import_pages(self, pages: Mapping[str, str]) -> None:
        """Save many pages, title to wikitext, from one XML dump."""
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

    def move(self, moves: Mapping[str, str]) -> None:
        """Rename pages, old title to new; the old ones become hard redirects."""
        listed = self._list(f"{old}|{new}" for old, new in moves.items())
        self._maintain("moveBatch.php", "-u", "Admin", listed)

    def delete(self, *titles: str) -> None:
        self._maintain("deleteBatch.php", "-u", "Admin", self._list(titles))

    def state_items(self, items: Mapping[str, str]) -> None:
        """Write the page property ``wikibase_item``, title to item, as the Wikibase client extension does."""
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
    def served(self, workers: int = 2) -> Iterator[str]:
        """Serve the wiki while the block runs; yields the address of its action API."""
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
                os.killpg(server.pid, 15)  # PHP's workers are processes of their own
                server.wait(10)

    def _wait(self, server: subprocess.Popen[bytes], log: Path) -> None:
        for _ in range(100):
            assert server.poll() is None, log.read_text(errors="replace")
            try:
                with urlopen(f"{self.url}?action=query&format=json", timeout=30) as answer:
                    assert answer.status == 200
                    return
            except URLError:
                time.sleep(0.1)
        raise AssertionError(f"PHP's server does not answer: {log.read_text(errors='replace')}")

    def _copy(self) -> None:
        """The parts of Debian's tree that the wiki needs; the rest of its extensions are 90 MB."""
        self._data.mkdir(parents=True)
        shutil.copytree(DEBIAN, self._code, ignore=lambda folder, _: _NOT_COPIED if Path(folder) == DEBIAN else ())
        (self._code / "images").mkdir()
        shutil.copytree(DEBIAN / "extensions" / EXTENSION, self._code / "extensions" / EXTENSION)
        shutil.copytree(DEBIAN / "skins" / SKIN, self._code / "skins" / SKIN)

    def _list(self, lines: Iterator[str] | tuple[str, ...]) -> str:
        file = self._files / "titles.txt"
        file.write_text("".join(f"{line}\n" for line in lines))
        return str(file)

    def _maintain(self, script: str, *arguments: str, stdin: str = "") -> None:
        command = ["php", f"maintenance/{script}", *arguments]
        done = subprocess.run(command, cwd=self._code, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]

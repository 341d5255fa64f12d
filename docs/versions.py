"""Make the first page of the published site: a list of its versions, each in a folder.

``python docs/versions.py FOLDER``, as .github/workflows/docs.yml runs it.
"""

import html
import re
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

DEV = "dev"
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>hgld: versions of the documentation</title>
<style>body{{font:16px/1.6 system-ui,sans-serif;max-width:40rem;margin:3rem auto;padding:0 1rem}}</style></head>
<body><h1>hgld</h1><p>Documentation of</p>
<ul>{lines}</ul></body></html>
"""


def versions(folder: Path) -> list[str]:
    """Return the published versions in a folder: releases, newest first, then the version of main."""
    found = [path.name for path in folder.iterdir() if (path / "objects.inv").is_file()]
    releases = sorted((name for name in found if re.match(r"v\d", name)), key=_newness, reverse=True)
    return [*releases, *([DEV] if DEV in found else [])]


def _newness(name: str) -> tuple[Version, str]:
    """Return the sort key of a tag by PEP 440; a tag that is no version sorts before all versions."""
    try:
        return Version(name), name
    except InvalidVersion:
        return Version("0.dev0"), name


def page(names: list[str]) -> str:
    """Return the page that lists versions; the last release is never a pre-release such as v1.0rc1."""
    said = {DEV: "main, as it is today"}
    last = next((name for name in names if name != DEV and not _newness(name)[0].is_prerelease), None)
    said |= {last: f"{last}, the last release"} if last else {}
    lines = (f'<li><a href="{html.escape(n)}/">{html.escape(said.get(n, n))}</a></li>' for n in names)
    return _PAGE.format(lines="".join(lines))


if __name__ == "__main__":
    place = Path(sys.argv[1])
    (place / "index.html").write_text(page(versions(place)), encoding="utf-8")

"""Write a tiny fake copy of a release in its real layout: ``python -m tests.fake_releases NAME DIR``.

A folder that holds a release already is left as it is.
"""

import sys
import zlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from hgld.pipelines.shards.sources import CARDS, OWN_DATA, SOURCES, source_name

Maker = Callable[[Path, int], None]


MODULES = {  # source: module that writes its fake release, if the names differ
    "dyml-vehicle": "dyml:make_vehicle",
    "dyml-animal": "dyml:make_animal",
    "dyml-product": "dyml:make_product",
    "inat-base": "inaturalist:make",
    "inat-full": "inaturalist:make",
    "landmarks-clean": "landmarks_clean:make",
    "roxford": "revisited:make_oxford",
    "rparis": "revisited:make_paris",
    "copydays": "own_lists:make_copydays",
    "vggface2": "own_lists:make_faces",
    "ijb-c": "own_lists:make_faces",
}


def maker(name: str) -> Maker:
    """Return the function ``make(folder, seed)`` that writes the fake release of a source."""
    module, _, function = (MODULES.get(name) or f"{source_name(name)}:make").partition(":")
    return getattr(import_module(f"tests.fake_releases.{module}"), function)


def main(arguments: list[str]) -> int:
    names = sorted({*SOURCES, *CARDS.values(), *MODULES} - {*OWN_DATA})
    if len(arguments) != 2 or arguments[0] not in names:
        print(f"python -m tests.fake_releases NAME DIR; the names are {', '.join(names)}", file=sys.stderr)
        return 2
    folder = Path(arguments[1])
    folder = folder.parent if folder.suffix else folder  # if the source is a list file, its folder is the release
    if folder.exists() and any(folder.iterdir()):
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    # a different seed per release, so that no two releases share an image
    maker(arguments[0])(folder, zlib.crc32(arguments[0].encode()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Write a tiny fake copy of a release in its real layout: ``python -m tests.fake_releases NAME DIR``."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from hgld.pipelines.shards.sources import OWN_DATA, SOURCES, source_name

Maker = Callable[[Path, int], None]


MODULES = {  # source: module that writes its fake release, if the names differ
    "dyml-vehicle": "dyml:make_vehicle",
    "dyml-animal": "dyml:make_animal",
    "dyml-product": "dyml:make_product",
    "inat-base": "inaturalist:make_base",
    "inat-full": "inaturalist:make_full",
    "landmarks-clean": "landmarks_clean:make",
    "roxford": "revisited:make_oxford",
    "rparis": "revisited:make_paris",
}


def maker(name: str) -> Maker:
    """Return the function ``make(folder, seed)`` that writes the fake release of a source."""
    module, _, function = MODULES.get(name, f"{source_name(name)}:make").partition(":")
    return getattr(import_module(f"tests.fake_releases.{module}"), function)


def main(arguments: list[str]) -> int:
    names = [name for name in SOURCES if name not in OWN_DATA]
    if len(arguments) != 2 or arguments[0] not in names:
        print(f"python -m tests.fake_releases NAME DIR; the names are {', '.join(names)}", file=sys.stderr)
        return 2
    folder = Path(arguments[1])
    folder.mkdir(parents=True, exist_ok=True)
    maker(arguments[0])(folder, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The datasets that can be sharded: one adapter a file, imported when it is asked for.

An adapter reads the lists of a release in its official layout and gives back a
:class:`hgld.pipelines.shards.catalog.Catalog`; it opens no image. Its name is the name of its card in ``data_cards/``.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hgld.errors import ConfigError

if TYPE_CHECKING:
    from hgld.pipelines.shards.catalog import Catalog
    from hgld.pipelines.shards.config import SourceConfig

    Adapter = Callable[[Path, SourceConfig], Catalog]

SOURCES = {  # name: module and function of the adapter
    "gldv2": "hgld.pipelines.shards.sources.gldv2:read",
    "sop": "hgld.pipelines.shards.sources.sop:read",
    "inat-base": "hgld.pipelines.shards.sources.inaturalist:read_base",
    "inat-full": "hgld.pipelines.shards.sources.inaturalist:read_full",
    "dyml-vehicle": "hgld.pipelines.shards.sources.dyml:read_vehicle",
    "dyml-animal": "hgld.pipelines.shards.sources.dyml:read_animal",
    "dyml-product": "hgld.pipelines.shards.sources.dyml:read_product",
    "cub": "hgld.pipelines.shards.sources.cub:read",
    "cars196": "hgld.pipelines.shards.sources.cars196:read",
    "inshop": "hgld.pipelines.shards.sources.inshop:read",
    "vehicleid": "hgld.pipelines.shards.sources.vehicleid:read",
    "landmarks-clean": "hgld.pipelines.shards.sources.landmarks_clean:read",
    "roxford": "hgld.pipelines.shards.sources.revisited:read_oxford",
    "rparis": "hgld.pipelines.shards.sources.revisited:read_paris",
    "folders": "hgld.pipelines.shards.sources.folders:read",
    "manifest": "hgld.pipelines.shards.sources.manifest:read",
}
CARDS = {"gldv2": "h-gldv2"}  # sources whose card has another name; either name is accepted
OWN_DATA = ("folders", "manifest")  # adapters of the user's own data: no card, no published counts


def source_name(name: str) -> str:
    """The name of a source as :data:`SOURCES` spells it; a card's name is accepted too.

    Raises:
        ConfigError: there is no such source; the message lists those there are.
    """
    by_card = {card: source for source, card in CARDS.items()}
    found = by_card.get(name, name)
    if found not in SOURCES:
        raise ConfigError(f"there is no dataset {name!r}. There are {', '.join(SOURCES)}.")
    return found


def card_name(name: str) -> str:
    """The name of a source's card in ``data_cards/``."""
    return CARDS.get(name, name)


def resolve(name: str) -> "Adapter":
    """The adapter of a source: a function of the release's folder and the options, which returns its catalog.

    Raises:
        ConfigError: there is no such source.
    """
    module, _, function = SOURCES[source_name(name)].partition(":")
    return getattr(import_module(module), function)

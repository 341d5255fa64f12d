"""Adapters of the datasets that can be sharded, one a file, imported when it is asked for.

An adapter reads the lists of a release in its official layout and returns a
:class:`hgld.pipelines.shards.catalog.Catalog`; it opens no image. Its name is the name of its card in ``data_cards/``.
An adapter of another package is an entry point of the group ``hgld.datasets`` (:mod:`hgld.plugins`), and has no card
here.
"""

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hgld.errors import ConfigError, quoted
from hgld.plugins import Plugins

if TYPE_CHECKING:
    from ..catalog import Catalog
    from ..config import SourceConfig

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
    "holidays": "hgld.pipelines.shards.sources.holidays:read",
    "ukbench": "hgld.pipelines.shards.sources.ukbench:read",
    "imagenet": "hgld.pipelines.shards.sources.imagenet:read",
    "folders": "hgld.pipelines.shards.sources.folders:read",
    "manifest": "hgld.pipelines.shards.sources.manifest:read",
}
CARDS = {"gldv2": "h-gldv2"}  # sources whose card has another name; either name is accepted
OWN_DATA = ("folders", "manifest")  # adapters of the user's own data: no card, no published counts


PLUGINS = Plugins("hgld.datasets", "dataset", SOURCES)


def source_names() -> list[str]:
    """Return the names of all sources: those of hgld, then those of other packages."""
    return [*SOURCES, *PLUGINS.names()]


def has_card(source: str) -> bool:
    """Tell whether hgld has a card of a source."""
    return source in SOURCES and source not in OWN_DATA


def source_name(name: str) -> str:
    """Return the name of a source as :func:`source_names` spells it; a card's name is accepted too.

    Raises:
        ConfigError: there is no such source; the message names the nearest, or all.
    """
    by_card = {card: source for source, card in CARDS.items()}
    found = by_card.get(name, name)
    if found not in source_names():
        near = get_close_matches(name, source_names(), n=1)
        hint = f"Did you mean {quoted(near[0])}?" if near else f"There are {', '.join(source_names())}."
        raise ConfigError(f"there is no dataset {quoted(name)}. {hint}")
    return found


def card_name(name: str) -> str:
    """Return the name of a source's card in ``data_cards/``."""
    return CARDS.get(name, name)


def resolve(name: str) -> "Adapter":
    """Import the adapter of a source: a function of the release's folder and the options that returns its catalog.

    Raises:
        ConfigError: there is no such source, or it is another package's and cannot be imported.
    """
    source = source_name(name)
    if source not in SOURCES:
        return PLUGINS.load(source)
    PLUGINS.refuse_namesakes(source)
    module, _, function = SOURCES[source].partition(":")
    return getattr(import_module(module), function)

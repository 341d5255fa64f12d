"""Adapters of the datasets that can be sharded, each imported only when it is needed.

An adapter reads the lists of a release in its official layout and returns a
:class:`hgld.pipelines.shards.catalog.Catalog`; it opens no image. Its name is the name of its card in ``data_cards/``.
An adapter of another package is an entry point of the group ``hgld.datasets`` (:mod:`hgld.plugins`), and has no card
here.
"""

from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hgld.errors import ConfigError, InputError, quoted
from hgld.plugins import Plugins

if TYPE_CHECKING:
    from ..catalog import Catalog
    from ..config import SourceConfig

SOURCES = {  # name: module of this package, function of the adapter, and its first argument if it reads several
    "gldv2": "gldv2:read",
    "sop": "instances:read_sop",
    "inat-base": "multilevel:read_inaturalist:inat-base",
    "inat-full": "multilevel:read_inaturalist:inat-full",
    "dyml-vehicle": "multilevel:read_dyml:vehicle",
    "dyml-animal": "multilevel:read_dyml:animal",
    "dyml-product": "multilevel:read_dyml_product",
    "cub": "fine_grained:read_cub",
    "cars196": "fine_grained:read_cars196",
    "inshop": "instances:read_inshop",
    "vehicleid": "instances:read_vehicleid",
    "landmarks-clean": "landmarks:read_landmarks_clean",
    "roxford": "landmarks:read_revisited_images:roxford",
    "rparis": "landmarks:read_revisited_images:rparis",
    "holidays": "instances:read_holidays",
    "ukbench": "instances:read_ukbench",
    "imagenet": "imagenet:read",
    "folders": "own_images:read_own:folders",
    "manifest": "own_images:read_own:manifest",
}
CARDS = {"gldv2": "h-gldv2"}  # sources whose card has another name; either name is accepted
OWN_DATA = ("folders", "manifest")  # adapters of the user's own data: no card, no published counts
_OWN_OPTIONS = ("name", "license", "description", "protocol", "levels", "test_classes", "merge_spellings")
_OPTIONS = {  # fields of SourceConfig that an adapter accepts in addition to the fields that every source accepts
    "gldv2": ("labels", "distractors"),
    "inat-base": ("labels",),
    "inat-full": ("labels",),
    "roxford": ("distractors",),
    "rparis": ("distractors",),
    "folders": _OWN_OPTIONS,
    "manifest": ("images", *_OWN_OPTIONS),
}
_OF_ALL = {"seed", "splits", "exclude", "val_classes"}

PLUGINS = Plugins("hgld.datasets", "dataset", SOURCES)


def source_names() -> list[str]:
    """Return the names of all sources: first hgld's sources, then sources of other packages."""
    return [*SOURCES, *PLUGINS.names()]


def has_card(source: str) -> bool:
    """Tell whether hgld has a card of a source."""
    return source in SOURCES and source not in OWN_DATA


def source_name(name: str) -> str:
    """Return the name of a source as :func:`source_names` spells it; a card's name is accepted too.

    Raises:
        ConfigError: there is no such source; the message names the nearest source, or all sources.
    """
    found = next((source for source, card in CARDS.items() if card == name), name)
    if found not in source_names():
        near = get_close_matches(name, source_names(), n=1)
        hint = f"Did you mean {quoted(near[0])}?" if near else f"Datasets: {', '.join(source_names())}."
        raise ConfigError(f"there is no dataset {quoted(name)}. {hint}")
    return found


def read_source(name: str, source: Path, options: "SourceConfig") -> "Catalog":
    """Read the catalog of a release by its adapter: all splits, unless the adapter can omit unwanted splits.

    Args:
        name: name of the source.
        source: the release's folder, or the table of the user's own data.
        options: options for reading the release.

    Raises:
        ConfigError: there is no such source, the source does not have one of the options, or it belongs to another
            package that cannot be imported.
        InputError: a list is missing, or cannot be read.
    """
    name = source_name(name)
    if name not in SOURCES:
        return PLUGINS.load(name)(source, options)
    PLUGINS.refuse_namesakes(name)
    taken = _OPTIONS.get(name, ())
    given = [field.name for field in fields(options) if getattr(options, field.name) != field.default]
    if refused := [field for field in given if field not in _OF_ALL and field not in taken]:
        flags, takes = (", ".join(f"--{field.replace('_', '-')}" for field in names) for names in (refused, taken))
        raise ConfigError(f"{name} does not use {flags}; its options are: {takes or 'none of its own'}. Omit {flags}.")
    module, function, *kind = SOURCES[name].split(":")
    try:
        return getattr(import_module(f"{__name__}.{module}"), function)(*kind, source, options)
    except InputError as error:
        if name in OWN_DATA:
            raise
        raise type(error)(f"{error} How to get the files: hgld datasets {name}.") from error

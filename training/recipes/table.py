"""Recipes of hgld, made from the tables beside this file: settings, losses, families, and rows of papers."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from ..config import TrainConfig, with_fields
from ..config_checks import READERS
from ..finetune import FINETUNE, finetune_config
from .recipe import NOT_CONFIRMED, Published, Recipe, Row, Setting

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Family:
    """A family of recipes whose losses are of one type.

    Attributes:
        title: title of the family.
        text: the papers, and the settings that differ from the papers.
        recipes: recipes in the order of the papers' tables.
    """

    title: str
    text: str
    recipes: tuple[Recipe, ...]


def _read(name: str) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml reads ten times as fast
    return yaml.load((_HERE / name).read_text(encoding="utf-8"), loader)  # noqa: S506  # both loaders are safe


def _settings() -> dict[str, Setting]:
    """Return the settings by name, each with the options that it inherits from another setting."""
    whole: dict[str, dict[str, Any]] = {}
    for name, given in _read("settings.yaml").items():
        base = whole[given["from"]] if "from" in given else {}
        merged = {"hours": NOT_CONFIRMED, "suffix": None} | base | given
        merged["fields"] = {**base.get("fields", {}), **given.get("fields", {})}
        whole[name] = {key: value for key, value in merged.items() if key != "from"}
    return {
        name: Setting(config=with_fields(TrainConfig(), given.pop("fields")), **given)
        for name, given in whole.items()
        if not name.startswith("_")
    }


def _rows(entries: Sequence[Any]) -> Iterator[Row]:
    """Yield the rows of some entries; an entry with lists of tables and settings yields a row per combination."""
    for entry in entries:
        if isinstance(entry, str):
            continue
        rest: dict[str, Any] = {name: value for name, value in entry.items() if name not in ("table", "setting")} | {
            "datasets": tuple(entry.get("datasets", ()))
        }
        tables, settings = (v if isinstance(v, list) else [v] for v in (entry["table"], entry.get("setting")))
        for table, setting in itertools.product(tables, settings):
            yield Row(table=table, setting=setting, **rest)


def published_of(name: str, dataset: str, tables: Mapping[str, Mapping[str, Any]]) -> Published | str:
    """Return the published rows of a recipe, or a sentence if no paper has such a row.

    Args:
        name: name of the recipe.
        dataset: dataset that it trains on.
        tables: content of ``published.yaml``.
    """
    if reached := tables["reached"].get(name):
        steps = "1,000 steps" if name.startswith("small-views-") else "1,000 steps after a pretraining on views"
        measured = (
            "means over five splits and seeds, learning rates chosen on validation classes; see benchmarks/README.md"
        )
        return f"none; on classes that were not trained on, {steps} reached {reached} ({measured})"
    patterns = tables["rows"]
    entries = patterns.get(name) or next((e for pattern, e in patterns.items() if fnmatchcase(name, pattern)), ())
    own = (replace(row, datasets=row.datasets or (dataset,)) for row in _rows(entries))
    if rows := tuple(row for row in own if row.values):
        return Published(rows, " ".join(entry for entry in entries if isinstance(entry, str)))
    return f"none: {tables['without'].get(name, 'the papers print no row of this loss in this setting')}"


def _recipes(row: Mapping[str, Any], losses: Mapping[str, Any], settings: Mapping[str, Setting]) -> Iterator[Recipe]:
    """Yield the recipes of a loss in some settings."""
    loss, own = row["loss"], losses[row["loss"]]
    fields = {**own["fields"], **row.get("fields", {})}
    for setting in (settings[name] for name in row["settings"]):
        suffix = setting.dataset if setting.suffix is None else setting.suffix
        name = f"{loss}-{suffix}" if suffix else loss
        config = with_fields(setting.config, fields)
        # High learning rates of proxies decay to 0.1, as in the authors' configurations (`eta_min`), except for CSL.
        fast = config.optimizer.lr_proxies >= 10 and config.loss.loss != "CSL"
        floor = {"lr_floor_proxies": 0.1} if fast and READERS["lr_floor_proxies"].reads(config) else {}
        line = row.get("line", own["line"]).format(setting.short, **row.get("fields", {}))
        published = published_of(name, setting.dataset, PUBLISHED)
        yield Recipe(name, line, setting, fields | floor, published)


PUBLISHED = _read("published.yaml")
"""Published rows, reasons and measured values by recipe name, as ``published.yaml`` holds them."""

LOSSES: Mapping[str, Mapping[str, Any]] = _read("losses.yaml")
"""Losses by the first part of a recipe's name: line and fields."""

_FINETUNE = Recipe(
    FINETUNE,
    "Fine-tune a pretrained network on your own images; options that you do not give are derived from the data.",
    Setting(
        dataset="manifest",
        short="your own images",
        title="hgld build-shards folders, or hgld build-shards manifest with a table; --val-classes makes split val",
        hardware="one CPU core, or a GPU",
        hours="minutes: benchmarks/README.md",
        config=finetune_config(),
    ),
    published="none: it is for your own images",
)
_SETTINGS = _settings()
FAMILIES = (
    Family(
        "Your own images",
        "\n``hgld train`` without a recipe fine-tunes a pretrained network.",
        (_FINETUNE,),
    ),
    *(
        Family(
            family["title"],
            f"\n{family['text']}",
            tuple(recipe for row in family["recipes"] for recipe in _recipes(row, LOSSES, _SETTINGS)),
        )
        for family in _read("recipes.yaml")
    ),
)
"""All recipes, by family."""

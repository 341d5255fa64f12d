"""Recipes: functions that return the config of a run, one for each row that the papers report and hgld can run."""

import difflib

from hgld.errors import ConfigError
from hgld.training.config import TrainConfig
from hgld.training.recipes import average_precision, happier, landmarks, multigrain, proxies, recall, roadmap, small
from hgld.training.recipes.recipe import Recipe

_FAMILIES = (happier, roadmap, recall, average_precision, proxies, multigrain, landmarks, small)

RECIPES: dict[str, Recipe] = {
    made.name: made for family in _FAMILIES for made in vars(family).values() if isinstance(made, Recipe)
}
"""All recipes by their names."""


def find_recipe(name: str) -> Recipe:
    """The recipe of a name.

    Raises:
        ConfigError: there is none; the nearest is named.
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else "`hgld train --list` names them all."
        raise ConfigError(f"there is no recipe {name!r}. {hint}")
    return RECIPES[name]


def load_recipe(name: str) -> TrainConfig:
    """The config of a recipe.

    Raises:
        ConfigError: there is none of that name; the nearest is named.
    """
    return find_recipe(name)()

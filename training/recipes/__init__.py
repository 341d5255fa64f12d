"""Recipes: named configs of runs, for the user's own images and for published results that hgld can repeat.

Recipes are made from the settings of the datasets (``settings``), the losses and the settings in which each loss is
trained (``table``), and the values that papers report (``published``).
"""

from importlib.metadata import entry_points

from hgld.errors import ConfigError, did_you_mean, excerpt

from ..config import TrainConfig
from .recipe import Recipe
from .table import FAMILIES

ENTRY_POINTS = "hgld.recipes"
"""Group of entry points by which other packages add recipes; each is an iterable of :class:`Recipe`."""

RECIPES: dict[str, Recipe] = {}
"""All recipes by name."""

BROKEN: list[str] = []
"""A message per installed package whose recipes cannot be used."""


def register_recipe(recipe: Recipe) -> Recipe:
    """Register a recipe for :func:`find_recipe` and the command line.

    Raises:
        ConfigError: another recipe has the same name.
    """
    if recipe.name in RECIPES:
        taken = RECIPES[recipe.name].line
        raise ConfigError(
            f"the name {recipe.name!r} belongs to another recipe: {taken} Give your recipe a different name."
        )
    RECIPES[recipe.name] = recipe
    return recipe


def find_recipe(name: str) -> Recipe:
    """Return the recipe of a name.

    Raises:
        ConfigError: there is no such recipe; the message names the nearest recipe.
    """
    if name not in RECIPES:
        hint = did_you_mean(name, RECIPES) or " `hgld train --list` names them all."
        raise ConfigError(" ".join([f"there is no recipe {name!r}.{hint}", *BROKEN]))
    return RECIPES[name]


def load_recipe(name: str) -> TrainConfig:
    """Return the config of a recipe.

    Raises:
        ConfigError: there is no such recipe; the message names the nearest recipe.
    """
    return find_recipe(name)()


def _register_installed() -> None:
    for point in entry_points(group=ENTRY_POINTS):
        try:
            for recipe in point.load():
                recipe()  # raises an error for invalid fields
                register_recipe(recipe)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the package's code may raise any error
            reason = f"{type(error).__name__}: {excerpt(error)}"
            BROKEN.append(f"The recipes of {point.value!r} cannot be loaded ({reason}). Repair or uninstall it.")


for _family in FAMILIES:
    for _recipe in _family.recipes:
        register_recipe(_recipe)
_register_installed()

"""What a recipe is: a function without arguments that returns the config of a published row, and says what that is."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace

from hgld.training.config import TrainConfig, with_fields
from hgld.training.recipes.published import NOT_CONFIRMED, Published


@dataclass(frozen=True)
class Setting:
    """A dataset as a paper trains on it: what the losses that are compared there have in common.

    Attributes:
        dataset: its name in ``hgld datasets``, or how to make it.
        title: its name for people.
        hardware: what it runs on, and who says so.
        config: the options that all its recipes start from.
        hours: how long a run takes, and who says so.
    """

    dataset: str
    title: str
    hardware: str
    config: TrainConfig
    hours: str = NOT_CONFIRMED

    def train(self, **fields: object) -> TrainConfig:
        """The setting's config with some fields changed, by their names."""
        return with_fields(self.config, fields)

    def changed(self, **fields: object) -> "Setting":
        """The same dataset under other options."""
        return replace(self, config=self.train(**fields))


class Recipe:
    """A function that returns the config of a run, with what it takes and what it should reach.

    Args:
        make: returns the config; its name is the recipe's, its docstring says what it is.
        setting: the dataset and what it is trained with.
        published: the figures that it should reach, or a sentence where no paper has any.
        hours: how long it takes, where that is not the setting's.

    Attributes:
        name: what ``hgld train`` calls it.
        place: module and function.
        dataset: name of the dataset.
        line: the first line of the docstring.
        hardware: what it runs on, and who says so.
        hours: how long it takes, and who says so.
        published: see above.
        brief: the published figures, or the sentence, in one line.
    """

    def __init__(
        self, make: Callable[[], TrainConfig], setting: Setting, published: Published | str, hours: str = ""
    ) -> None:
        summary = inspect.getdoc(make) or ""
        self.make = make
        self.name = make.__name__.replace("_", "-")
        self.place = f"{make.__module__}:{make.__name__}"
        self.dataset = setting.dataset
        self.line = summary.partition("\n")[0]
        self.hardware = setting.hardware
        self.hours = hours or setting.hours
        self.published = published
        lines = published.lines if isinstance(published, Published) else (published,)
        self.brief = lines[0]
        self.__doc__ = "\n".join(
            (
                summary,
                "",
                f"Command:   hgld train {self.name} --data DIR --out RUN --seed 0",
                f"           torchrun --nproc-per-node 8 -m hgld train {self.name} --data DIR --out RUN --seed 0",
                f"Data:      {setting.title} ({setting.dataset})",
                f"Hardware:  {self.hardware}",
                f"Hours:     {self.hours}",
                f"Published: {lines[0]}",
                *(f"           {line}" for line in lines[1:]),
            )
        )

    def __call__(self) -> TrainConfig:
        return replace(self.make(), recipe=self.name)

    def __repr__(self) -> str:
        return f"Recipe({self.place})"


def recipe(
    setting: Setting, published: Published | str, *, hours: str = ""
) -> Callable[[Callable[[], TrainConfig]], Recipe]:
    """Make a function that returns a config a :class:`Recipe`."""
    return lambda make: Recipe(make, setting, published, hours)

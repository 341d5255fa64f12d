"""A recipe: a dataset's setting with some fields changed, its name and the figures that it should reach."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hgld.published.results import PublishedValue

from ..config import TrainConfig, is_validation, with_fields
from .published import Published

NOT_CONFIRMED = "not confirmed"
_CHOICE = (
    "no checkpoint is chosen on test, as released codes do (--select-on-test): the last is kept, or the best on val "
    "where the dataset has one"
)
_WIDTH = 109  # letters of a fact, behind its label


@dataclass(frozen=True)
class Setting:
    """A dataset as a paper trains on it: the options that the losses compared there have in common.

    Attributes:
        dataset: its name in ``hgld datasets``, or how to make it.
        short: its name in a recipe's line.
        title: its name for people.
        hardware: the hardware that a run needs, with its source.
        config: the options that all its recipes start from.
        hours: the duration of a run, with its source.
        suffix: the end of its recipes' names; None: the dataset's name.
        deviates: how it differs from what the paper states or its authors released, a sentence each.
    """

    dataset: str
    short: str
    title: str
    hardware: str
    config: TrainConfig
    hours: str = NOT_CONFIRMED
    suffix: str | None = None
    deviates: tuple[str, ...] = ()

    def changed(
        self, *, hardware: str = "", hours: str = "", suffix: str | None = None, deviates: str = "", **fields: object
    ) -> "Setting":
        """Return the same dataset under other options, by the names of their fields; ``deviates`` adds a sentence."""
        return replace(
            self,
            config=with_fields(self.config, fields),
            hardware=hardware or self.hardware,
            hours=hours or self.hours,
            suffix=suffix or self.suffix,
            deviates=(*self.deviates, *([deviates] if deviates else [])),
        )


@dataclass(frozen=True)
class Recipe:
    """A named config with its dataset, hardware and published figures; calling it returns the config.

    Attributes:
        name: its name in ``hgld train``.
        line: its description in one line.
        setting: the dataset and the options of training on it.
        fields: the fields that the recipe changes in its setting.
        published: the rows with the figures that it should reach, or a sentence if no paper has one.
        deviates: how it differs from what the paper states, beside the deviations of its setting.
    """

    name: str
    line: str
    setting: Setting
    fields: Mapping[str, Any] = field(default_factory=dict)
    published: Published | str = "none"
    deviates: tuple[str, ...] = ()

    def __call__(self) -> TrainConfig:
        return replace(with_fields(self.setting.config, self.fields), recipe=self.name)

    @property
    def dataset(self) -> str:
        """Name of the dataset."""
        return self.setting.dataset

    @property
    def hardware(self) -> str:
        """The hardware that a run needs, with its source."""
        return self.setting.hardware

    @property
    def hours(self) -> str:
        """The duration of a run, with its source."""
        return self.setting.hours

    @property
    def weights(self) -> str:
        """The backbone, and the very weights that it starts from."""
        model = self().model
        start = "from scratch" if model.pretrained == "none" else f"weights {model.pretrained}"
        return f"{model.backbone}, {start}"

    @property
    def all_deviations(self) -> tuple[str, ...]:
        """Differences from what the paper states or its authors released: those of its setting, then its own."""
        return (*self.setting.deviates, *self.deviates, *self._choice)

    @property
    def _choice(self) -> tuple[str, ...]:
        run = self().run
        several = 0 < run.evaluate_every < run.epochs  # of one evaluation nothing can be chosen
        on_test = run.evaluate_on and not any(map(is_validation, run.evaluate_on))
        return (_CHOICE,) if several and on_test and isinstance(self.published, Published) else ()

    @property
    def values(self) -> tuple[PublishedValue, ...]:
        """The published values of its rows; none if no paper has one."""
        return self.published.values if isinstance(self.published, Published) else ()

    @property
    def brief(self) -> str:
        """The published figures, or the sentence in their place, in one line."""
        return self.published.brief if isinstance(self.published, Published) else self.published

    @property
    def facts(self) -> str:
        """Its commands, dataset, weights, hardware, hours, figures and deviations, in lines of at most 120 letters."""
        command = f"hgld train {self.name} --data DIR --out RUN --seed 0"
        facts = {
            "Command:": (command, f"torchrun --nproc-per-node 8 -m {command}"),
            "Data:": (f"{self.setting.title} ({self.dataset})",),
            "Weights:": (self.weights,),
            "Hardware:": (self.hardware,),
            "Hours:": (self.hours,),
            "Published:": self._published_lines,
            "Deviates:": self.all_deviations,
        }
        return "\n".join(line for label, lines in facts.items() for line in _labelled(label, lines))

    @property
    def text(self) -> str:
        """Its line and its facts."""
        return f"{self.line}\n\n{self.facts}"

    @property
    def _published_lines(self) -> tuple[str, ...]:
        return self.published.lines if isinstance(self.published, Published) else (self.published,)


def _labelled(label: str, lines: Sequence[str]) -> list[str]:
    broken = [part for line in lines for part in textwrap.wrap(line, _WIDTH, subsequent_indent="  ")]
    return [f"{'' if i else label:<10} {part}" for i, part in enumerate(broken)]

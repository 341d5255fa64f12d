"""Recipes: named configs with their setting, and the published values that they should reach."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from hgld.published.results import PAPERS, PublishedValue, published_values
from hgld.published.statements import Statement, statements_of

from ..config import TrainConfig, flag_of, flat, with_fields, yaml_value

NOT_CONFIRMED = "not confirmed"
_WIDTH = 109  # maximum characters per line of a printed fact, without its label


# -- published rows --


@dataclass(frozen=True)
class Row:
    """Selection of rows of a published table; an empty field, or None, fits all rows.

    Attributes:
        paper: key of :data:`hgld.published.PAPERS`.
        table: name of the table in the paper.
        method: name of the method in the table.
        setting: setting of the row in :mod:`hgld.published`.
        backbone: backbone of the row in :mod:`hgld.published`.
        datasets: names of datasets; empty: the recipe's dataset.
    """

    paper: str
    table: str
    method: str
    setting: str | None = None
    backbone: str = ""
    datasets: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[PublishedValue, ...]:
        """The published values of these rows, in the order of the table."""
        return tuple(
            value
            for value in _by_method().get((self.paper, self.table, self.method), ())
            if value.dataset in self.datasets
            and (self.setting is None or value.setting == self.setting)
            and (not self.backbone or value.backbone == self.backbone)
        )

    @property
    def text(self) -> str:
        """The published values of these rows, in one line."""
        values = self.values
        several = {"dataset": len({v.dataset for v in values}) > 1, "setting": len({v.setting for v in values}) > 1}
        levels = {value.level for value in values if value.level} | {value.part for value in values if value.part}
        told = []
        for value in values:
            where = [getattr(value, name) for name, is_told in several.items() if is_told and getattr(value, name)]
            name = value.name if len(levels) > 1 or "average" in levels else value.metric
            unit = " of 4" if value.unit == "of 4" else ""
            told.append(f"{name} {value.text}{unit}" + (f" ({', '.join(where)})" if where else ""))
        return ", ".join(told)


@cache
def _by_method() -> Mapping[tuple[str, str, str], list[PublishedValue]]:
    found: dict[tuple[str, str, str], list[PublishedValue]] = {}
    for value in published_values():
        found.setdefault((value.paper, value.table, value.method), []).append(value)
    return found


@dataclass(frozen=True)
class Published:
    """Rows of papers' tables that belong to a recipe.

    Attributes:
        rows: rows of published tables; the recipe reproduces the first row.
        remark: how the published run differs from the recipe, or other facts that the reader should know.
    """

    rows: tuple[Row, ...]
    remark: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The rows, one per line, then the remark and the papers."""
        told = [f"{row.text} ({PAPERS[row.paper].name} {row.table}, {row.method})" for row in self.rows]
        remark = [self.remark] if self.remark else []
        return (*told, *remark, *dict.fromkeys(PAPERS[row.paper].source for row in self.rows))


# -- recipes --


@dataclass(frozen=True)
class Setting:
    """A dataset with a paper's training options, which all losses of the comparison share.

    Attributes:
        dataset: name of the dataset in ``hgld datasets``, or how to make it.
        short: short name in a recipe's line.
        title: readable name.
        hardware: the hardware that a run needs, with its source.
        config: the options from which all recipes with this setting start.
        hours: the duration of a run, with its source.
        suffix: end of the names of recipes with this setting; None: the dataset's name.
        paper: key of :data:`hgld.published.PAPERS` of the paper with this setting; empty: no paper has this setting.
    """

    dataset: str
    short: str
    title: str
    hardware: str
    config: TrainConfig
    hours: str = NOT_CONFIRMED
    suffix: str | None = None
    paper: str = ""


@dataclass(frozen=True)
class Recipe:
    """A named config with its dataset, hardware and published values; calling it returns the config.

    Attributes:
        name: name of the recipe in ``hgld train``.
        line: description in one line.
        setting: the dataset and the options of training on it.
        fields: the fields that the recipe changes in its setting.
        published: the published rows that the recipe should reach, or a sentence if no paper has such a row.
    """

    name: str
    line: str
    setting: Setting
    fields: Mapping[str, Any] = field(default_factory=dict)
    published: Published | str = "none"

    def __call__(self) -> TrainConfig:
        return replace(with_fields(self.setting.config, self.fields), recipe=self.name)

    @property
    def dataset(self) -> str:
        """Name of the dataset."""
        return self.setting.dataset

    @property
    def weights(self) -> str:
        """The backbone and its exact initial weights."""
        model = self().model
        if "backbone" in self().to_derive:
            return "those of --backbone and --pretrained; default: pretrained weights that are on the machine"
        start = "from scratch" if model.pretrained == "none" else f"weights {model.pretrained}"
        return f"{model.backbone}, {start}"

    def statements(self, config: TrainConfig) -> list[Statement]:
        """Return what the recipe's paper states on fields, loss, data and metrics, with the values of a config."""
        protocols = [f"protocol:{one.partition('=')[2]}" for one in config.run.evaluate_on if "protocol=" in one]
        metrics = [f"metric:{name}" for name in config.run.metrics]
        names = (self.name, f"loss:{config.loss.loss}", f"data:{self.dataset}", *protocols, *metrics)
        fields, own, found = flat(config), flat(self()), []
        for one in statements_of(self.setting.paper, names):
            if one.key in fields.keys() - {*config.to_derive}:
                is_given = fields[one.key] != own[one.key]
                reason = f"{flag_of(one.key)} was given" if is_given else one.because
                one = replace(one, ours=yaml_value(fields[one.key]), because=reason)
            found.append(one)
        return found

    @property
    def values(self) -> tuple[PublishedValue, ...]:
        """The published values of its rows; empty if no paper has the recipe's run."""
        rows = self.published.rows if isinstance(self.published, Published) else ()
        return tuple(value for row in rows for value in row.values)

    @property
    def brief(self) -> str:
        """The values of the first published row in one line; the recipe's sentence if no row is published."""
        return self.published.rows[0].text if isinstance(self.published, Published) else self.published

    def facts_of(self, config: TrainConfig) -> str:
        """Return commands, dataset, weights, hardware, hours, published values and statements, 120 columns wide.

        Args:
            config: config that was made from the recipe.
        """
        command = f"hgld train {self.name} --data DIR --out RUN --seed 0"
        said = self.statements(config)
        plain: dict[str, list[str]] = {}
        for one in said:
            if one.is_plain:
                plain.setdefault(one.where or "its code", []).append(f"{one.key.rstrip('_')} {one.says or one.code}")
        facts = {
            "Command:": (command, f"torchrun --nproc-per-node 8 -m {command}"),
            "Data:": (f"{self.setting.title} ({self.dataset})",),
            "Weights:": (self.weights,),
            "Hardware:": (self.setting.hardware,),
            "Hours:": (self.setting.hours,),
            "Published:": self.published.lines if isinstance(self.published, Published) else (self.published,),
            "Follows:": [f"{where}: {', '.join(values)}" for where, values in plain.items()],
            "Differs:": [one.text for one in said if not one.is_plain],
        }
        told = []
        for label, lines in facts.items():
            broken = [part for line in lines for part in textwrap.wrap(line, _WIDTH, subsequent_indent="  ")]
            told += [f"{'' if i else label:<10} {part}" for i, part in enumerate(broken)]
        return "\n".join(told)

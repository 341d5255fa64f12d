"""The levels of a build: which there are, and how those above the groups come about."""

from dataclasses import dataclass, replace
from pathlib import Path

from hgld.data.format import COLUMNS_BESIDE_LEVELS, check_levels
from hgld.errors import ConfigError, InputError, quoted

from ..config import BuildConfig
from ..groups.given_groups import GivenGroups

LANDMARK_LEVELS = ("landmark", "hierarchical_label", "natural_or_human_made")
NATURAL, HUMAN_MADE = "natural", "human-made"
_RESERVED = (
    "id",
    "name",
    "label",
    "split",
    "landmark_id",
    "file",
    "row",
    "reason",
    "detail",
    "origin",
    "source_offset",
)


@dataclass(frozen=True)
class LevelPlan:
    """The levels of a build.

    Attributes:
        names: of the levels, finest first; at least items and groups.
        numbers: wanted numbers of groups of the levels above the groups that come of the data, finest first; 0: as the
            data give.
        top: the classes of the coarsest level, where it is given by its classes; empty where it is not.
        into: whether the groups are given.
        given: number of levels above the groups that are given with them.
    """

    names: tuple[str, ...] = LANDMARK_LEVELS
    numbers: tuple[int, ...] = ()
    top: tuple[str, ...] = (NATURAL, HUMAN_MADE)
    into: bool = False
    given: int = 0

    @property
    def above(self) -> tuple[str, ...]:
        """The names of the levels above the groups, finest first."""
        return self.names[2:]


LANDMARKS = LevelPlan()


def domain_of(config: BuildConfig) -> str:
    """Return the domain of a build's names: ``landmarks`` or ``general``."""
    if config.names.domain != "auto":
        return config.names.domain
    return "general" if config.source == "classes" else "landmarks"


def plan_levels(config: BuildConfig) -> LevelPlan:
    """Return the levels that a build's options ask for.

    Raises:
        ConfigError: the numbers of levels do not fit together, or a name or number cannot be had.
    """
    if config.names.language_of_names and domain_of(config) == "landmarks":
        raise ConfigError(
            f"--language-of-names {config.names.language_of_names}: landmarks' names are taken as English, as Wikidata "
            "gives them (--language). Add --domain general, or leave it out."
        )
    if config.levels.into is not None:
        return _plan_given(config, config.levels.into)
    given, numbers, top = config.levels.levels, config.levels.coarser, config.levels.top
    landmarks = domain_of(config) == "landmarks"
    names = given or _default_names(config, landmarks)
    check_names(names)
    _check_top(top)
    _check_numbers(config)
    above = len(names) - 2
    if not top and landmarks and len(numbers) < above:
        top = (NATURAL, HUMAN_MADE)
    clustered = above - bool(top)
    if clustered < len(numbers) or clustered < 0:
        raise ConfigError(_too_few(names, numbers, top))
    return LevelPlan(names, (*numbers, *[0] * (clustered - len(numbers))), top)


def _plan_given(config: BuildConfig, file: Path) -> LevelPlan:
    """Return the levels of a build whose groups are given, and perhaps the levels above them."""
    if config.cluster.groups or config.cluster.clusters:
        option = "groups" if config.cluster.groups else "clusters"
        raise ConfigError(f"--{option} is for groups that are to be found; --into {file} gives them. Leave one out.")
    found = GivenGroups.read(file)
    if not found.levels_above:
        without = replace(config, levels=replace(config.levels, into=None))
        return replace(plan_levels(without), into=True)
    if config.levels.coarser or config.levels.top:
        raise ConfigError(
            f"--into {file} gives the levels above the groups by its column 'parent'; leave --top and further numbers "
            "of --groups out, or the column."
        )
    above = found.levels_above
    names = config.levels.levels or (("item", "group", "top") if above == 1 else ())
    if len(names) != above + 2:
        raise ConfigError(
            f"--into {file} has groups and {above} levels of parents; expected --levels with {above + 2} names, finest "
            f"first, found {','.join(names) or 'none'}."
        )
    check_names(names)
    return LevelPlan(names, (), (), into=True, given=above)


def _default_names(config: BuildConfig, landmarks: bool) -> tuple[str, ...]:
    default = ("item", "group", "top") if config.source == "classes" else (*LANDMARK_LEVELS[:2], "top")
    if config.source != "classes" and landmarks and not config.levels.coarser and not config.levels.top:
        return LANDMARK_LEVELS
    above = len(config.levels.coarser) + bool(config.levels.top or (landmarks and not config.levels.coarser))
    if above > 1:
        raise ConfigError(
            f"{above} levels above the groups are asked for ({_asked(config.levels.coarser, config.levels.top)}); name "
            "all levels, finest first: --levels item,group,..."
        )
    return default[: 2 + above]


def check_names(names: tuple[str, ...]) -> None:
    """Refuse names of levels that are fewer than two, or taken by columns of tables.

    Raises:
        ConfigError: naming the level.
    """
    try:
        check_levels(names, "--levels")
    except InputError as error:
        raise ConfigError(str(error)) from error
    if len(names) < 2:
        raise ConfigError(f"--levels {','.join(names)}: expected at least two levels, as in --levels item,group.")
    if taken := [name for name in names[1:] if name in _RESERVED]:
        columns = ", ".join(sorted({*_RESERVED, *COLUMNS_BESIDE_LEVELS}))
        raise ConfigError(f"--levels: no level above the items can be called {quoted(taken[0])}; taken are {columns}.")


def _check_top(top: tuple[str, ...]) -> None:
    if top and (len(top) < 2 or len({name.casefold() for name in top}) < len(top) or not all(map(str.strip, top))):
        raise ConfigError(f"--top {','.join(top)}: expected at least two different classes, as in --top animal,plant.")


def _check_numbers(config: BuildConfig) -> None:
    numbers = [config.cluster.groups, *config.levels.coarser]
    stated = [number for number in numbers if number]
    if any(number < 0 for number in numbers) or stated != sorted(stated, reverse=True):
        raise ConfigError(
            f"--groups {','.join(map(str, numbers))}: expected a number a level, finest first, none larger than the "
            "one before it; 0: as the data give."
        )


def _too_few(names: tuple[str, ...], numbers: tuple[int, ...], top: tuple[str, ...]) -> str:
    return (
        f"--levels {','.join(names)} has {len(names) - 2} levels above {quoted(names[1])}, but "
        f"{_asked(numbers, top)} ask for {len(numbers) + bool(top)}. Name as many levels, or leave numbers out."
    )


def _asked(numbers: tuple[int, ...], top: tuple[str, ...]) -> str:
    asked = [f"--groups ...,{','.join(map(str, numbers))}"] if numbers else []
    return " and ".join([*asked, *([f"--top {','.join(top)}"] if top else [])]) or "the options"

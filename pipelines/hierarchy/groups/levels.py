"""The levels of a build, and the source of each level above the groups."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hgld.data.format import COLUMNS_BESIDE_LEVELS, check_levels
from hgld.errors import ConfigError, InputError, quoted

from ..config import BuildConfig

if TYPE_CHECKING:
    from .given import GivenGroups

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
        names: names of the levels, finest first; at least items and groups.
        numbers: wanted numbers of classes of the clustered levels above the groups, finest first; 0: chosen from the
            data.
        top: predefined classes of the coarsest level; empty if there are none.
        into: whether the groups come from a table (``--into``).
        given: number of predefined levels above the groups.
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


def plan_levels(config: BuildConfig, given: "GivenGroups | None" = None) -> LevelPlan:
    """Return the levels that a build's options ask for.

    Args:
        config: options of the build.
        given: predefined groups; None: no groups are predefined.

    Raises:
        ConfigError: the numbers of levels contradict each other, or a name or number is not allowed.
    """
    landmarks, options = config.domain == "landmarks", config.levels
    if config.names.language_of_names and landmarks:
        raise ConfigError(
            f"--language-of-names {config.names.language_of_names}: hgld reads landmarks' names as English names from "
            "Wikidata. Omit the option, or add --domain general."
        )
    numbers, top = options.coarser, options.top
    asked = [f"--groups ...,{','.join(map(str, numbers))}"] if numbers else []
    asked += [f"--top {','.join(top)}"] if top else []
    above = 0
    if given is not None:
        source = f"--into {options.into}" if options.into else "--tree-use levels"
        if config.cluster.groups:
            raise ConfigError(
                f"--groups is the number of groups that hgld finds, but {source} defines the groups. Omit one of them."
            )
        above = given.levels_above
        if above and asked:
            raise ConfigError(f"{source} defines the levels above the groups. Omit {' and '.join(asked)}.")
    if top and (len(top) < 2 or len({name.casefold() for name in top}) < len(top) or not all(map(str.strip, top))):
        raise ConfigError(f"--top {','.join(top)}: expected at least two different classes, as in --top animal,plant.")
    stated = [number for number in (config.cluster.groups, *numbers) if number]
    if any(number < 0 for number in stated) or stated != sorted(stated, reverse=True):
        raise ConfigError(
            f"--groups {','.join(map(str, (config.cluster.groups, *numbers)))}: expected a number per level, finest "
            "first, none larger than the one before it; 0: chosen from the data."
        )
    names = options.levels
    if not names and given is not None and given.level_names:
        names = ("item", *given.level_names)
    if not names:
        wanted = above or len(numbers) + bool(top or (landmarks and not numbers))
        if wanted > 1:
            raise ConfigError(
                f"there are {wanted} levels above the groups ({' and '.join(asked) or 'parents of groups'}), but no "
                "names for them. Name all levels, finest first: --levels item,group,..."
            )
        plain = config.source != "classes" and landmarks and not asked and not above
        first = ("item", "group") if config.source == "classes" else LANDMARK_LEVELS[:2]
        names = LANDMARK_LEVELS if plain else (*first, "top")[: 2 + wanted]
    check_names(names)
    into = given is not None and given.of_class is None
    if above or (given is not None and not into):
        if len(names) != above + 2:
            raise ConfigError(
                f"--levels {','.join(names)}: the groups have {above} levels of parents; expected {above + 2} names, "
                "finest first."
            )
        return LevelPlan(names, (), (), into=into, given=above)
    if not top and landmarks and len(numbers) < len(names) - 2:
        top = (NATURAL, HUMAN_MADE)
    clustered = len(names) - 2 - bool(top)
    if clustered < len(numbers) or clustered < 0:
        raise ConfigError(
            f"--levels {','.join(names)} has {len(names) - 2} levels above {quoted(names[1])}, but "
            f"{' and '.join(asked) or 'the options'} ask for {len(numbers) + bool(top)}. Name as many levels, or omit "
            "numbers."
        )
    return LevelPlan(names, (*numbers, *[0] * (clustered - len(numbers))), top, into=into)


def check_names(names: tuple[str, ...]) -> None:
    """Raise an error for fewer than two level names, and for a level named like another column.

    Raises:
        ConfigError: there are fewer than two names, or a name is not allowed; the message names the level.
    """
    try:
        check_levels(names, "--levels")
    except InputError as error:
        raise ConfigError(str(error)) from error
    if len(names) < 2:
        raise ConfigError(f"--levels {','.join(names)}: expected at least two levels, as in --levels item,group.")
    if taken := [name for name in names[1:] if name in _RESERVED]:
        columns = ", ".join(sorted({*_RESERVED, *COLUMNS_BESIDE_LEVELS}))
        raise ConfigError(
            f"--levels: no level above the items can be called {quoted(taken[0])}, because hgld uses the names "
            f"{columns} itself."
        )

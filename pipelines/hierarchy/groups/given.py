"""Predefined groups and the levels above them, from a table (``--into``) or a taxonomy (``--tree-use levels``).

A table has the column ``name``. Optional columns are ``description``, ``parent`` (the name of the coarser group) and
``seeds`` (names that belong to the group, separated by ``|``). A group with children is a class of a coarser level;
names are put only into groups without children. The parents form the level above the groups, and their parents form the
next level. A group with fewer ancestors than others has no class at the coarsest levels.

A name that equals a group or one of its seeds goes into this group. Other names go into the group that a regression
finds most probable (:mod:`hgld.pipelines.hierarchy.groups.regression`). Its examples are the name, the description and
the seeds of every group; it learns from the joint evidence and the words of these texts. A name whose best cosine to an
example is at most ``--none-below`` goes into the last group, "none of these". In a taxonomy every name has a class,
which determines the group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from hgld.errors import HierarchyError, TableError, quoted, some
from hgld.tables import read_parquet
from hgld.taxonomy.graph import Taxonomy
from hgld.taxonomy.levels import even_levels

from ...stage import Progress, StageResult, StageRun, files_of, key_of, run_stage
from ..config import BuildConfig, TreeConfig
from ..encoders.embed import encoder_of
from ..encoders.registry import Encoder, is_fitted_on_names
from ..names.classes import NAME, SHOWN, NameTable, check_lengths
from ..names.clean import name_key
from ..unit_rows import nearest
from .cluster import Clustering, write_groups
from .doubt import Given, wrong_probabilities
from .evidence import Evidence, add_words, learning_rows, read_evidence
from .regression import group_shares

NONE = "none of these"
TREE = "tree"
VERSION = 12  # version 12: seeds show a narrower range of levels
EXAMPLES, EXAMPLE_ROWS = "examples.parquet", "example_rows.npy"
_ALIASES = {"seed": "seeds", "seed names": "seeds", "seed_names": "seeds"}
_MOST_TEXT = {"name": 500, "description": 20_000, "parent": 500, "seeds": 100_000}
_MOST_LISTED = 10
_LEAST_SEEDS = 3  # a group with fewer seeds is not tested: without one of them, its name would decide almost alone
_FOLDS = 5


@dataclass(frozen=True)
class GivenGroup:
    """A predefined group: name, origin, description, seeds, and coarser classes, finest first."""

    name: str
    evidence: str
    description: str = ""
    seeds: tuple[str, ...] = ()
    above: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class GivenGroups:
    """Predefined groups.

    Attributes:
        groups: the groups in the order of their file.
        notes: notes for the user, one line each.
        level_names: name of the groups' level, and names of the levels above; empty if the file names no levels.
        of_class: index of the group for each class of a taxonomy; None if the texts of the names determine their
            groups.
    """

    groups: tuple[GivenGroup, ...]
    notes: tuple[str, ...] = ()
    level_names: tuple[str, ...] = ()
    of_class: Mapping[str, int] | None = field(default=None, compare=False)

    @property
    def levels_above(self) -> int:
        """Number of levels above the groups that their parents form."""
        return max(len(group.above) for group in self.groups)


def read_groups(file: Path) -> GivenGroups:
    """Read the groups of ``--into``.

    Raises:
        TableError: the file cannot be read as a list or table of names, or has no group. Or a group occurs twice, is
            called "none of these", or is below itself.
    """
    table = NameTable.read(file, tuple(_MOST_TEXT), _ALIASES)
    rows: dict[str, tuple[int, Mapping[str, str]]] = {}
    for line, cells in table.rows():
        check_lengths(file, line, cells, _MOST_TEXT)
        if not any(cells.values()):
            continue
        key = name_key(cells.get(NAME, ""))
        if not key:
            raise TableError(
                f"{file}, line {line}: no name; expected a group in every row. Name it, or delete the row."
            )
        if key in rows:
            raise TableError(
                f"{file}: the group {quoted(cells[NAME][:SHOWN])} is in line {rows[key][0]} and in line {line}; "
                "expected it once. Join the two rows; | separates several seeds."
            )
        if key == NONE:
            raise TableError(
                f"{file}, line {line}: a group cannot be called {NONE!r}, because names without a group have this "
                "label."
            )
        rows[key] = (line, cells)
    parent = {key: cells["parent"] for key, (_, cells) in rows.items() if cells.get("parent")}
    spelling = {name_key(name): name for name in reversed(parent.values())}
    parents = set(spelling)
    spelling |= {key: cells[NAME] for key, (_, cells) in rows.items()}
    groups = []
    for key, (line, cells) in rows.items():
        above, step = [], key
        while step in parent:
            step = name_key(parent[step])
            if spelling[step] in above or step == key:
                raise TableError(
                    f"{file}, line {line}: {quoted(spelling[step][:SHOWN])} is below itself; expected a tree. Correct "
                    "the column 'parent'."
                )
            above.append(spelling[step])
        if key not in parents:
            said = cells.get("description", "")
            seeds = tuple(dict.fromkeys(filter(None, map(str.strip, cells.get("seeds", "").split("|")))))
            evidence = f"given in line {line}{f'; {len(seeds)} seeds' * bool(seeds)}{f': {said}' * bool(said)}"
            groups.append(GivenGroup(cells[NAME], evidence, said, seeds, tuple(above)))
    if not groups:
        raise TableError(
            f"{file}: every group is the parent of another group; expected at least one group without children."
        )
    return GivenGroups(tuple(groups), table.notes())


def tree_groups(
    taxonomy: Taxonomy, config: TreeConfig, class_ids: Sequence[str], names: Sequence[str] = ()
) -> GivenGroups:
    """Return the classes of a taxonomy above the names as groups.

    Args:
        taxonomy: the taxonomy.
        config: rules for parents and levels.
        class_ids: classes of the names.
        names: level names, finest first; empty: the names that the rules give.

    Raises:
        ConfigError: the number of level names is not the number of levels.
        HierarchyError: the rules do not suit the taxonomy, or no level is above the names.
    """
    position = {class_id: place for place, class_id in enumerate(taxonomy.ids)}
    items = [position[class_id] for class_id in sorted(set(class_ids))]
    found = even_levels(taxonomy, parents=config.parents, cut=config.cut, levels=names, items=items)
    if len(found.hierarchy.levels) < 2:
        raise HierarchyError(
            f"{taxonomy.source}: --cut {found.cut} gives no level above the names. Choose another --cut, or "
            "--tree-use evidence."
        )
    hierarchy, source = found.hierarchy, Path(taxonomy.source).name
    labels = hierarchy.expand(range(hierarchy.num_classes[0]))[:, 1:].tolist()
    used = sorted({row[0] for row in labels if row[0] >= 0}, key=lambda label: hierarchy.names[1][label])
    index = {label: place for place, label in enumerate(used)}
    above = {row[0]: row[1:] for row in labels}
    groups = tuple(
        GivenGroup(
            hierarchy.names[1][label],
            f"class {taxonomy.ids[found.nodes[1][label]]} of {source}, by {found.cut}",
            above=tuple(hierarchy.names[c][n] if n >= 0 else None for c, n in enumerate(above[label], 2)),
        )
        for label in used
    )
    placed = zip(found.nodes[0].tolist(), labels, strict=True)
    of_class = {taxonomy.ids[node]: index[row[0]] for node, row in placed if row[0] >= 0}
    return GivenGroups(groups, level_names=tuple(hierarchy.levels[1:]), of_class=of_class)


def has_given_levels(build: Path) -> bool:
    """Tell whether a finished build has the levels of a taxonomy, whose groups the review does not learn."""
    groups = build / "stages" / "cluster" / "groups.parquet"
    return groups.is_file() and read_parquet(groups, columns=["method"])["method"].eq(TREE).all()


@dataclass(frozen=True, eq=False)
class Examples:
    """Texts of groups: E texts, (E,) indices of their groups, and (E, D) float32 unit rows."""

    texts: tuple[str, ...]
    groups: np.ndarray
    rows: np.ndarray


def embed_examples(
    encoder: Encoder, groups: Sequence[GivenGroup], names: Sequence[str], evidence: Evidence
) -> tuple[np.ndarray, Examples]:
    """Return the (N, D) rows of names from which groups are learned, and the examples of predefined groups.

    A seed that is a name has this name's row. Texts of which the encoder knows no word are not examples.
    """
    index = {name_key(name): i for i, name in enumerate(names)}
    told = [(t, place) for place, g in enumerate(groups) for t in (g.name, g.description, *g.seeds) if t]
    rows, others = learning_rows(evidence, encoder.encode([text for text, _ in told]))
    for i, (text, _) in enumerate(told):
        if (name := index.get(name_key(text))) is not None:
            others[i] = rows[name]
    kept = np.flatnonzero(others.any(axis=1))
    return rows, Examples(tuple(told[i][0] for i in kept), np.array([told[i][1] for i in kept], int), others[kept])


def place_names(
    rows: np.ndarray, names: Sequence[str], given: GivenGroups, examples: Examples, least: float
) -> tuple[Clustering, Given]:
    """Put names into predefined groups; group G is "none of these". Return the placements, and what is known of them.

    Args:
        rows: (N, D) unit rows of the names.
        names: N names.
        given: the G predefined groups.
        examples: texts of the groups.
        least: minimum cosine: a name whose cosine to every example is at most this value gets no group, unless it
            equals a group or a seed.
    """
    count = len(given.groups)
    exact: dict[str, int] = {}
    for texts in ([(group.name,) for group in given.groups], [group.seeds for group in given.groups]):
        for place, of in enumerate(texts):
            for text in of:
                exact.setdefault(name_key(text), place)
    named = np.array([exact.get(name_key(name), -1) for name in names])
    told, cosine = add_words(rows, examples.rows, [*names, *examples.texts]), np.full(len(names), -1.0)
    shares = group_shares(*told, examples.groups, count)
    if len(examples.groups):
        cosine = nearest(rows, examples.rows, 1)[1][:, 0]
    shares[named >= 0] = np.eye(count)[named[named >= 0]]
    shares, cosine = shares.round(6), cosine.round(6)  # round, because the last bits differ between machines
    order = np.argsort(-shares, axis=1, kind="stable")
    fits = (named >= 0) | ((cosine > least) & rows.any(axis=1))
    placed = np.where(fits, order[:, 0], count)
    second = order[:, 1] if count > 1 else np.full(len(names), -1)
    confidence = np.where(fits, shares.max(axis=1), 0).astype(np.float32)
    labels = [*(group.name for group in given.groups), ""]
    known = Given(labels, confidence, named >= 0, *_predict_seeds(told[1], examples, given))
    return Clustering(placed, confidence, np.where(fits, second, order[:, 0]), cosine), known


def _predict_seeds(rows: np.ndarray, examples: Examples, given: GivenGroups) -> tuple[np.ndarray, np.ndarray]:
    """Return the groups of seeds, and whether the other examples predict them; a fifth is left out at a time.

    Args:
        rows: (E, D) unit rows of the examples.
        examples: texts of the groups.
        given: the predefined groups.
    """
    groups = examples.groups
    is_seed = np.array([text in given.groups[g].seeds for text, g in zip(examples.texts, groups, strict=True)], bool)
    number = np.bincount(groups[is_seed], minlength=len(given.groups))
    tested = np.flatnonzero(is_seed & (number[groups] >= _LEAST_SEEDS))
    right = np.zeros(len(tested), dtype=bool)
    for fold in range(min(_FOLDS, len(tested))):
        part = tested[fold::_FOLDS]
        others = np.setdiff1d(np.arange(len(rows)), part)
        shares = group_shares(rows[part], rows[others], groups[others], len(given.groups))
        right[fold::_FOLDS] = shares.argmax(axis=1) == groups[part]
    return groups[tested], right


# -- the stage -----------------------------------------------------------------------------------------------------


def run(
    root: Path, stages: Mapping[str, StageRun], config: BuildConfig, progress: Progress, *, given: GivenGroups
) -> StageRun:
    """Run the stage ``cluster`` on predefined groups; it writes the usual tables, and ``above.parquet``.

    ``above.parquet`` has the classes above the groups: group, place (0: the level above the groups), label. For groups
    of a table, ``examples.parquet`` has their texts (group, text), and ``example_rows.npy`` has (E, D) float32 rows of
    these texts in the space of :func:`hgld.pipelines.hierarchy.groups.evidence.learning_rows`.

    Args:
        root: the build's directory of stages.
        stages: the finished stages.
        config: options of the build. The stage reads ``levels.none_below`` (a name whose best cosine is at most this
            value gets no group), ``domain`` and the encoder.
        progress: receives the current task.
        given: the predefined groups.
    """
    blocks = [f"evidence/{file.name}" for file in sorted(stages["evidence"].directory.glob("block-*.npy"))]
    inputs = files_of(stages, "clean/names.parquet", "embed/encoder.json", "evidence/evidence.json", *blocks)
    least = config.levels.none_below
    if least is None:
        least = 0.0 if is_fitted_on_names(config.embed.encoder) else -1.0
    settings = {"given": key_of(repr(given.groups)), "none_below": least, "domain": config.domain}
    work = partial(_place, inputs, config, given, least, progress)
    return run_stage("cluster", root, version=VERSION, config=settings, inputs=inputs, work=work)


def _place(
    inputs: Mapping[str, Path], config: BuildConfig, given: GivenGroups, least: float, progress: Progress, out: Path
) -> StageResult:
    names = read_parquet(inputs["clean/names.parquet"])
    above = [
        (g, place, label) for g, group in enumerate(given.groups) for place, label in enumerate(group.above) if label
    ]
    schema = {"group": pl.Int32, "place": pl.Int32, "label": pl.String}
    pl.DataFrame(above, schema=schema, orient="row").write_parquet(out / "above.parquet")
    counts = {"names": len(names), "groups": len(given.groups)}
    if given.of_class is not None:
        groups = np.array([given.of_class[ids[0]] for ids in names["class_ids"].to_list()])
        sure, nobody = np.ones(len(names)), np.full(len(names), -1)
        labels = [(group.name, TREE, group.evidence) for group in given.groups]
        write_groups(out, names, Clustering(groups, sure, nobody, sure), sure - 1, labels)
        return StageResult(counts, details={"criterion": TREE})
    progress("place the names", 0, 1)
    encoder, texts = encoder_of(inputs["clean/names.parquet"], config), names["name"].to_list()
    evidence = read_evidence(inputs["evidence/evidence.json"].parent)
    rows, examples = embed_examples(encoder, given.groups, texts, evidence)
    placed, stated = place_names(rows, texts, given, examples, least)
    wrong = wrong_probabilities(rows, placed.groups, texts, given=stated)
    progress("place the names", 1, 1)
    labels = [(group.name, "given", group.evidence) for group in given.groups]
    labels.append((NONE, "given", "names that fit no predefined group"))
    write_groups(out, names, placed, wrong, labels)
    pl.DataFrame({"group": examples.groups, "text": examples.texts}).write_parquet(out / EXAMPLES)
    np.save(out / EXAMPLE_ROWS, examples.rows, allow_pickle=False)
    outside = [name for name, group in zip(texts, placed.groups, strict=True) if group == len(given.groups)]
    notes = list(given.notes)
    if outside:
        notes.append(
            f"{NONE}: {some(outside, _MOST_LISTED)}. They have no group in the labels; a decision of kind move gives "
            "a name a group."
        )
    counts[NONE] = len(outside)
    return StageResult(counts, notes=tuple(notes), details={NONE: outside})

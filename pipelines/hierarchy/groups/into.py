"""Names put into given groups (``--into``): the cluster stage of a build whose groups are not to be found.

A name goes into the group that it names: the one that it equals, or one of whose seeds it equals; next the one whose
name, taken whole, ends it ("red apple" in "apple" or "apples"; of several the longest). Other names go into the nearest
group by the encoder. A name's row is the mean of its own and its description's; a group's that of its name's, its
description's and its seeds'. The score is half the cosine with the group's row and half the cosine with the nearest of
its texts, less half of the group's mean score over all names, so that no group draws names because its words are
common. (``lexical`` is fitted on the names: most of its scores are zero, and are taken as they are, without the
descriptions of names.)

A name fits none of the groups if its best score is below what the best of as many unrelated groups stays below in one
case of twenty. The median of all scores, and their spread by the median deviation, stand for unrelated groups, since a
name belongs into one group of many; names of other things are farther from all groups than these are. Such names are
in the last group, "none of these".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import norm

from hgld.errors import some
from hgld.tables import read_parquet

from ...stage import Progress, StageResult, StageRun, run_stage
from ..config import EmbedConfig, LevelsConfig
from ..encoders.head_noun import singular
from ..encoders.registry import Encoder, is_fitted_on_names
from ..evidence.embed import encoder_of, read_embeddings
from ..names.clean import name_key
from ..names.languages import EVERY, English, read_english
from .cluster import check_rows, name_map, write_map, write_no_curve
from .doubt import DOUBTFUL, Given, wrong_probabilities
from .given_groups import NONE, GivenGroup, GivenGroups
from .kmeans import unit

VERSION = 4  # 2: probabilities of being wrong; 3: descriptions of names; 4: all columns of the empty curve
COMMON = 0.5  # share of a group's mean score that is taken off
UNRELATED = 0.05  # of names of another list .65-1.0 are told apart, for 0-.08 of the right places (11 pairs of lists)

LEAST_SPREAD = 1e-6
NAMED = 0.5  # least confidence of a name that ends in its group's name
_DEVIATIONS = 1.4826  # of a normal distribution, in median absolute deviations
_MOST_LISTED = 10


@dataclass(frozen=True, eq=False)
class Placement:
    """The groups of N names among G given ones.

    Attributes:
        groups: (N,) int64 groups; G: none of them.
        confidence: (N,) float32 in 0..1: 1 where the name is the group's, otherwise the margin to the next group.
        next_groups: (N,) int64: the next group; -1 where there is no other.
        method: for each name ``exact``, ``ending``, ``nearest`` or ``none``.
        threshold: least cosine of a name that is put into a group.
    """

    groups: np.ndarray
    confidence: np.ndarray
    next_groups: np.ndarray
    method: tuple[str, ...]
    threshold: float


@dataclass(frozen=True, eq=False)
class GroupRows:
    """The rows of given groups.

    Attributes:
        means: (G, D) float32 unit rows of the groups; zero where the encoder knows none of their words.
        texts: (T, D) float32 unit rows of their names, descriptions and seeds.
        group_of: (T,) their groups.
    """

    means: np.ndarray
    texts: np.ndarray
    group_of: np.ndarray


def embed_groups(encoder: Encoder, groups: Sequence[GivenGroup]) -> GroupRows:
    """Embed the texts of given groups."""
    texts = [(g, kind, text) for g, group in enumerate(groups) for kind, text in _texts(group)]
    rows = encoder.encode([text for _, _, text in texts])
    group_of = np.array([g for g, _, _ in texts])
    means = np.zeros((len(groups), rows.shape[1]), dtype=np.float32)
    for kind in ("name", "description", "seeds"):
        chosen = np.array([stated == kind for _, stated, _ in texts])
        part = np.zeros_like(means)
        np.add.at(part, group_of[chosen], rows[chosen])
        means += unit(part)
    return GroupRows(unit(means).astype(np.float32), rows, group_of)


def _texts(group: GivenGroup) -> list[tuple[str, str]]:
    described = [("description", group.description)] if group.description else []
    return [("name", group.name), *described, *(("seeds", seed) for seed in group.seeds)]


def with_descriptions(rows: np.ndarray, descriptions: Sequence[str | None], encoder: Encoder) -> np.ndarray:
    """Return the mean of each name's row and its description's, where it has one: (N, D) unit rows."""
    described = [place for place, text in enumerate(descriptions) if text]
    if not described:
        return rows
    joint = rows.copy()
    joint[described] += encoder.encode([text for text in descriptions if text])
    return unit(joint).astype(np.float32)


def place_names(
    rows: np.ndarray,
    names: Sequence[str],
    groups: Sequence[GivenGroup],
    embedded: GroupRows,
    *,
    fitted: bool,
    none_below: float = 0.0,
    english: English = EVERY,
) -> Placement:
    """Put names into given groups.

    Args:
        rows: (N, D) unit rows of the names.
        names: N names.
        groups: G groups.
        embedded: their rows.
        fitted: whether the encoder was fitted on the names.
        none_below: least cosine of a name that is put into a group by nearness; 0: as the data give.
        english: which texts are English.
    """
    cosine = rows @ embedded.means.T
    nearest = np.full_like(cosine, -1)
    for text, group in enumerate(embedded.group_of):
        nearest[:, group] = np.maximum(nearest[:, group], rows @ embedded.texts[text])
    scores = ((cosine + nearest) / 2).round(6)  # the last bits of unrelated rows differ between machines
    threshold = none_below or unrelated_best(scores)
    corrected = scores if fitted else scores - COMMON * scores.mean(axis=0)
    order = np.argsort(-corrected, axis=1, kind="stable")
    chosen = order[:, 0].astype(np.int64)
    fits = np.take_along_axis(scores, chosen[:, None], axis=1)[:, 0] >= threshold
    fits &= (scores != 0).any(axis=1)  # names of which the encoder knows nothing are near to no group
    named, method = _named(names, groups, english)
    exact = np.array([how == "exact" for how in method])
    is_named = named >= 0
    placed = np.where(is_named, named, np.where(fits, chosen, len(groups)))
    following = np.where(chosen == placed, order[:, 1] if len(groups) > 1 else -1, chosen)
    confidence = _margins(scores, np.minimum(placed, len(groups) - 1), following)
    confidence[is_named] = np.maximum(confidence[is_named], NAMED)
    confidence[exact] = 1
    confidence[placed == len(groups)] = 0
    said = [how or ("nearest" if fit else "none") for how, fit in zip(method, fits, strict=True)]
    return Placement(placed, confidence, following, tuple(said), float(threshold))


def unrelated_best(scores: np.ndarray) -> float:
    """Return the score that the best of G unrelated groups stays below in one case of twenty.

    Args:
        scores: (N, G) of all names and groups, most of which are unrelated.
    """
    middle = float(np.median(scores))
    spread = _DEVIATIONS * float(np.median(np.abs(scores - middle)))
    if spread < LEAST_SPREAD:
        return max(middle, 0.0)  # an encoder that gives most pairs nothing: whatever it gives is a relation
    return middle + spread * float(norm.ppf(UNRELATED ** (1 / scores.shape[1])))


def _margins(scores: np.ndarray, own: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Return (b - a) / max(a, b) of the distances a to the own group and b to the next one; 1 where there is none."""
    near = 1 - np.take_along_axis(scores, own[:, None], axis=1)[:, 0]
    far = 1 - np.take_along_axis(scores, np.maximum(following, 0)[:, None], axis=1)[:, 0]
    margin = np.clip((far - near) / np.maximum(np.maximum(near, far), 1e-6), 0, 1)
    return np.where(following < 0, 1, margin).astype(np.float32)


def _named(names: Sequence[str], groups: Sequence[GivenGroup], english: English) -> tuple[np.ndarray, list[str]]:
    """Return the group that each name names, -1 where none, and how: ``exact``, ``ending`` or nothing.

    The last word of an English name may be the plural of the group's, or the other way round.
    """
    exact: dict[str, int] = {}
    endings: dict[str, int] = {}
    for place, group in enumerate(groups):
        exact.setdefault(name_key(group.name), place)
        for form in _forms(name_key(group.name), english(group.name)):
            endings.setdefault(form, place)
    for place, group in enumerate(groups):
        for seed in group.seeds:
            exact.setdefault(name_key(seed), place)
    found, method = np.full(len(names), -1, dtype=np.int64), []
    for i, name in enumerate(names):
        key = name_key(name)
        place, how = exact.get(key, -1), "exact"
        if place < 0:
            place = next((endings[ending] for ending in _endings(key, english(name)) if ending in endings), -1)
            how = "ending" if place >= 0 else ""
        found[i] = place
        method.append(how)
    return found, method


def _endings(key: str, english: bool) -> list[str]:
    """Return a name and its endings by whole words, the longest first, each in all its forms."""
    words = key.split() or [key]
    return [form for k in range(len(words)) for form in _forms(" ".join(words[k:]), english)]


def _forms(text: str, english: bool) -> list[str]:
    """Return a text, and after it an English one with its last word singular."""
    before, space, last = text.rpartition(" ")
    return [text, f"{before}{space}{singular(last)}"] if english else [text]


# -- the stage -----------------------------------------------------------------------------------------------------


def run(
    root: Path,
    cleaned: StageRun,
    embedded: StageRun,
    config: LevelsConfig,
    embedding: EmbedConfig,
    progress: Progress,
    *,
    domain: str,
) -> StageRun:
    """Run the stage ``cluster`` on given groups: its tables, ``group_rows.npy`` and ``above.parquet``.

    ``group_rows.npy`` has the (G + 1, D) float32 rows of the groups in the space of the names, in the order of
    ``groups.parquet``; that of the last group, "none of these", is zero. ``above.parquet`` has the parents: group,
    place (0: the level above the groups), label.

    Args:
        root: the build's directory of stages.
        cleaned: the clean stage (names).
        embedded: the embed stage (their embeddings).
        config: which file of groups.
        embedding: the embed stage's options, for the same encoder to embed the groups.
        progress: told what is being done.
        domain: of the names.

    Raises:
        TableError: the file of groups cannot be used, or the inputs do not belong together.
    """
    assert config.into is not None
    inputs = {
        "clean/names": cleaned.path("names.parquet"),
        "embed/embeddings": embedded.path("embeddings.npy"),
        "embed/encoder": embedded.path("encoder.json"),
        "into": config.into,
    }
    settings = {"into": True, "none_below": config.none_below, "domain": domain}
    work = partial(_place, inputs, config, embedding, domain, progress)
    return run_stage("cluster", root, version=VERSION, config=settings, inputs=inputs, work=work)


def _place(
    inputs: Mapping[str, Path],
    config: LevelsConfig,
    embedding: EmbedConfig,
    domain: str,
    progress: Progress,
    out: Path,
) -> StageResult:
    names = read_parquet(inputs["clean/names"])
    rows = read_embeddings(inputs["embed/embeddings"])
    check_rows(names, rows, inputs["embed/embeddings"])
    given = GivenGroups.read(inputs["into"])
    progress("place the names", 0, 1)
    encoder = encoder_of(inputs["clean/names"], embedding, domain)
    embedded = embed_groups(encoder, given.groups)
    fitted = is_fitted_on_names(embedding.encoder)
    if not fitted and "description" in names.columns:
        rows = with_descriptions(rows, names["description"].to_list(), encoder)
    placed = place_names(
        rows,
        names["name"].to_list(),
        given.groups,
        embedded,
        fitted=fitted,
        none_below=config.none_below,
        english=read_english(inputs["clean/names"], domain),
    )
    progress("place the names", 1, 1)
    progress("estimate what is wrong", 0, 1)
    into = Given([*(group.name for group in given.groups), ""], placed.confidence)
    wrong = wrong_probabilities(rows, placed.groups, names["name"].to_list(), given=into)
    progress("estimate what is wrong", 1, 1)
    members = names.select("name", "landmarks").with_columns(
        pl.Series("cluster", placed.groups, dtype=pl.Int32),
        pl.Series("group", placed.groups, dtype=pl.Int32),
        pl.Series("confidence", placed.confidence),
        pl.Series("next_group", placed.next_groups, dtype=pl.Int32).replace(-1, None),
        pl.Series("wrong", wrong),
        pl.Series("doubtful", wrong > DOUBTFUL),
    )
    _write(out, members, given, embedded, name_map(rows))
    return _result(members, placed, given)


def _write(out: Path, members: pl.DataFrame, given: GivenGroups, embedded: GroupRows, places: np.ndarray) -> None:
    members.write_parquet(out / "names.parquet")
    sizes = {group: (count, total) for group, count, total in _sizes(members).iter_rows()}
    last = len(given.groups)
    rows: list[dict[str, Any]] = [
        {"group": g, "label": group.name, "method": "given", "evidence": _evidence(group)}
        for g, group in enumerate(given.groups)
    ]
    rows.append({"group": last, "label": NONE, "method": "given", "evidence": "names that fit no given group"})
    counted = [
        {**row, "names": sizes.get(g, (0, 0))[0], "landmarks": sizes.get(g, (0, 0))[1]} for g, row in enumerate(rows)
    ]
    pl.DataFrame(counted, schema_overrides={"group": pl.Int32}).write_parquet(out / "groups.parquet")
    above = [(g, place, label) for g, group in enumerate(given.groups) for place, label in enumerate(group.above)]
    schema = {"group": pl.Int32, "place": pl.Int32, "label": pl.String}
    pl.DataFrame(above, schema=schema, orient="row").write_parquet(out / "above.parquet")
    whole = np.vstack([embedded.means, np.zeros((1, embedded.means.shape[1]), dtype=np.float32)])
    np.save(out / "group_rows.npy", whole, allow_pickle=False)
    write_no_curve(out)
    write_map(out, members, places)


def _sizes(members: pl.DataFrame) -> pl.DataFrame:
    return members.group_by("group").agg(pl.len(), pl.col("landmarks").sum())


def _evidence(group: GivenGroup) -> str:
    seeds = f"; {len(group.seeds)} seeds" if group.seeds else ""
    return f"given in line {group.line}{seeds}" + (f": {group.description}" if group.description else "")


def _result(members: pl.DataFrame, placed: Placement, given: GivenGroups) -> StageResult:
    outside = members.filter(pl.col("group") == len(given.groups))["name"].to_list()
    empty = [g.name for i, g in enumerate(given.groups) if not (placed.groups == i).any()]
    counts = {"names": len(members), "groups": len(given.groups)}
    counts |= {f"placed by {how}": placed.method.count(how) for how in ("exact", "ending", "nearest")}
    counts |= {NONE: len(outside), "groups without names": len(empty)}
    notes = list(given.notes)
    if outside:
        notes.append(
            f"{NONE}: {some(outside, _MOST_LISTED)}. They have no group in the labels; decisions of kind move give "
            "them one."
        )
    if empty:
        notes.append(f"groups without names: {some(empty, _MOST_LISTED)}.")
    return StageResult(
        counts,
        notes=tuple(notes),
        details={"least cosine": round(placed.threshold, 6), NONE: outside},
    )

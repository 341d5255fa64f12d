"""The top-level stage: the levels above the groups, and the class of every group at the coarsest of them.

Levels whose classes come of the data are groups of groups (:func:`coarsen`), named as groups are. They are joined by
the evidence of meaning alone: like wording joins few names of one kind, and says nothing about large groups.

A coarsest level that is given by its classes is decided for the groups of the level below it by the first of these that
can; otherwise the group has no top, and is listed.

1. The class graph. Natural and human-made are the classes stated in ``top_level.yaml``; any other given class is every
   class of the graph that is called so. A name has the nearest one at or above its own classes; of two that are equally
   near human-made, otherwise none. A group has the one of most of what its names stand for, if that leads the next one
   by a third of all of it, names without evidence included.
2. The encoder. A class is given by texts alone: its name, or the prompts of ``top_level.yaml``
   (:func:`class_shares`). The class with the largest share in the group's names must lead the next one by the margin,
   and must not contradict the graph.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from scipy.sparse import csr_array, diags_array
from threadpoolctl import threadpool_limits

from hgld.errors import some
from hgld.settings import key_fields
from hgld.tables import read_parquet

from ...stage import Progress, StageResult, StageRun, files_of, run_stage
from ..config import BuildConfig, TopLevelConfig
from ..encoders.embed import encoder_of, read_embeddings
from ..encoders.registry import Encoder
from ..names.class_graph import ClassGraph
from ..names.name_classes import match_key
from ..unit_rows import leading_axes, nearest, sums, unit
from .clustering import coarsen
from .group_names import label_groups
from .levels import HUMAN_MADE, LANDMARKS, NATURAL, LevelPlan

VERSION = 4  # 4: one rule for all classes of the top level
ANCHORS = Path(__file__).with_name("top_level.yaml")
OPEN = "open"
LEAST_LEAD = 1 / 3
_MOST_LISTED = 10
_MOST_SHOWN = 4


@dataclass(frozen=True)
class Anchors:
    """The definition of natural and human-made: classes (id to kind, ``open`` for neither) and prompts by kind."""

    classes: Mapping[str, str]
    prompts: Mapping[str, Sequence[str]]

    @classmethod
    @cache
    def read(cls) -> "Anchors":
        data = yaml.safe_load(ANCHORS.read_text(encoding="utf-8"))
        return cls({class_id: kind for kind, ids in data["classes"].items() for class_id in ids}, data["prompts"])


@dataclass(frozen=True)
class Decision:
    """A group's class at a coarser level.

    Attributes:
        top: the class; None: undecided.
        method: ``p279`` (the class graph), ``encoder``, ``groups``, ``given`` or ``tree``; None: undecided.
        evidence: reason for the decision, for people.
        margin: lead over the next class.
        leading: the class that has most evidence, whether or not that decides.
        is_outside: whether the graph knows most of the group to be below none of the given classes.
    """

    top: str | None
    method: str | None
    evidence: str
    margin: float
    leading: str | None = None
    is_outside: bool = False


def run(
    root: Path, stages: Mapping[str, StageRun], config: BuildConfig, progress: Progress, *, plan: LevelPlan = LANDMARKS
) -> StageRun:
    """Run the stage: ``groups.parquet`` with top, method, evidence and margin of every group, and ``levels.parquet``.

    ``levels.parquet`` has a row for every group and level above it, finest first: group, level, label, method,
    evidence, margin. ``top`` is the label at the coarsest of them, null if there is none or it is not decided.

    Args:
        root: the build's directory of stages.
        stages: the finished stages.
        config: the margin, and the encoder of the classes' texts, whose weights are read only if they are needed.
        progress: told what is being done.
        plan: the levels.

    Raises:
        ConfigError: an option out of range.
        MissingResourceError: the encoder's weights are needed and cannot be had.
        TableError: the inputs do not belong together.
    """
    files = ("clean/names.parquet", "cluster/names.parquet", "cluster/groups.parquet", "scrape/classes.parquet")
    more = ("embed/embeddings.npy", "evidence/meaning.npy", "embed/encoder.json")
    above = ("cluster/above.parquet",) if plan.given else ()
    inputs = files_of(stages, *files, *more, *above) | {"anchors": ANCHORS}
    settings = {**key_fields(config.toplevel), "plan": asdict(plan), "domain": config.domain}
    work = partial(_decide, inputs, config, plan, progress)
    return run_stage("toplevel", root, version=VERSION, config=settings, inputs=inputs, work=work)


def _decide(
    inputs: Mapping[str, Path], config: BuildConfig, plan: LevelPlan, progress: Progress, out: Path
) -> StageResult:
    names, groups = _tables(inputs)
    meaning = read_embeddings(inputs["evidence/meaning.npy"])
    kept = np.arange(len(names))
    graph = ClassGraph.read(inputs["scrape/classes.parquet"])
    levels: list[dict[int, Decision]] = [{} for _ in range(plan.given)]
    if plan.given:
        for group, place, label in read_parquet(inputs["cluster/above.parquet"]).iter_rows():
            levels[place][group] = Decision(label, groups["method"][0], "given as parent", 1.0)
    notes: list[str] = []
    if plan.into:  # names that fit no group have no coarser class either
        inside = (names["group"] < groups["group"].max()).to_numpy()
        names, meaning, kept = names.filter(inside), meaning[inside], np.flatnonzero(inside)
    filled, units = np.unique(names["group"].to_numpy(), return_inverse=True)  # units: of names, at the current level
    above = np.arange(len(filled))  # of groups with names: their unit
    for level, wanted in zip(plan.above[plan.given :], plan.numbers if len(names) else (), strict=False):
        progress(f"level {level}", 0, 1)
        joined, lead = coarsen(meaning, units, wanted)
        coarser = joined[units]
        centres = unit(sums(meaning, coarser, int(coarser.max()) + 1))
        labels = label_groups(names, coarser, (meaning * centres[coarser]).sum(axis=1), graph, config.domain)
        made = [
            Decision(
                labels[j].label,
                "groups",
                f"groups of near names; named by {labels[j].method}: {labels[j].evidence}",
                float(margin),
            )
            for j, margin in zip(joined, lead, strict=True)
        ]
        levels.append({group: made[above[i]] for i, group in enumerate(filled.tolist())})
        if wanted > len(labels):
            notes.append(f"{level} has {len(labels)} classes where {wanted} were wanted: there are no more groups.")
        units, above = joined[units], joined[above]
    if plan.top and len(names):

        def encoded() -> tuple[Encoder, np.ndarray]:
            rows = read_embeddings(inputs["embed/embeddings.npy"])[kept]
            return encoder_of(inputs["clean/names.parquet"], config), rows

        tops = Tops(graph, plan.top, encoded, meaning, config.toplevel.margin)
        members = names.with_columns(unit=units).with_row_index("place").group_by("unit").agg(pl.all()).sort("unit")
        decided = []
        for row in members.iter_rows(named=True):
            progress("the top level", len(decided), len(members))
            classes = [ids or () for ids in row["class_ids"]]
            decided.append(tops.decide(row["name"], row["landmarks"], classes, row["place"]))
        levels.append({group: decided[above[i]] for i, group in enumerate(filled.tolist())})
    top = _with_decisions(groups.select("group", "label"), "top", levels[-1] if levels else {})
    top.write_parquet(out / "groups.parquet")
    levels += [{}] * (len(plan.above) - len(levels))  # if no name is in any group
    tables = [
        _with_decisions(groups.select("group", level=pl.lit(level)), "label", decisions)
        for level, decisions in zip(("", *plan.above), ({}, *levels), strict=True)
    ]
    pl.concat([tables[0].clear(), *tables[1:]]).write_parquet(out / "levels.parquet")
    return _stage_result(top, plan, notes)


class Tops:
    """Decisions between given classes of the top level.

    Args:
        graph: the class graph.
        classes: the classes, at least two.
        encoded: returns the encoder and the (N, D) unit rows of all names by it; called only if they are needed.
        around: (N, E) unit rows of the joint evidence, which says which names are neighbours.
        margin: least lead of a share that decides.
    """

    def __init__(
        self, graph: ClassGraph, classes: Sequence[str], encoded: Any, around: np.ndarray, margin: float
    ) -> None:
        self._graph, self._classes, self._encoded, self._around = graph, tuple(classes), encoded, around
        self._margin = margin
        self._is_natural = set(classes) == {NATURAL, HUMAN_MADE}
        self._anchors = Anchors.read().classes if self._is_natural else named_tops(graph, classes)

    def decide(
        self, names: Sequence[str], counts: Sequence[int], classes: Sequence[Sequence[str]], members: Sequence[int]
    ) -> Decision:
        """Decide the class of a group.

        Args:
            names: the group's names.
            counts: number of landmarks or items of every name; at least one is counted.
            classes: ids of every name's classes.
            members: indices of the names among all names.
        """
        by_graph = decide_by_graph(names, counts, classes, self._graph, self._anchors)
        complete = not self._is_natural and set(self._anchors.values()) == set(self._classes)
        if by_graph.top is not None or (by_graph.is_outside and complete):
            return by_graph
        means = np.average(self._shares[np.array(members)], axis=0, weights=np.maximum(counts, 1))
        order = np.argsort(-means, kind="stable")
        lead, best = float(means[order[0]] - means[order[1]]), self._classes[order[0]]
        said = ", ".join(f"{self._classes[i]} {means[i]:.3f}" for i in order[:_MOST_SHOWN])
        evidence = f"shares: {said}; lead {lead:.3f} of {self._margin:.3f} needed"
        evidence = "; ".join(filter(None, (by_graph.evidence, evidence)))
        if lead < self._margin or lead == 0:
            return Decision(None, None, evidence, lead)
        if by_graph.leading not in (None, best):
            return Decision(None, None, f"{evidence}; they contradict each other", lead)
        return Decision(best, "encoder", evidence, lead)

    @cached_property
    def _shares(self) -> np.ndarray:
        encoder, rows = self._encoded()
        prompts = Anchors.read().prompts
        texts = [
            encoder.encode(prompts[name]) if self._is_natural else text_rows(encoder, [name]) for name in self._classes
        ]
        return class_shares(rows, texts, self._around)


def named_tops(graph: ClassGraph, tops: Sequence[str]) -> dict[str, str]:
    """Return the given class that each class of the graph is, by its id; empty if none is called so.

    >>> named_tops(ClassGraph({"Q1": "Animal", "Q2": "dog"}, {"Q2": ["Q1"]}), ("animal", "plant"))
    {'Q1': 'animal'}
    """
    wanted = {match_key(top): top for top in tops}
    labels = ((class_id, match_key(graph.label(class_id) or "")) for class_id in graph.ids)
    return {class_id: wanted[label] for class_id, label in labels if label in wanted}


def decide_by_graph(
    names: Sequence[str],
    counts: Sequence[int],
    classes: Sequence[Sequence[str]],
    graph: ClassGraph,
    anchors: Mapping[str, str],
) -> Decision:
    """Decide a group's top by its names' classes.

    Args:
        names: the group's names.
        counts: number of landmarks or items of every name; at least one is counted.
        classes: ids of every name's classes; empty if none is known.
        graph: the class graph.
        anchors: the classes of the graph that decide, by their ids; ``open`` decides nothing.
    """
    counted = [max(count, 1) for count in counts]
    total, outside = sum(counted), 0
    votes: Counter[str] = Counter()
    paths: dict[str, str] = {}
    for name, ids, count in sorted(zip(names, classes, counted, strict=True), key=lambda row: (-row[2], row[0])):
        above = {class_id: {class_id: 0, **graph.ancestors(class_id)} for class_id in ids}
        found = sorted((far, a, c) for c, steps in above.items() for a, far in steps.items() if a in anchors)
        outside += count * (not found and any(class_id in graph for class_id in ids))
        ends = {anchors[anchor]: (class_id, anchor) for far, anchor, class_id in reversed(found) if far == found[0][0]}
        kind = HUMAN_MADE if HUMAN_MADE in ends else next(iter(ends)) if len(ends) == 1 else OPEN
        if kind != OPEN:
            votes[kind] += count
            steps = (f"{label} ({step})" if (label := graph.label(step)) else step for step in graph.path(*ends[kind]))
            paths.setdefault(kind, f"{name}: {' → '.join(steps)}")
    if 2 * outside > total and anchors:
        return Decision(None, None, f"P279: {outside} of {total} are below none of them", 0.0, is_outside=True)
    if not votes:
        return Decision(None, None, "", 0.0)
    (best, most), (_, second) = [*sorted(votes.items(), key=lambda vote: (-vote[1], vote[0])), ("", 0)][:2]
    lead = (most - second) / total
    tally = f"P279: {', '.join(f'{number} {kind}' for kind, number in sorted(votes.items()))} of {total}"
    if lead < LEAST_LEAD:
        return Decision(None, None, tally, lead, leading=best if lead else None)
    return Decision(best, "p279", f"{tally}; {paths[best]}", lead, leading=best)


# -- classes that are given by texts alone ---------------------------------------------------------------------------

PROMPTS = ("{}", "a kind of {}", "this is {}")
MARGIN = TopLevelConfig().margin
_COMMON = 0.5
_SAME = 0.05
_LEAST_COSINE = 0.05  # of a neighbour; below, names have nothing to do with each other
_SCALE = 0.35
_NEIGHBOURS, _FROM_NEIGHBOURS, _ROUNDS = 10, 0.7, 30
_DIRECT = 10_000  # up to so many names all axes count; beyond, the 64 leading ones find the neighbours


def class_shares(rows: np.ndarray, texts: Sequence[np.ndarray], around: np.ndarray) -> np.ndarray:
    """Return the (N, C) shares of classes in names, each row summing to 1; it needs no labelled names.

    1. A name's score for a class is its highest cosine with the class's texts. Half of a class's mean score over all
       names is taken off, because some texts are near to everything.
    2. Scores become shares by a softmax whose scale is a third of the scores' standard deviation, because encoders
       differ in how far they spread cosines. A name that no text says anything about has equal shares.
    3. Shares spread over the 10 nearest neighbours of each name (label spreading, Zhou et al., NIPS 2003). In each
       round a name takes seven tenths of its neighbours' mean share and three tenths of its own.

    Args:
        rows: (N, D) unit rows of the names.
        texts: (T, D) unit rows of the texts of each class, in the same space; at least two classes.
        around: (N, E) unit rows that say which names are neighbours, such as the joint evidence.
    """
    with threadpool_limits(limits=1):
        scores = np.stack([(rows @ known.T).max(axis=1) for known in texts], axis=1).astype(np.float64)
        spread = float(scores.std()) or 1.0
        silent = np.ptp(scores, axis=1) < _SAME * spread
        scores = (scores - _COMMON * scores.mean(axis=0)) / (_SCALE * spread)
        own = np.exp(scores - scores.max(axis=1, keepdims=True))
        own[silent] = 1
        own /= own.sum(axis=1, keepdims=True)
        seen = around if len(around) <= _DIRECT else unit(leading_axes(around)).astype(np.float32)
        indices, cosines = nearest(seen, seen, _NEIGHBOURS + 1)  # and the name itself, which counts nothing
        itself = np.arange(len(rows))[:, None]
        near = np.where((cosines >= _LEAST_COSINE) & (indices != itself), cosines, 0).astype(np.float64) ** 2
        starts = np.broadcast_to(itself, indices.shape)
        links = csr_array((near.ravel(), (starts.ravel(), indices.ravel())), shape=(len(rows), len(rows)))
        links = links.maximum(links.T)
        total = np.asarray(links.sum(axis=1)).ravel()
        links = diags_array(1 / np.where(total > 0, total, 1)) @ links + diags_array((total == 0).astype(float))
        shares = own
        for _ in range(_ROUNDS):
            shares = _FROM_NEIGHBOURS * (links @ shares) + (1 - _FROM_NEIGHBOURS) * own
    return shares / shares.sum(axis=1, keepdims=True)


def text_rows(encoder: Encoder, texts: Sequence[str]) -> np.ndarray:
    """Return (T, D) unit rows of texts that name a class, each the mean of three ways to say that something is it."""
    prompts = PROMPTS if encoder.templates else ("{}",)  # an encoder without templates reads names as they are
    rows = [encoder.encode([prompt.replace("{}", text) for text in texts]) for prompt in prompts]
    return unit(np.mean(np.stack(rows), axis=0)).astype(np.float32)


# -- tables ----------------------------------------------------------------------------------------------------------


def _with_decisions(groups: pl.DataFrame, column: str, decisions: Mapping[int, Decision]) -> pl.DataFrame:
    """Return groups with their decisions: the label in ``column``, method, evidence and margin; null if none."""
    found = [decisions.get(group) for group in groups["group"]]
    return groups.with_columns(
        pl.Series(column, [d and d.top for d in found], dtype=pl.String),
        pl.Series("method", [d and d.method for d in found], dtype=pl.String),
        pl.Series("evidence", [d and d.evidence for d in found], dtype=pl.String),
        pl.Series("margin", [d and d.margin for d in found], dtype=pl.Float32),
    )


def _tables(inputs: Mapping[str, Path]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return names with groups and classes, in the order of their embeddings, and the groups in their order."""
    cleaned = read_parquet(inputs["clean/names.parquet"])
    clustered = read_parquet(inputs["cluster/names.parquet"])
    groups = read_parquet(inputs["cluster/groups.parquet"]).sort("group")
    return cleaned.select("name", "landmarks", "class_ids", "english").with_columns(clustered["group"]), groups


def _stage_result(decided: pl.DataFrame, plan: LevelPlan, notes: Sequence[str]) -> StageResult:
    details: dict[str, Any] = {"levels": list(plan.names), "tops": list(plan.top)}
    counts: dict[str, int] = {"levels above the groups": len(plan.above)}
    if not plan.top:
        counts |= {plan.above[-1]: decided["top"].drop_nulls().n_unique()} if plan.above else {}
        return StageResult(counts, notes=tuple(notes), details=details)
    undecided = decided.filter(pl.col("top").is_null())["label"].to_list()
    counts = {top: int((decided["top"] == top).sum()) for top in plan.top} | {
        "undecided": len(undecided),
        "by_p279": int((decided["method"] == "p279").sum()),
        "by_encoder": int((decided["method"] == "encoder").sum()),
    }
    if undecided:
        what = f"neither {' nor '.join(plan.top)}" if len(plan.top) == 2 else f"none of {', '.join(plan.top)}"
        notes = [*notes, f"{what} could be decided for: {some(undecided, _MOST_LISTED)}. A decision of kind set does."]
    return StageResult(counts, notes=tuple(notes), details=details | {"undecided": undecided})

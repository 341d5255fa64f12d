"""The top-level stage: the levels above the groups, and the class of every group at the coarsest level.

A class of a clustered level consists of several groups (:func:`coarsen`), and gets a label in the same way as a group.
Groups are joined only by evidence of their meaning, because similar wording says nothing about large groups.

If the coarsest level has predefined classes, two methods decide the class of each group of the level below. If neither
can decide, the group has no class and is listed.

1. The class graph. ``top_level.yaml`` states the graph's classes for natural and human-made. Any other predefined class
   stands for all classes of the graph with its name. A name gets the nearest such class at or above its own classes; at
   a tie the class is human-made if that is one of the tied classes, else undecided. A group gets the class of most of
   its landmarks, if this class leads the next class by a third of all landmarks of the group.
2. The encoder. Texts describe a class: its name, or the prompts of ``top_level.yaml`` (:func:`class_shares`). The class
   with the largest share in the group's names must lead the next class by the margin, and must not contradict the
   graph.
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
from ..names.clean import match_key
from ..unit_rows import leading_axes, nearest, sums, unit
from .cluster import coarsen
from .group_names import label_groups
from .levels import HUMAN_MADE, LANDMARKS, NATURAL, LevelPlan

VERSION = 4  # version 4: one rule for all classes of the top level
ANCHORS = Path(__file__).with_name("top_level.yaml")
OPEN = "open"
LEAST_LEAD = 1 / 3
_MOST_LISTED = 10
_MOST_SHOWN = 4


@dataclass(frozen=True)
class Anchors:
    """The definition of natural and human-made: class ids of each (``open``: neither), and their prompts."""

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
        top: name of the class; None: the class is undecided.
        method: ``p279`` (the class graph), ``encoder``, ``groups``, ``given`` or ``tree``; None: the class is
            undecided.
        evidence: readable reason for the decision.
        margin: lead over the next class.
        leading: the class with the most evidence, even if the evidence does not decide.
        is_outside: whether, in the graph, most of the group is below none of the predefined classes.
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
    """Run the stage, which writes ``groups.parquet`` (group, top, method, evidence, margin) and ``levels.parquet``.

    ``levels.parquet`` has a row for every group and level above it, finest first: group, level, label, method,
    evidence, margin. ``top`` is the label at the coarsest level, null if there is no such label or it is undecided.

    Args:
        root: the build's directory of stages.
        stages: the finished stages.
        config: the margin, and the encoder of the classes' texts, whose weights are read only if they are needed.
        progress: receives the current task.
        plan: names of the levels, and the number of classes or the predefined classes of each level.

    Raises:
        MissingResourceError: the encoder's weights are needed but not available.
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
    names = read_parquet(inputs["clean/names.parquet"]).select("name", "landmarks", "class_ids", "english")
    # all stages keep the order of the names
    names = names.with_columns(read_parquet(inputs["cluster/names.parquet"])["group"])
    groups = read_parquet(inputs["cluster/groups.parquet"]).sort("group")
    meaning = read_embeddings(inputs["evidence/meaning.npy"])
    kept = np.arange(len(names))
    graph = ClassGraph.read(inputs["scrape/classes.parquet"])
    levels: list[dict[int, Decision]] = [{} for _ in range(plan.given)]
    if plan.given:
        for group, place, label in read_parquet(inputs["cluster/above.parquet"]).iter_rows():
            levels[place][group] = Decision(label, groups["method"][0], "given as parent", 1.0)
    notes: list[str] = []
    if plan.into:  # a name without a group has no coarser class either
        inside = (names["group"] < groups["group"].max()).to_numpy()
        names, meaning, kept = names.filter(inside), meaning[inside], np.flatnonzero(inside)
    filled, units = np.unique(names["group"].to_numpy(), return_inverse=True)  # each name's class at the level below
    above = np.arange(len(filled))  # the current class of each group that has names
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
            notes.append(f"{level} has {len(labels)} classes, not {wanted}: there are no more groups.")
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
    levels += [{}] * (len(plan.above) - len(levels))  # if no name is in any group, no level has decisions
    tables = [
        _with_decisions(groups.select("group", level=pl.lit(level)), "label", decisions)
        for level, decisions in zip(("", *plan.above), ({}, *levels), strict=True)
    ]
    pl.concat([tables[0].clear(), *tables[1:]]).write_parquet(out / "levels.parquet")
    return _stage_result(top, plan, notes)


class Tops:
    """Decide which predefined class of the top level each group belongs to.

    Args:
        graph: the class graph.
        classes: the predefined classes, at least two.
        encoded: function that returns the encoder and its (N, D) unit rows of all names; called only if they are
            needed.
        around: (N, E) unit rows of the joint evidence, which determine the neighbours of names.
        margin: minimum lead of the largest share over the next largest share; with a smaller lead the group is
            undecided.
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
    """Map the id of each class of the graph that has the name of a predefined class to this predefined class.

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
    """Decide a group's class at the coarsest level from the classes of its names.

    Args:
        names: the group's names.
        counts: number of landmarks or items of every name; at least one is counted.
        classes: ids of every name's classes; empty if none is known.
        graph: the class graph.
        anchors: predefined class by id of the graph's class; ``open`` decides nothing.
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
        return Decision(None, None, f"P279: {outside} of {total} are below no top class", 0.0, is_outside=True)
    if not votes:
        return Decision(None, None, "", 0.0)
    (best, most), (_, second) = [*sorted(votes.items(), key=lambda vote: (-vote[1], vote[0])), ("", 0)][:2]
    lead = (most - second) / total
    tally = f"P279: {', '.join(f'{number} {kind}' for kind, number in sorted(votes.items()))} of {total}"
    if lead < LEAST_LEAD:
        return Decision(None, None, tally, lead, leading=best if lead else None)
    return Decision(best, "p279", f"{tally}; {paths[best]}", lead, leading=best)


# -- classes described by texts ---------------------------------------------------------------------------------------

PROMPTS = ("{}", "a kind of {}", "this is {}")
MARGIN = TopLevelConfig().margin
_COMMON = 0.5
_SAME = 0.05
_LEAST_COSINE = 0.05  # a name with a lower cosine is no neighbour
_SCALE = 0.35
_NEIGHBOURS, _FROM_NEIGHBOURS, _ROUNDS = 10, 0.7, 30
_DIRECT = 10_000  # with more names than this, neighbours are found along the 64 leading axes instead of all axes


def class_shares(rows: np.ndarray, texts: Sequence[np.ndarray], around: np.ndarray) -> np.ndarray:
    """Assign names to classes only by the classes' texts: return (N, C) shares whose rows sum to 1.

    1. A name's score for a class is its highest cosine with the class's texts. Half of the class's mean score over all
       names is subtracted, because some texts are near to all names.
    2. A softmax turns scores into shares. Its scale is about a third of the scores' standard deviation, because
       encoders spread cosines differently. A name with almost equal scores has equal shares.
    3. Shares spread over the 10 nearest neighbours of each name (label spreading, Zhou et al., NIPS 2003). In each
       round a name's share is seven tenths of its neighbours' mean share and three tenths of its initial share.

    Args:
        rows: (N, D) unit rows of the names.
        texts: (T, D) unit rows of the texts of each class, in the same space; at least two classes.
        around: (N, E) unit rows that determine the neighbours of names, such as the joint evidence.
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
        indices, cosines = nearest(seen, seen, _NEIGHBOURS + 1)  # the nearest row is the name itself
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
    """Return (T, D) unit rows of class names, each the mean of the rows of three prompts."""
    prompts = PROMPTS if encoder.templates else ("{}",)  # an encoder without templates reads plain names
    rows = [encoder.encode([prompt.replace("{}", text) for text in texts]) for prompt in prompts]
    return unit(np.mean(np.stack(rows), axis=0)).astype(np.float32)


# -- tables ----------------------------------------------------------------------------------------------------------


def _with_decisions(groups: pl.DataFrame, column: str, decisions: Mapping[int, Decision]) -> pl.DataFrame:
    """Add decisions to a table of groups: the label in ``column``, method, evidence and margin; null if undecided."""
    found = [decisions.get(group) for group in groups["group"]]
    return groups.with_columns(
        pl.Series(column, [d and d.top for d in found], dtype=pl.String),
        pl.Series("method", [d and d.method for d in found], dtype=pl.String),
        pl.Series("evidence", [d and d.evidence for d in found], dtype=pl.String),
        pl.Series("margin", [d and d.margin for d in found], dtype=pl.Float32),
    )


def _stage_result(decided: pl.DataFrame, plan: LevelPlan, notes: Sequence[str]) -> StageResult:
    details: dict[str, Any] = {"levels": list(plan.names), "tops": list(plan.top)}
    if not plan.top:
        counts = {"levels above the groups": len(plan.above)}
        counts |= {plan.above[-1]: decided["top"].drop_nulls().n_unique()} if plan.above else {}
        return StageResult(counts, notes=tuple(notes), details=details)
    undecided = decided.filter(pl.col("top").is_null())["label"].to_list()
    counts = {top: int((decided["top"] == top).sum()) for top in plan.top} | {"undecided": len(undecided)}
    counts |= {f"by_{method}": int((decided["method"] == method).sum()) for method in ("p279", "encoder")}
    if undecided:
        what = f"neither {' nor '.join(plan.top)}" if len(plan.top) == 2 else f"none of {', '.join(plan.top)}"
        notes = [*notes, f"{what} could be decided for: {some(undecided, _MOST_LISTED)}. A decision of kind set does."]
    return StageResult(counts, notes=tuple(notes), details=details | {"undecided": undecided})

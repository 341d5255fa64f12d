"""The top-level stage: the levels above the groups, and the class of every group at the coarsest of them.

Levels whose classes come of the data are groups of groups (``coarser.py``), named as groups are. A coarsest level that
is given by its classes is decided for the groups of the level below it, or left undecided where the evidence does not
suffice. Landmarks are natural or human-made by the first of these that can decide:

1. Wikidata's subclass graph. Every class of a name is natural or human-made by the nearest of the classes stated in
   ``top_level.yaml`` at or above it (P279), a name by its classes, a group by its names' landmarks: the one kind must
   lead the other by a third of all its landmarks, those without evidence included.
2. The encoder. A name's score is its cosine with the nearest natural prompt of ``top_level.yaml`` less that with the
   nearest human-made one, a group's the mean over its landmarks. It decides from the margin on, but not against
   the graph: where most evidence there is for the other kind, the group stays open.

Otherwise the group has no top, and is listed. Between other classes the class graph decides where it has classes of
these names (``named_tops.py``), else the encoder: the class whose text is nearest to the group's names must lead the
next one by the margin (``given_classes.py``).

Coarser groups are joined by the evidence of meaning alone: like wording joins few names of one kind, and says nothing
about large groups.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from hgld.errors import ConfigError, TableError, some
from hgld.tables import read_parquet

from ...stage import Progress, StageResult, StageRun, run_stage, silent
from ..config import EmbedConfig, TopLevelConfig, key_fields
from ..encoders.registry import Encoder
from ..evidence.embed import encoder_of, read_embeddings
from ..groups.group_names import Member, Proposal, propose_labels
from ..groups.kmeans import sums, unit
from ..names.class_graph import ClassGraph
from ..names.clean import NameRules
from .coarser import coarsen
from .given_classes import MARGIN, class_shares, text_rows
from .levels import HUMAN_MADE, LANDMARKS, NATURAL, LevelPlan
from .named_tops import decide_by_classes, named_tops

VERSION = (
    3  # 2: levels.parquet, tops by their names in the class graph; 3: classes by shares, coarser groups by meaning
)
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
        classes = {class_id: kind for kind, ids in data["classes"].items() for class_id in ids}
        return cls(classes, data["prompts"])


@dataclass(frozen=True)
class Decision:
    """A group's class at a coarser level (None: undecided), the method, the evidence, and the lead.

    Where natural and human-made are told apart, the lead is that of natural, below 0 if human-made leads.
    """

    top: str | None
    method: str | None
    evidence: str
    margin: float


def run(
    root: Path,
    cleaned: StageRun,
    clustered: StageRun,
    scraped: StageRun,
    embedded: StageRun,
    evidence: StageRun,
    config: TopLevelConfig,
    embedding: EmbedConfig,
    progress: Progress,
    *,
    plan: LevelPlan = LANDMARKS,
    domain: str = "landmarks",
) -> StageRun:
    """Run the stage: ``groups.parquet`` with top, method, evidence and margin of every group, and ``levels.parquet``.

    ``levels.parquet`` has a row for every group and level above it, finest first: group, level, label, method,
    evidence, margin. ``top`` is the label at the coarsest of them, null where there is none or it is not decided.

    Args:
        root: the build's directory of stages.
        cleaned: the clean stage (names and their classes).
        clustered: the cluster stage (groups).
        scraped: the scrape stage (the class graph).
        embedded: the embed stage (names' embeddings, in the space of the classes' texts).
        evidence: the evidence stage (what joins groups into coarser ones).
        config: the options.
        embedding: the embed stage's options, for the same encoder to embed the prompts; its weights are read only
            if they are needed.
        progress: told what is being done.
        plan: the levels.
        domain: of the names.

    Raises:
        ConfigError: an option out of range.
        MissingResourceError: the encoder's weights are needed and cannot be had.
        TableError: the inputs do not belong together.
    """
    check_options(config)
    inputs = {
        "clean/names": cleaned.path("names.parquet"),
        "cluster/names": clustered.path("names.parquet"),
        "cluster/groups": clustered.path("groups.parquet"),
        "scrape/classes": scraped.path("classes.parquet"),
        "embed/embeddings": embedded.path("embeddings.npy"),
        "evidence/meaning": evidence.path("meaning.npy"),
        "embed/encoder": embedded.path("encoder.json"),
        "anchors": ANCHORS,
    }
    if plan.given:
        inputs["cluster/above"] = clustered.path("above.parquet")
    work = partial(_decide, inputs, config, embedding, plan, domain, progress)
    settings = {**key_fields(config), "plan": asdict(plan), "domain": domain}
    return run_stage("toplevel", root, version=VERSION, config=settings, inputs=inputs, work=work)


def check_options(config: TopLevelConfig) -> None:
    """Refuse options that no data could serve.

    Raises:
        ConfigError: the margin is out of range.
    """
    if not 0 <= config.margin <= 2:  # a difference of two cosines; not a number is refused too
        raise ConfigError(f"--margin is {config.margin}; expected a number from 0 to 2.")


def decide_by_graph(
    names: Sequence[str],
    landmarks: Sequence[int],
    classes: Sequence[Sequence[str]],
    graph: ClassGraph,
    anchors: Anchors,
) -> Decision:
    """Decide a group's top by its names' classes.

    Args:
        names: the group's names.
        landmarks: number of landmarks of every name; at least one is counted.
        classes: Wikidata ids of every name's classes; empty where none is known.
        graph: the P279 graph.
        anchors: the classes that decide.

    Returns:
        The evidence is the path of the name with the most landmarks on the deciding side. The margin is the lead of
        natural as a share of the group's landmarks, below 0 if human-made leads.
    """
    counted = [max(count, 1) for count in landmarks]
    total = sum(counted)
    votes: Counter[str] = Counter()
    paths: dict[str, str] = {}
    for name, ids, count in sorted(zip(names, classes, counted, strict=True), key=lambda row: (-row[2], row[0])):
        kind, path = _nearest_anchor(ids, graph, anchors)
        if path:
            votes[kind] += count
            paths.setdefault(kind, f"{name}: {' → '.join(_titled(graph, step) for step in path)}")
    lead = (votes[NATURAL] - votes[HUMAN_MADE]) / total
    top = NATURAL if lead > 0 else HUMAN_MADE
    tally = f"P279: {votes[NATURAL]} natural, {votes[HUMAN_MADE]} human-made of {total} landmarks"
    if abs(lead) < LEAST_LEAD:
        return Decision(None, None, tally, lead)
    return Decision(top, "p279", f"{tally}; {paths[top]}", lead)


def _nearest_anchor(class_ids: Sequence[str], graph: ClassGraph, anchors: Anchors) -> tuple[str, tuple[str, ...]]:
    """Return the kind that a name's classes state, with the path to that class; ``open`` and ``()`` if none."""
    found = []
    for class_id in class_ids:
        above = {class_id: 0, **graph.ancestors(class_id)}
        for anchor in above.keys() & anchors.classes.keys():
            kind = anchors.classes[anchor]
            found.append((above[anchor], (HUMAN_MADE, OPEN, NATURAL).index(kind), anchor, class_id, kind))
    if not found:
        return OPEN, ()
    _, _, anchor, class_id, kind = min(found)
    return kind, graph.path(class_id, anchor)


def _titled(graph: ClassGraph, class_id: str) -> str:
    label = graph.label(class_id)
    return f"{label} ({class_id})" if label else class_id


class PromptScores:
    """Scores of names: how much nearer they are to natural prompts than to human-made ones.

    Args:
        encoder: the one that embedded the names.
        embeddings: (N, D) unit rows of all names.
        anchors: the prompts.
        margin: least score that decides; 0: the standard deviation of the cosines between all names and prompts, a
            scale that every encoder brings with it.
    """

    def __init__(self, encoder: Encoder, embeddings: np.ndarray, anchors: Anchors, margin: float) -> None:
        cosines = {kind: embeddings @ encoder.encode(anchors.prompts[kind], silent).T for kind in (NATURAL, HUMAN_MADE)}
        self._prompts = anchors.prompts
        self._cosines = cosines
        self.margin = margin or float(np.concatenate([c.ravel() for c in cosines.values()]).std(dtype=np.float64))

    def decide(self, members: np.ndarray, landmarks: np.ndarray) -> Decision:
        """Decide a group's top.

        Args:
            members: (n,) indices of its names.
            landmarks: (n,) numbers of their landmarks.
        """
        counted = np.maximum(landmarks, 1)
        nearest = {kind: cosine[members].max(axis=1) for kind, cosine in self._cosines.items()}
        means = {kind: float(np.average(values, weights=counted)) for kind, values in nearest.items()}
        score = means[NATURAL] - means[HUMAN_MADE]
        said = [f"{kind} {mean:.3f} ({self._closest(kind, members, counted)!r})" for kind, mean in means.items()]
        evidence = f"prompts: {', '.join(said)}; margin {abs(score):.3f} of {self.margin:.3f} needed"
        if abs(score) < self.margin or score == 0:
            return Decision(None, None, evidence, score)
        return Decision(NATURAL if score > 0 else HUMAN_MADE, "encoder", evidence, score)

    def _closest(self, kind: str, members: np.ndarray, counted: np.ndarray) -> str:
        """Return the prompt that is nearest to the group as a whole."""
        return self._prompts[kind][int((counted @ self._cosines[kind][members]).argmax())]


class ClassScores:
    """Shares of names in each of the given classes of the top level (``given_classes.py``).

    Args:
        encoder: the one that embedded the names.
        embeddings: (N, D) unit rows of all names by it.
        around: (N, E) unit rows of the joint evidence, which says what names are neighbours.
        classes: the classes, at least two.
        margin: least lead of a share that decides; 0: 0.2.
    """

    def __init__(
        self, encoder: Encoder, embeddings: np.ndarray, around: np.ndarray, classes: Sequence[str], margin: float
    ) -> None:
        self._classes = tuple(classes)
        self._shares = class_shares(embeddings, [text_rows(encoder, [name]) for name in classes], around)
        self.margin = margin or MARGIN

    def decide(self, members: np.ndarray, landmarks: np.ndarray) -> Decision:
        """Decide the class of a group by the mean shares of its names (:meth:`PromptScores.decide`)."""
        means = self._shares.of_group(members, np.maximum(landmarks, 1))
        order = np.argsort(-means, kind="stable")
        lead = float(means[order[0]] - means[order[1]])
        said = ", ".join(f"{self._classes[i]} {means[i]:.3f}" for i in order[:_MOST_SHOWN])
        evidence = f"shares: {said}; lead {lead:.3f} of {self.margin:.3f} needed"
        if lead < self.margin or lead == 0:
            return Decision(None, None, evidence, lead)
        return Decision(self._classes[order[0]], "encoder", evidence, lead)


def _decide(
    inputs: Mapping[str, Path],
    config: TopLevelConfig,
    embedding: EmbedConfig,
    plan: LevelPlan,
    domain: str,
    progress: Progress,
    out: Path,
) -> StageResult:
    names, groups = _tables(inputs)
    meaning = read_embeddings(inputs["evidence/meaning"])
    kept = np.arange(len(names))
    graph = ClassGraph.read(inputs["scrape/classes"])
    levels = _given_levels(inputs, plan)
    notes: list[str] = []
    if plan.into:  # names that fit no group have no coarser class either
        inside = (names["group"] < groups["group"].max()).to_numpy()
        names, meaning, kept = names.filter(inside), meaning[inside], np.flatnonzero(inside)
    filled, units = np.unique(names["group"].to_numpy(), return_inverse=True)  # units: of names, at the level at hand
    place = {group: i for i, group in enumerate(filled.tolist())}
    above = np.arange(len(filled))  # of groups with names: their unit
    for level, wanted in zip(plan.above[plan.given :], plan.numbers if len(names) else (), strict=False):
        progress(f"level {level}", 0, 1)
        joined, lead = coarsen(meaning, units, wanted)
        labels = _labels(names, meaning, joined[units], graph, domain)
        made = [
            Decision(labels[j].label, "groups", _how(labels[j]), float(m)) for j, m in zip(joined, lead, strict=True)
        ]
        levels.append({group: made[above[i]] for group, i in place.items()})
        if wanted > len(labels):
            notes.append(f"{level} has {len(labels)} classes where {wanted} were wanted: there are no more groups.")
        units, above = joined[units], joined[above]
    scores: PromptScores | ClassScores | None = None
    if plan.top and len(names):
        decided, scores = _tops(inputs, config, embedding, plan, domain, names, meaning, kept, units, graph, progress)
        levels.append({group: decided[above[i]] for group, i in place.items()})
    top = with_decisions(groups.select("group", "label"), "top", levels[-1] if levels else {})
    top.write_parquet(out / "groups.parquet")
    levels += [{}] * (len(plan.above) - len(levels))  # where no name is in any group
    level_table(groups, plan.above, levels).write_parquet(out / "levels.parquet")
    return _stage_result(top, plan, scores, notes)


def _given_levels(inputs: Mapping[str, Path], plan: LevelPlan) -> list[dict[int, Decision]]:
    """Return the classes that were given with the groups, by level and group; a group without names has them too."""
    levels: list[dict[int, Decision]] = [{} for _ in range(plan.given)]
    if plan.given:
        for group, place, label in read_parquet(inputs["cluster/above"]).iter_rows():
            levels[place][group] = Decision(label, "given", "given as parent", 1.0)
    return levels


def _tops(
    inputs: Mapping[str, Path],
    config: TopLevelConfig,
    embedding: EmbedConfig,
    plan: LevelPlan,
    domain: str,
    names: pl.DataFrame,
    meaning: np.ndarray,
    kept: np.ndarray,
    units: np.ndarray,
    graph: ClassGraph,
    progress: Progress,
) -> tuple[list[Decision], PromptScores | ClassScores | None]:
    """Return the class of every unit of the level below the top, and the encoder's scores where they were needed.

    ``kept`` are the indices of ``names`` among all names of the build.
    """
    natural = set(plan.top) == {NATURAL, HUMAN_MADE}
    anchors = Anchors.read()
    named = {} if natural else named_tops(graph, plan.top)
    members = names.with_columns(unit=units).with_row_index("place").group_by("unit").agg(pl.all()).sort("unit")
    scores: PromptScores | ClassScores | None = None
    decisions: list[Decision] = []
    for row in members.iter_rows(named=True):
        progress("the top level", len(decisions), len(members))
        decision, is_outside = Decision(None, None, "", 0.0), False
        classes = [ids or () for ids in row["class_ids"]]
        if natural:
            decision = decide_by_graph(row["name"], row["landmarks"], classes, graph, anchors)
        elif named:
            found = decide_by_classes(row["name"], row["landmarks"], classes, graph, named)
            decision = Decision(found.top, "p279" if found.top else None, found.evidence, found.lead)
            is_outside = found.is_outside and set(named.values()) == set(plan.top)
        if decision.top is None and not is_outside:
            if scores is None:
                encoder = encoder_of(inputs["clean/names"], embedding, domain)
                embeddings = read_embeddings(inputs["embed/embeddings"])[kept]
                scores = (
                    PromptScores(encoder, embeddings, anchors, config.margin)
                    if natural
                    else ClassScores(encoder, embeddings, meaning, plan.top, config.margin)
                )
            by_text = scores.decide(np.array(row["place"]), np.array(row["landmarks"]))
            if natural:
                decision = _combined(decision, by_text)
            else:
                decision = replace(by_text, evidence="; ".join(filter(None, (decision.evidence, by_text.evidence))))
        decisions.append(decision)
    progress("the top level", len(members), len(members))
    return decisions, scores


def _labels(
    names: pl.DataFrame, embeddings: np.ndarray, units: np.ndarray, graph: ClassGraph, domain: str
) -> list[Proposal]:
    """Return a label for each coarser group, proposed from the names below it."""
    centres = unit(sums(embeddings, units, np.ones(len(units)), int(units.max()) + 1))
    centrality = (embeddings * centres[units]).sum(axis=1)
    members: list[list[Member]] = [[] for _ in centres]
    rows = names.select("name", "landmarks", "class_ids", "english").iter_rows()
    for unit_of, (name, landmarks, ids, english), near in zip(units.tolist(), rows, centrality.tolist(), strict=True):
        members[unit_of].append(Member(name, landmarks, tuple(ids or ()), near, english))
    return propose_labels(members, graph, NameRules.read(domain=domain), domain)


def _how(label: Proposal) -> str:
    return f"groups of near names; named by {label.method}: {label.evidence}"


def with_decisions(groups: pl.DataFrame, column: str, decisions: Mapping[int, Decision]) -> pl.DataFrame:
    """Return groups with their decisions: the label in ``column``, method, evidence and margin; null where none."""
    found = [decisions.get(group) for group in groups["group"]]
    return groups.with_columns(
        pl.Series(column, [d and d.top for d in found], dtype=pl.String),
        pl.Series("method", [d and d.method for d in found], dtype=pl.String),
        pl.Series("evidence", [d and d.evidence for d in found], dtype=pl.String),
        pl.Series("margin", [d and abs(d.margin) for d in found], dtype=pl.Float32),
    )


def level_table(groups: pl.DataFrame, above: Sequence[str], levels: Sequence[Mapping[int, Decision]]) -> pl.DataFrame:
    """Return ``levels.parquet``: the label of every group at every level above it."""
    empty = with_decisions(groups.select("group", level=pl.lit("")).clear(), "label", {})
    return pl.concat(
        [
            empty,
            *(
                with_decisions(groups.select("group", level=pl.lit(level)), "label", decisions)
                for level, decisions in zip(above, levels, strict=True)
            ),
        ]
    )


def _combined(by_graph: Decision, by_prompts: Decision) -> Decision:
    """Return the prompts' decision for a group that the graph left open, unless most evidence of the graph differs."""
    evidence = f"{by_graph.evidence}; {by_prompts.evidence}"
    if by_prompts.top is not None and by_graph.margin * by_prompts.margin < 0:
        return Decision(None, None, f"{evidence}; they contradict each other", by_prompts.margin)
    return Decision(by_prompts.top, by_prompts.method, evidence, by_prompts.margin)


def _tables(inputs: Mapping[str, Path]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return names with groups and classes, in the order of their embeddings, and the groups in their order."""
    cleaned = read_parquet(inputs["clean/names"])
    clustered = read_parquet(inputs["cluster/names"])
    groups = read_parquet(inputs["cluster/groups"]).sort("group")
    if not cleaned["name"].equals(clustered["name"]) or not set(clustered["group"]) <= set(groups["group"]):
        raise TableError(
            f"{inputs['cluster/names']}: its names or groups are not those of {inputs['clean/names']} and "
            f"{inputs['cluster/groups']}. Remove the cluster stage's folder and run the same command again."
        )
    return cleaned.select("name", "landmarks", "class_ids", "english").with_columns(clustered["group"]), groups


def _stage_result(
    decided: pl.DataFrame, plan: LevelPlan, scores: PromptScores | ClassScores | None, notes: Sequence[str]
) -> StageResult:
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
    details |= {"undecided": undecided, "encoder_margin": None if scores is None else round(scores.margin, 6)}
    return StageResult(counts, notes=tuple(notes), details=details)

"""The top-level stage: groups are natural, human-made, or undecided where the evidence does not suffice.

A group is decided by the first of these that can:

1. Wikidata's subclass graph. Every class of a name is natural or human-made by the nearest of the classes stated in
   ``top_level.yaml`` at or above it (P279), a name by its classes, a group by its names' landmarks: the one kind must
   lead the other by a third of all its landmarks, those without evidence included.
2. The encoder. A name's score is its cosine with the nearest natural prompt of ``top_level.yaml`` less that with the
   nearest human-made one, a group's the mean over its landmarks. It decides from the margin on, but not against
   the graph: where most evidence there is for the other kind, the group stays open.

Otherwise the group has no top, and is listed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import yaml

from hgld.errors import ConfigError, TableError
from hgld.pipelines.hierarchy.class_graph import ClassGraph
from hgld.pipelines.hierarchy.cluster import read_embeddings
from hgld.pipelines.hierarchy.config import EmbedConfig, TopLevelConfig, key_fields
from hgld.pipelines.hierarchy.embed import encoder_of
from hgld.pipelines.hierarchy.encoders.registry import Encoder
from hgld.pipelines.stage import Progress, StageResult, StageRun, run_stage, silent

VERSION = 1
ANCHORS = Path(__file__).with_name("top_level.yaml")
NATURAL, HUMAN_MADE, OPEN = "natural", "human-made", "open"
LEAST_LEAD = 1 / 3
_MOST_LISTED = 10


@dataclass(frozen=True)
class Anchors:
    """The definition of natural and human-made: classes (id to kind, ``open`` for neither) and prompts by kind."""

    classes: Mapping[str, str]
    prompts: Mapping[str, Sequence[str]]

    @classmethod
    def read(cls) -> "Anchors":
        data = yaml.safe_load(ANCHORS.read_text(encoding="utf-8"))
        classes = {class_id: kind for kind, ids in data["classes"].items() for class_id in ids}
        return cls(classes, data["prompts"])


@dataclass(frozen=True)
class Decision:
    """A group's top (None: undecided), the method that decided it, the evidence, and the lead of natural."""

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
    config: TopLevelConfig,
    embedding: EmbedConfig,
    progress: Progress,
) -> StageRun:
    """Run the stage: ``groups.parquet`` with top, method, evidence and margin of every group.

    Args:
        root: the build's directory of stages.
        cleaned: the clean stage (names and their classes).
        clustered: the cluster stage (groups).
        scraped: the scrape stage (the class graph).
        embedded: the embed stage (names' embeddings).
        config: the options.
        embedding: the embed stage's options, for the same encoder to embed the prompts; its weights are read only
            if the graph leaves a group open.
        progress: told what is being done.

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
        "embed/encoder": embedded.path("encoder.json"),
        "anchors": ANCHORS,
    }
    work = partial(_decide, inputs, config, embedding, progress)
    return run_stage("toplevel", root, version=VERSION, config=key_fields(config), inputs=inputs, work=work)


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


def _decide(
    inputs: Mapping[str, Path], config: TopLevelConfig, embedding: EmbedConfig, progress: Progress, out: Path
) -> StageResult:
    names, groups = _tables(inputs)
    embeddings = read_embeddings(inputs["embed/embeddings"])
    graph, anchors = ClassGraph.read(inputs["scrape/classes"]), Anchors.read()
    members = names.with_row_index("place").group_by("group").agg(pl.all()).sort("group")
    decisions: list[Decision] = []
    scores: PromptScores | None = None
    for row in members.iter_rows(named=True):
        progress("natural or human-made", len(decisions), len(members))
        classes = [ids or () for ids in row["class_ids"]]
        decision = decide_by_graph(row["name"], row["landmarks"], classes, graph, anchors)
        if decision.top is None:
            if scores is None:
                scores = PromptScores(encoder_of(inputs["clean/names"], embedding), embeddings, anchors, config.margin)
            decision = _combined(decision, scores.decide(np.array(row["place"]), np.array(row["landmarks"])))
        decisions.append(decision)
    progress("natural or human-made", len(members), len(members))
    decided = groups.select("group", "label").with_columns(
        pl.Series("top", [d.top for d in decisions], dtype=pl.String),
        pl.Series("method", [d.method for d in decisions], dtype=pl.String),
        pl.Series("evidence", [d.evidence for d in decisions], dtype=pl.String),
        pl.Series("margin", [abs(d.margin) for d in decisions], dtype=pl.Float32),
    )
    decided.write_parquet(out / "groups.parquet")
    return _stage_result(decided, scores)


def _combined(by_graph: Decision, by_prompts: Decision) -> Decision:
    """Return the prompts' decision for a group that the graph left open, unless most evidence of the graph differs."""
    evidence = f"{by_graph.evidence}; {by_prompts.evidence}"
    if by_prompts.top is not None and by_graph.margin * by_prompts.margin < 0:
        return Decision(None, None, f"{evidence}; they contradict each other", by_prompts.margin)
    return Decision(by_prompts.top, by_prompts.method, evidence, by_prompts.margin)


def _tables(inputs: Mapping[str, Path]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return names with groups and classes, in the order of their embeddings, and the groups in their order."""
    cleaned = pl.read_parquet(inputs["clean/names"])
    clustered = pl.read_parquet(inputs["cluster/names"])
    groups = pl.read_parquet(inputs["cluster/groups"]).sort("group")
    if not cleaned["name"].equals(clustered["name"]) or set(clustered["group"]) != set(groups["group"]):
        raise TableError(
            f"{inputs['cluster/names']}: its names or groups are not those of {inputs['clean/names']} and "
            f"{inputs['cluster/groups']}. Remove the cluster stage's folder and run the same command again."
        )
    return cleaned.select("name", "landmarks", "class_ids").with_columns(clustered["group"]), groups


def _stage_result(decided: pl.DataFrame, scores: PromptScores | None) -> StageResult:
    undecided = decided.filter(pl.col("top").is_null())["label"].to_list()
    counts = {
        NATURAL: int((decided["top"] == NATURAL).sum()),
        HUMAN_MADE: int((decided["top"] == HUMAN_MADE).sum()),
        "undecided": len(undecided),
        "by_p279": int((decided["method"] == "p279").sum()),
        "by_encoder": int((decided["method"] == "encoder").sum()),
    }
    notes: tuple[str, ...] = ()
    if undecided:
        more = f" and {len(undecided) - _MOST_LISTED} more" if len(undecided) > _MOST_LISTED else ""
        listed = ", ".join(undecided[:_MOST_LISTED])
        notes = (f"neither natural nor human-made could be decided for: {listed}{more}. A decision of kind set does.",)
    details = {"undecided": undecided, "encoder_margin": None if scores is None else round(scores.margin, 6)}
    return StageResult(counts, notes=notes, details=details)

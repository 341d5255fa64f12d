"""The evidence stage, which weighs and joins evidence about names; every source is a block of unit rows.

Landmarks have one block, the rows of the encoder, as published. Names of ``--classes`` may have further blocks:

- ``wording``: the rows of the lexical encoder, if the build has another encoder;
- ``descriptions``: the encoder's rows of descriptions; with ``lexical``, TF-IDF of their words;
- ``classes``: the classes above each name, by P279 or a tree.

The stage joins blocks side by side, each scaled by the root of its weight. So the cosine of two names is the weighted
mean of their cosines by each block. Agreement between blocks gives the weights, without labels. The names that two
blocks both know are resampled and grouped by each block alone. The adjusted Rand index of the two groupings measures
their agreement beyond chance.

* The first block has the rows of the encoder; it is always used.
* A block of meaning (descriptions, classes) is used if it agrees with the other blocks of meaning beyond chance. Its
  weight is proportional to that agreement.
* The block of form (wording) is used if its agreement with the first block is at least a quarter. In small groups,
  similar wording means a similar kind ("arch bridge", "toll bridge"). If there are few, large groups, wording says
  nothing, and it does not agree with meaning.

Sources that ``--evidence`` names are always used. The stability of one block's groupings is no measure of its quality:
wording gives wrong groups that recur on every resample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.extmath import randomized_svd
from threadpoolctl import threadpool_limits

from hgld.files import read_json
from hgld.tables import read_parquet

from ...stage import Progress, StageResult, StageRun, files_of, run_stage, write_json
from ..config import BuildConfig, EmbedConfig
from ..encoders.embed import encoder_of, read_embeddings
from ..encoders.registry import make_encoder
from ..names.class_graph import ClassGraph
from ..unit_rows import borrow, leading_axes, unit

VERSION = 3  # version 3: other axes of words in descriptions
TEXT, WORDING, DESCRIPTIONS, CLASSES = "text", "wording", "descriptions", "classes"
RESAMPLES = 6
SAMPLE = 1000  # maximum number of names per resample
SHARE = 0.8  # share of the names drawn per resample, at most SAMPLE names
LEAST_NAMES = 10  # minimum number of common names to measure the agreement of two sources
LEAST_OF_FORM = 0.25
LEAST_OF_MEANING = 0.05  # minimum agreement: unrelated groupings have about 0, and hardly ever this much
FORM = 0.4  # weight of the wording, if it is used
BORROWED = 5
_WORD_AXES = 100


@dataclass(frozen=True, eq=False)
class Block:
    """One source of evidence about N names.

    Attributes:
        name: name of the evidence source.
        rows: (N, D) float32 unit rows, zero if nothing is known.
        known: (N,) bool, True if the source knows something about the name.
        is_form: True if the rows describe a name's wording, not its meaning.
        is_asked: True if the source is always used.
    """

    name: str
    rows: np.ndarray
    known: np.ndarray
    is_form: bool = False
    is_asked: bool = False

    @classmethod
    def of(cls, name: str, rows: np.ndarray, *, is_form: bool = False, is_asked: bool = False) -> "Block":
        """Return a block of rows, scaled to unit length; a zero row means that nothing is known about the name."""
        rows = unit(np.asarray(rows, dtype=np.float32))
        return cls(name, rows, np.linalg.norm(rows, axis=1) > 0, is_form, is_asked)


@dataclass(frozen=True, eq=False)
class Evidence:
    """Blocks of vectors of the same N names, one per evidence source, with weights that sum to 1.

    Attributes:
        blocks: the blocks; the first has the encoder's vectors.
        weights: one weight per evidence source; 0: the source is not used.
        agreement: (B, B) mean adjusted Rand index of the groupings by two blocks; NaN if it was not measured.
    """

    blocks: tuple[Block, ...]
    weights: tuple[float, ...]
    agreement: np.ndarray

    def joint(self, form: float | None = None) -> np.ndarray:
        """Return (N, D) float32 unit rows of all used blocks.

        A name unknown to a block borrows a row: the mean row of the 5 known names nearest to it by the other blocks.
        So missing rows neither join nor separate names.

        Args:
            form: total weight to give the blocks with ``is_form``, if any is used; None: their weights are unchanged.
        """
        weights = np.array(self.weights)
        is_form = np.array([bool(place) and block.is_form for place, block in enumerate(self.blocks)])
        now = weights[is_form].sum()
        if form is not None and now:
            weights = np.where(is_form, weights * form / now, weights * (1 - form) / (1 - now))
        parts = [(block, weight) for block, weight in zip(self.blocks, weights.tolist(), strict=True) if weight > 0]
        if len(parts) == 1 and parts[0][0].known.all():
            return parts[0][0].rows
        scaled = [np.where(block.known[:, None], block.rows, 0) * np.float32(weight) ** 0.5 for block, weight in parts]
        with threadpool_limits(limits=1):
            for place, (block, weight) in enumerate(parts):
                known, unknown = np.flatnonzero(block.known), np.flatnonzero(~block.known)
                if unknown.size and known.size and len(parts) > 1:
                    others = unit(np.hstack([rows for other, rows in enumerate(scaled) if other != place]))
                    lent = borrow(others[unknown], others[known], block.rows[known], BORROWED)
                    scaled[place][unknown] = lent * np.float32(weight) ** 0.5
        return unit(np.hstack(scaled)).astype(np.float32)


# length of a name's words beside its other evidence, where groups are learned; with 1, reviews take the same effort
WORDS = 0.7
LEARNING_FORM = 0.15  # weight of the wording for the regression; .1 to .2 give the same measured effort


def learning_rows(evidence: Evidence, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the joint rows from which groups are learned: (N, D) rows of the names, (T, D) rows of other texts.

    Args:
        evidence: evidence about the names.
        texts: (T, E) rows of texts by the first evidence source, the only source that has rows of texts. For the other
            sources, a text gets rows from the names nearest to it.
    """
    longer, count, more = list[Block](), len(evidence.blocks[0].rows), (0, len(texts))
    for block in evidence.blocks:
        rows, known = np.pad(block.rows, (more, (0, 0))), np.pad(block.known, more)
        longer.append(replace(block, rows=rows, known=known))
    longer[0].rows[count:], longer[0].known[count:] = texts, texts.any(axis=1)
    rows = replace(evidence, blocks=tuple(longer)).joint(LEARNING_FORM)
    return rows[:count], rows[count:]


def add_words(rows: np.ndarray, others: np.ndarray, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return (N, D) and (E, D) unit rows with the words of their N + E texts beside them, also as unit rows.

    One example with a word then teaches the group of all names with this word. The few axes of the lexical encoder hold
    letters and kinds of words, but not every word.
    """
    joined = unit(np.hstack([np.vstack([rows, others]), WORDS * _words(texts)]))
    return joined[: len(rows)], joined[len(rows) :]


def weigh(blocks: Sequence[Block], *, groups: int, seed: int = 0) -> Evidence:
    """Return blocks with weights from their agreement.

    Args:
        blocks: blocks about the same names.
        groups: number of groups at which blocks are compared.
        seed: seed of the resamples.
    """
    found = np.full((len(blocks), len(blocks)), np.nan)
    with threadpool_limits(limits=1):
        low = [leading_axes(block.rows) for block in blocks]
        for i in range(len(blocks)):
            for j in range(i):
                both = np.flatnonzero(blocks[i].known & blocks[j].known)
                if len(both) >= LEAST_NAMES:
                    found[i, j] = found[j, i] = _agreement(low[i][both], low[j][both], groups, seed)
    return Evidence(tuple(blocks), weights_of(blocks, found), found)


def _agreement(first: np.ndarray, second: np.ndarray, groups: int, seed: int) -> float:
    random = np.random.default_rng(seed)
    size = min(SAMPLE, round(SHARE * len(first)))
    wanted = max(2, min(groups, size // 2))
    values = []
    for _ in range(RESAMPLES):
        drawn = np.sort(random.permutation(len(first))[:size])
        parts = [fcluster(linkage(rows[drawn], "ward"), wanted, "maxclust") for rows in (first, second)]
        values.append(adjusted_rand_score(*parts))
    return float(np.mean(values))


def weights_of(blocks: Sequence[Block], agreement: np.ndarray) -> tuple[float, ...]:
    """Return the blocks' weights from their agreement.

    Args:
        blocks: the blocks, of which the first counts as evidence of meaning. A block of meaning with ``is_asked`` gets
            at least an equal share.
        agreement: (B, B) agreement; NaN (unknown) counts as 0.

    Returns:
        weights that sum to 1.
    """
    known = np.nan_to_num(agreement, nan=0.0)
    np.fill_diagonal(known, 0)
    asked = np.array([block.is_asked for block in blocks])
    form = np.array([bool(place) and block.is_form for place, block in enumerate(blocks)])
    meaning = np.flatnonzero(~form)
    among = known[np.ix_(meaning, meaning)]
    part = (among.max(axis=1, initial=0) >= LEAST_OF_MEANING) | (meaning == 0)
    mean = np.where(part, among[:, part].sum(axis=1), 0)
    mean = mean / mean.sum() if mean.sum() > 0 else part / part.sum()
    mean = np.where(asked[meaning], np.maximum(mean, 1 / len(meaning)), mean)
    forms = np.flatnonzero(form & ((known[0] >= LEAST_OF_FORM) | asked))
    weights = np.zeros(len(form))
    weights[meaning] = mean / mean.sum() * (1 - FORM if forms.size else 1)
    if forms.size:
        weights[forms] = FORM / forms.size
    return tuple(round(float(weight), 6) for weight in weights)


# -- the stage -----------------------------------------------------------------------------------------------------


def run(root: Path, stages: Mapping[str, StageRun], config: BuildConfig, progress: Progress) -> StageRun:
    """Run the stage, which writes ``rows.npy`` (joint), ``meaning.npy``, ``block-{source}.npy`` and ``evidence.json``.

    Args:
        root: the build's directory of stages.
        stages: the finished stages.
        config: the evidence sources to use, the encoder of descriptions, and the number of groups at which sources are
            compared. By default only names from ``classes`` have further sources.
        progress: receives the current task.

    Raises:
        MissingResourceError: the encoder's weights are not available on this machine.
    """
    files = ("clean/names.parquet", "embed/embeddings.npy", "embed/encoder.json", "scrape/classes.parquet")
    inputs, clustering = files_of(stages, *files), config.cluster
    default = (WORDING, DESCRIPTIONS, CLASSES) if config.source == "classes" else ()
    asked = config.evidence.evidence or default
    stated = {"asked": asked, "domain": config.domain, "groups": clustering.groups, "seed": clustering.seed}
    stated["is_stated"] = bool(config.evidence.evidence)
    work = partial(_weigh, inputs, asked, config, progress)
    return run_stage("evidence", root, version=VERSION, config=stated, inputs=inputs, work=work)


def read_evidence(folder: Path) -> Evidence:
    """Read the evidence sources and their weights, as the stage evidence wrote them."""
    about = read_json(folder / "evidence.json")
    stated = [(str(b["name"]), float(b["weight"]), bool(b["is_form"])) for b in about["blocks"]]
    agreement = np.array(about["agreement"], dtype=np.float64)
    rows = [read_embeddings(folder / f"block-{name}.npy") for name, _, _ in stated]
    blocks = [Block(name, of, np.any(of != 0, axis=1), form) for (name, _, form), of in zip(stated, rows, strict=True)]
    return Evidence(tuple(blocks), tuple(weight for _, weight, _ in stated), agreement)


def _weigh(
    inputs: Mapping[str, Path], asked: Sequence[str], config: BuildConfig, progress: Progress, out: Path
) -> StageResult:
    is_stated = bool(config.evidence.evidence)
    names = read_parquet(inputs["clean/names.parquet"])
    texts, notes = names["name"].to_list(), list[str]()
    blocks = [Block.of(TEXT, read_embeddings(inputs["embed/embeddings.npy"]))]
    graph = ClassGraph.read(inputs["scrape/classes.parquet"])
    for source in (WORDING, DESCRIPTIONS, CLASSES):
        if source not in asked:
            continue
        rows = None
        if source == WORDING and config.embed.encoder != "lexical":
            lexical = replace(config, embed=EmbedConfig("lexical"))
            rows = encoder_of(inputs["clean/names.parquet"], lexical).encode(texts)
        elif source == DESCRIPTIONS and names["description"].is_not_null().any():
            rows = _descriptions(names["description"].to_list(), config.embed, progress)
        elif source == CLASSES and names["class_ids"].list.len().fill_null(0).gt(0).any():
            rows = graph.rows([ids or () for ids in names["class_ids"].to_list()])
        if rows is not None:
            blocks.append(Block.of(source, rows, is_form=source == WORDING, is_asked=is_stated))
        elif is_stated:
            notes.append(f"--evidence {source}: these names have no such evidence.")
    progress("weigh the evidence", 0, 1)
    groups = config.cluster.groups or max(2, round(len(names) ** 0.5))
    evidence = weigh(blocks, groups=groups, seed=config.cluster.seed)
    np.save(out / "rows.npy", evidence.joint(), allow_pickle=False)
    np.save(out / "meaning.npy", evidence.joint(0), allow_pickle=False)
    progress("weigh the evidence", 1, 1)
    about = []
    for block, weight in zip(evidence.blocks, evidence.weights, strict=True):
        np.save(out / f"block-{block.name}.npy", block.rows, allow_pickle=False)
        about.append({"name": block.name, "weight": weight, "is_form": block.is_form, "known": int(block.known.sum())})
    agreement = [[None if np.isnan(value) else round(value, 6) for value in row] for row in evidence.agreement]
    details = {"blocks": about, "agreement": agreement}
    write_json(out / "evidence.json", details)
    shares = {f"share of {block['name']}": round(block["weight"], 3) for block in about if len(about) > 1}
    return StageResult({"names": len(names), **shares}, notes=tuple(notes), details=details)


def _descriptions(texts: Sequence[str | None], embedding: EmbedConfig, progress: Progress) -> np.ndarray:
    """Return rows of descriptions, zero for names without a description; ``lexical`` gives rows of their words."""
    known = [place for place, text in enumerate(texts) if text]
    said = [text for text in texts if text]
    if embedding.encoder == "lexical":
        rows = _words(said)
    else:
        options = {"device": embedding.device, "batch_size": embedding.batch_size}
        templates = ("{}",) if make_encoder(embedding.encoder, **options).templates else ()
        rows = make_encoder(embedding.encoder, templates=templates, **options).encode(said, progress)
    block = np.zeros((len(texts), rows.shape[1]), dtype=np.float32)
    block[known] = rows
    return block


def _words(texts: Sequence[str]) -> np.ndarray:
    """Return the leading axes of the texts' TF-IDF rows; texts without a known word have zero rows."""
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, stop_words="english")
    if not any(map(words.build_analyzer(), texts)):
        return np.zeros((len(texts), 1), dtype=np.float32)
    features: Any = words.fit_transform(texts)
    with threadpool_limits(limits=1):
        left, lengths, _ = randomized_svd(features, min(_WORD_AXES, *features.shape), random_state=0)
    return (left * lengths).astype(np.float32)

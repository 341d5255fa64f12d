"""The evidence stage, which weighs and joins evidence about names; every source is a block of unit rows.

Landmarks have one block, the encoder's, as published. Names of ``--classes`` have besides it what there is of these:

- ``wording``: the lexical encoder's rows, if the encoder is another one;
- ``descriptions``: the encoder's rows of their descriptions; with ``lexical``, words by TF-IDF;
- ``classes``: what they are kinds of, by P279 or a tree.

Blocks are joined side by side, each scaled by the root of its weight, so that the cosine of two names is the weighted
mean of their cosines by each block. Weights are found without labels, by agreement. Names are grouped by each
block alone, on resamples of the names that two blocks both know. The adjusted Rand index of the two groupings says how
far they agree beyond chance.

* The first block is what names are embedded with; it always takes part.
* A block of meaning (descriptions, classes) takes part if it agrees with the other blocks of meaning by more than
  chance. Such blocks count in proportion to that agreement.
* The block of form (the wording) takes part if it agrees with the first block by a quarter. Names of like wording are
  of one kind if groups are small ("arch bridge", "toll bridge"); if they are few and large, wording says nothing about
  them, and there it agrees with no meaning.

Sources that ``--evidence`` names take part in any case. How stable the groupings of a block are is no measure: wording
falls into groups that come back on every resample and yet are wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from hgld.files import read_json
from hgld.tables import read_parquet

from ...stage import Progress, StageResult, StageRun, files_of, run_stage, write_json
from ..config import BuildConfig, EmbedConfig
from ..encoders.embed import read_embeddings
from ..encoders.registry import make_encoder
from ..names.class_graph import ClassGraph
from ..names.languages import read_english
from ..unit_rows import borrow, leading_axes, unit

VERSION = 2  # 2: wording, descriptions and classes alone
TEXT, WORDING, DESCRIPTIONS, CLASSES = "text", "wording", "descriptions", "classes"
RESAMPLES = 6
SAMPLE = 1000  # names of a resample at most
SHARE = 0.8  # of the names of a smaller list
LEAST_NAMES = 10  # known to both blocks, below which their agreement is not measured
LEAST_OF_FORM = 0.25
LEAST_OF_MEANING = 0.05  # groupings that have nothing to do with each other agree by 0, and hardly ever by so much
FORM = 0.4  # weight of the wording, if it takes part
BORROWED = 5
_DESCRIPTION_AXES = 100


@dataclass(frozen=True, eq=False)
class Block:
    """One source of evidence about N names.

    Attributes:
        name: name of the evidence source.
        rows: (N, D) float32 unit rows, zero if nothing is known.
        known: (N,) bool, True if there is a row.
        is_form: True if it is about a name's wording and not about what is named.
        is_asked: True if it takes part whether or not it agrees with the others.
    """

    name: str
    rows: np.ndarray
    known: np.ndarray
    is_form: bool = False
    is_asked: bool = False

    @classmethod
    def of(cls, name: str, rows: np.ndarray, *, is_form: bool = False, is_asked: bool = False) -> "Block":
        """Return the block of any finite rows, brought to unit length; zero rows are names it does not know."""
        rows = unit(np.asarray(rows, dtype=np.float32))
        return cls(name, rows, np.linalg.norm(rows, axis=1) > 0, is_form, is_asked)


@dataclass(frozen=True, eq=False)
class Evidence:
    """Blocks about the same N names with their weights, which sum to 1.

    Attributes:
        blocks: the first is what names are embedded with.
        weights: one weight per evidence source; 0: the source is not used.
        agreement: (B, B) mean adjusted Rand index of the groupings by two blocks; NaN if it was not measured.
    """

    blocks: tuple[Block, ...]
    weights: tuple[float, ...]
    agreement: np.ndarray

    def joint(self, form: float | None = None) -> np.ndarray:
        """Return (N, D) float32 unit rows of all blocks that take part.

        A name that a block does not know borrows a row: the mean of the 5 known names that are nearest to it by the
        other blocks. So missing rows neither join nor part names.

        Args:
            form: another weight of the blocks of form together, if any takes part.
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
                if unknown.size and known.size:
                    others = unit(np.hstack([rows for other, rows in enumerate(scaled) if other != place]))
                    lent = borrow(others[unknown], others[known], block.rows[known], BORROWED)
                    scaled[place][unknown] = lent * np.float32(weight) ** 0.5
        return unit(np.hstack(scaled)).astype(np.float32)


def weigh(blocks: Sequence[Block], *, groups: int, seed: int = 0) -> Evidence:
    """Return blocks with weights found by their agreement.

    Args:
        blocks: about the same names.
        groups: the number of groups at which they are compared.
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
    """Return the blocks' weights by their agreement.

    Args:
        blocks: the first counts as one of meaning; blocks of meaning that are asked for have an equal share at least.
        agreement: (B, B), NaN if it is not known, which counts as 0.

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
    """Run the stage: ``rows.npy`` (joint), ``meaning.npy``, ``block-{source}.npy`` and ``evidence.json``.

    Args:
        root: the build's directory of stages.
        stages: the finished stages.
        config: the evidence sources to use, the encoder of descriptions, and the number of groups at which sources are
            compared. Names from other inputs than ``classes`` have one evidence source by default.
        progress: told what is being done.

    Raises:
        TableError: the inputs do not belong together.
        MissingResourceError: the encoder's weights are not available here.
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
    """Read the blocks and weights that the stage wrote."""
    about = read_json(folder / "evidence.json")
    stated = [(str(b["name"]), float(b["weight"]), bool(b["is_form"])) for b in about["blocks"]]
    agreement = np.array(about["agreement"], dtype=np.float64)
    rows = [read_embeddings(folder / f"block-{name}.npy") for name, _, _ in stated]
    blocks = [Block(name, of, np.any(of != 0, axis=1), form) for (name, _, form), of in zip(stated, rows, strict=True)]
    return Evidence(tuple(blocks), tuple(weight for _, weight, _ in stated), agreement)


def _weigh(
    inputs: Mapping[str, Path], asked: Sequence[str], config: BuildConfig, progress: Progress, out: Path
) -> StageResult:
    domain, embedding, clustering, is_stated = (
        config.domain,
        config.embed,
        config.cluster,
        bool(config.evidence.evidence),
    )
    names = read_parquet(inputs["clean/names.parquet"])
    texts, notes = names["name"].to_list(), list[str]()
    blocks = [Block.of(TEXT, read_embeddings(inputs["embed/embeddings.npy"]))]
    graph = ClassGraph.read(inputs["scrape/classes.parquet"])
    for source in (WORDING, DESCRIPTIONS, CLASSES):
        if source not in asked:
            continue
        rows = None
        if source == WORDING and embedding.encoder != "lexical":
            english = read_english(inputs["clean/names.parquet"], domain)
            rows = make_encoder("lexical", names=texts, lexicon=domain == "landmarks", english=english).encode(texts)
        elif source == DESCRIPTIONS and names["description"].is_not_null().any():
            rows = _descriptions(names["description"].to_list(), embedding, progress)
        elif source == CLASSES and names["class_ids"].list.len().fill_null(0).gt(0).any():
            rows = graph.rows([ids or () for ids in names["class_ids"].to_list()])
        if rows is not None:
            blocks.append(Block.of(source, rows, is_form=source == WORDING, is_asked=is_stated))
        elif is_stated:
            notes.append(f"--evidence {source}: nothing of that kind is known about these names.")
    progress("weigh the evidence", 0, 1)
    evidence = weigh(blocks, groups=clustering.groups or max(2, round(len(names) ** 0.5)), seed=clustering.seed)
    np.save(out / "rows.npy", evidence.joint(), allow_pickle=False)
    np.save(out / "meaning.npy", evidence.joint(form=0), allow_pickle=False)
    progress("weigh the evidence", 1, 1)
    about = []
    for block, weight in zip(evidence.blocks, evidence.weights, strict=True):
        np.save(out / f"block-{block.name}.npy", block.rows, allow_pickle=False)
        about.append({"name": block.name, "weight": weight, "is_form": block.is_form, "known": int(block.known.sum())})
    agreement = [[None if np.isnan(value) else round(value, 6) for value in row] for row in evidence.agreement]
    write_json(out / "evidence.json", {"blocks": about, "agreement": agreement})
    counts: dict[str, int | float] = {"names": len(names)}
    counts |= {f"share of {block['name']}": round(block["weight"], 3) for block in about if len(about) > 1}
    return StageResult(counts, notes=tuple(notes), details={"blocks": about, "agreement": agreement})


def _descriptions(texts: Sequence[str | None], embedding: EmbedConfig, progress: Progress) -> np.ndarray:
    """Return rows of descriptions, zero if there is none; with ``lexical``, by their words."""
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
    """Return rows of texts by their words: TF-IDF and its leading axes; zero for texts without a known word."""
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, stop_words="english")
    if not any(map(words.build_analyzer(), texts)):
        return np.zeros((len(texts), 1), dtype=np.float32)
    features = words.fit_transform(texts)
    axes = min(_DESCRIPTION_AXES, min(features.shape) - 1)
    if axes < 1:
        return np.asarray(features.toarray(), dtype=np.float32)
    return TruncatedSVD(axes, random_state=0).fit_transform(features).astype(np.float32)

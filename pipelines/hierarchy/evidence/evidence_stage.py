"""The evidence stage: what is known about names, each kind a block of rows, weighed and joined.

Landmarks have one block, the encoder's, as published. Names of ``--classes`` have besides it what there is of these:

- ``wording``: the lexical encoder's rows, where the encoder is another one;
- ``descriptions``: the encoder's rows of their descriptions; with ``lexical``, words by TF-IDF;
- ``classes``: what they are kinds of, by P279 or a tree;
- ``images``: the mean of their images' rows by CLIP;
- ``table``: rows of the user's own (``--class-embeddings``).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from hgld.errors import ConfigError, TableError, excerpt
from hgld.files import read_json
from hgld.tables import read_parquet

from ...stage import Progress, StageResult, StageRun, run_stage, write_json
from ..config import ClusterConfig, EmbedConfig, EvidenceConfig, key_fields
from ..encoders.at_hand import clip_at_hand
from ..encoders.registry import JOINED, Encoder, entry_of, make_encoder
from ..names.class_graph import ClassGraph
from ..names.languages import read_english
from .class_rows import class_rows
from .class_table import read_class_table, table_files
from .embed import EmbeddingCache, default_folder, embed_names, read_embeddings
from .evidence import Block, Evidence, weigh

VERSION = 1
TEXT, WORDING, DESCRIPTIONS, CLASSES, IMAGES, TABLE = KINDS = (
    "text", "wording", "descriptions", "classes", "images", "table",
)  # fmt: skip
NONE = "none"
_DESCRIPTION_AXES = 100


def run(
    root: Path,
    cleaned: StageRun,
    embedded: StageRun,
    scraped: StageRun,
    config: EvidenceConfig,
    embedding: EmbedConfig,
    clustering: ClusterConfig,
    progress: Progress,
    *,
    domain: str = "landmarks",
    images_from: Path | None = None,
) -> StageRun:
    """Run the stage: ``rows.npy`` (joint), ``meaning.npy``, ``block-{kind}.npy`` and ``evidence.json``.

    Args:
        root: the build's directory of stages.
        cleaned: the clean stage (names, their descriptions and images).
        embedded: the embed stage (the first block).
        scraped: the scrape stage (the class graph).
        config: which kinds of evidence count.
        embedding: the embed stage's options, for the same encoder to embed descriptions.
        clustering: the number of groups at which blocks are compared, the seed, and whether the class graph is mixed
            in by a given weight already.
        progress: told what is being done.
        domain: of the names.
        images_from: folder that the names' images are relative to; None: the names are landmarks, with one block.

    Raises:
        ConfigError: an unknown kind of evidence.
        TableError: the table of rows cannot be read, or the inputs do not belong together.
        MissingResourceError: an encoder's weights cannot be had here.
    """
    check_options(config)
    inputs = {
        "clean/names": cleaned.path("names.parquet"),
        "clean/landmarks": cleaned.path("landmarks.parquet"),
        "embed/embeddings": embedded.path("embeddings.npy"),
        "embed/encoder": embedded.path("encoder.json"),
        "scrape/classes": scraped.path("classes.parquet"),
        "scrape/landmarks": scraped.path("landmarks.parquet"),
    }
    maker = _Maker(inputs, config, embedding, clustering, domain, images_from)
    settings = {
        **key_fields(config),
        "domain": domain,
        "groups": clustering.groups,
        "seed": clustering.seed,
        "structure": clustering.structure > 0,
        "kinds": list(maker.kinds),
        "images": maker.images_key(),
    }
    tables = table_files(config.class_embeddings) if config.class_embeddings and TABLE in maker.kinds else []
    given = {**inputs, **{f"class-embeddings/{place}": file for place, file in enumerate(tables)}}
    return run_stage(
        "evidence", root, version=VERSION, config=settings, inputs=given, work=partial(maker.write, progress)
    )


def check_options(config: EvidenceConfig) -> None:
    """Refuse options that no data could serve.

    Raises:
        ConfigError: an unknown kind of evidence, or rows of the user's own that are not to count.
    """
    unknown = [kind for kind in config.evidence if kind not in (*KINDS[1:], NONE)]
    if unknown or (NONE in config.evidence and len(config.evidence) > 1):
        raise ConfigError(
            f"--evidence {','.join(config.evidence)}: expected some of {', '.join(KINDS[1:])}, separated by commas, or "
            f"{NONE} alone."
        )
    if config.class_embeddings and config.evidence and TABLE not in config.evidence:
        raise ConfigError(
            f"--class-embeddings is given, but --evidence leaves {TABLE!r} out. Add it, or leave one out."
        )


def read_evidence(folder: Path) -> Evidence:
    """Read the blocks and weights that the stage wrote.

    Raises:
        TableError: a file is not what the stage writes.
    """
    file = folder / "evidence.json"
    try:
        about = read_json(file)
        stated = [(str(b["name"]), float(b["weight"]), bool(b["is_form"])) for b in about["blocks"]]
        agreement = np.array(about["agreement"], dtype=np.float64)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TableError(
            f"{file}: not the evidence of a build ({excerpt(error)}). Remove the evidence stage's folder."
        ) from error
    rows = [_read_block(folder, name) for name, _, _ in stated]
    blocks = [Block(name, of, np.any(of != 0, axis=1), form) for (name, _, form), of in zip(stated, rows, strict=True)]
    return Evidence(tuple(blocks), tuple(weight for _, weight, _ in stated), agreement)


def _read_block(folder: Path, name: str) -> np.ndarray:
    if name not in KINDS:
        raise TableError(
            f"{folder / 'evidence.json'}: unknown block {name[:80]!r}. Remove the evidence stage's folder."
        )
    return read_embeddings(folder / f"block-{name}.npy")


class _Maker:
    """The blocks that there are for some names."""

    def __init__(
        self,
        inputs: dict[str, Path],
        config: EvidenceConfig,
        embedding: EmbedConfig,
        clustering: ClusterConfig,
        domain: str,
        images_from: Path | None,
    ) -> None:
        self._inputs = inputs
        self._config, self._embedding, self._clustering = config, embedding, clustering
        self._domain, self._folder = domain, images_from
        self._names = read_parquet(inputs["clean/names"])
        self._notes: list[str] = []
        self._image_encoder = self._images_by()
        self.kinds = tuple(self._kinds())

    def images_key(self) -> list[str]:
        """Return what the block of images rests on: the encoder, and every image's place, size and time of change."""
        if IMAGES not in self.kinds:
            return []
        stamps = [f"{p.member}/{p.size}/{p.stamp}" for places in self._image_places() for p in places]
        return [self._encoder(self._image_encoder).key, *stamps]

    def write(self, progress: Progress, out: Path) -> StageResult:
        blocks = [Block.of(TEXT, self._text())]
        for kind in self.kinds:
            made = getattr(self, f"_{kind}")(progress)
            blocks.append(Block.of(kind, made, is_form=kind == WORDING))
        groups = self._clustering.groups or max(2, round(len(self._names) ** 0.5))
        progress("weigh the evidence", 0, 1)
        evidence = weigh(blocks, groups=groups, seed=self._clustering.seed)
        np.save(out / "rows.npy", evidence.joint(), allow_pickle=False)
        np.save(out / "meaning.npy", evidence.joint(form=0), allow_pickle=False)
        progress("weigh the evidence", 1, 1)
        about = []
        for block, weight in zip(evidence.blocks, evidence.weights, strict=True):
            np.save(out / f"block-{block.name}.npy", block.rows, allow_pickle=False)
            known = int(block.known.sum())
            about.append({"name": block.name, "weight": weight, "is_form": block.is_form, "known": known})
        agreement = [[None if np.isnan(value) else round(value, 6) for value in row] for row in evidence.agreement]
        write_json(out / "evidence.json", {"blocks": about, "agreement": agreement})
        counts: dict[str, int | float] = {"names": len(self._names)}
        counts |= {f"share of {block['name']}": round(block["weight"], 3) for block in about if len(about) > 1}
        return StageResult(
            counts, notes=(*self._notes, *_notes(about)), details={"blocks": about, "agreement": agreement}
        )

    # -- which blocks there are -------------------------------------------------------------------------------------

    def _kinds(self) -> Iterator[str]:
        asked = self._config.evidence
        there = {
            WORDING: not (self._embedding.encoder == "lexical" or self._embedding.encoder.endswith(JOINED)),
            DESCRIPTIONS: self._names["description"].is_not_null().any(),
            CLASSES: self._names["class_ids"].list.len().fill_null(0).gt(0).any() and not self._clustering.structure,
            IMAGES: self._image_encoder != "",
            TABLE: self._config.class_embeddings is not None,
        }
        for kind in KINDS[1:]:
            wanted = kind in asked or (not asked and (self._folder is not None or kind == TABLE))
            if wanted and there[kind]:
                yield kind
            elif kind in asked:
                self._notes.append(f"--evidence {kind}: nothing of that kind is known about these names.")

    def _images_by(self) -> str:
        """Return the encoder of images; empty where there is none or no image."""
        listed = self._folder is not None and bool(self._names["images"].list.len().fill_null(0).gt(0).any())
        if not listed or (self._config.evidence and IMAGES not in self._config.evidence):
            return ""
        entry = entry_of(self._embedding.encoder)
        if self._config.image_encoder:
            return self._config.image_encoder
        if entry is not None and entry.encodes_images and not self._embedding.encoder.endswith(JOINED):
            return self._embedding.encoder
        found = clip_at_hand()
        if found is None:
            self._notes.append(
                "the names have images, but no CLIP weights are at hand, so images do not count; give --image-encoder "
                "clip:MODEL/PRETRAINED, or means of your own with --class-embeddings."
            )
            return ""
        return found.spec

    # -- the blocks -------------------------------------------------------------------------------------------------

    def _text(self) -> np.ndarray:
        rows = read_embeddings(self._inputs["embed/embeddings"])
        if len(rows) != len(self._names) or not len(rows):
            raise TableError(
                f"{self._inputs['embed/embeddings']}: {len(rows)} rows for {len(self._names)} names; expected one "
                "each. Remove the embed stage's folder, or look at what the clean stage dropped."
            )
        return rows

    def _wording(self, progress: Progress) -> np.ndarray:
        names, english = self._names["name"].to_list(), read_english(self._inputs["clean/names"], self._domain)
        encoder = make_encoder("lexical", names=names, lexicon=self._domain == "landmarks", english=english)
        return encoder.encode(names)

    def _descriptions(self, progress: Progress) -> np.ndarray:
        texts = self._names["description"].to_list()
        known = [place for place, text in enumerate(texts) if text]
        said = [str(texts[place]) for place in known]
        if self._embedding.encoder == "lexical" or self._embedding.encoder.endswith(JOINED):
            rows = _words(said)
        else:
            encoder = make_encoder(
                self._embedding.encoder,
                templates=("{}",) if self._encoder(self._embedding.encoder).templates else (),
                device=self._embedding.device,
                batch_size=self._embedding.batch_size,
            )
            rows = embed_names(encoder, said, EmbeddingCache(self._cache, encoder.key), progress)
        block = np.zeros((len(texts), rows.shape[1]), dtype=np.float32)
        block[known] = rows
        return block

    def _classes(self, progress: Progress) -> np.ndarray:
        graph = ClassGraph.read(self._inputs["scrape/classes"])
        return class_rows(graph, [ids or () for ids in self._names["class_ids"].to_list()])

    def _images(self, progress: Progress) -> np.ndarray:
        from .class_images import image_rows

        encoder = self._encoder(self._image_encoder)
        rows, left_out = image_rows(self._image_places(), encoder, progress)  # pyright: ignore[reportArgumentType]
        if left_out:
            self._notes.append(
                f"{len(left_out)} images could not be read, the first {left_out[0][0]}: {left_out[0][1]}."
            )
        return rows

    def _table(self, progress: Progress) -> np.ndarray:
        file = self._config.class_embeddings
        assert file is not None
        keys, rows = read_class_table(file)
        named = self._keys_of_names()
        places = [named.get(key) for key in keys]
        found = [(place, row) for row, place in enumerate(places) if place is not None]
        if not found:
            raise TableError(
                f"{file}: none of its {len(keys)} keys is a name or id of the list; the first is {keys[0][:80]!r}. "
                "Expected names as they stand in the list, or ids."
            )
        sums = np.zeros((len(self._names), rows.shape[1]), dtype=np.float64)
        np.add.at(sums, [place for place, _ in found], rows[[row for _, row in found]])
        without = len(self._names) - len({place for place, _ in found})
        if without or len(found) < len(keys):
            self._notes.append(
                f"{file.name}: {len(found)} of its {len(keys)} keys are names or ids of the list; {without} names have "
                "no row there."
            )
        return sums

    def _keys_of_names(self) -> dict[str, int]:
        """Return the place of every name by its id, by its spelling in the list, and by the name itself."""
        place = {name: number for number, name in enumerate(self._names["name"].to_list())}
        kept = read_parquet(self._inputs["clean/landmarks"])
        items = read_parquet(self._inputs["scrape/landmarks"])
        keys: dict[str, int] = {}
        if "id" in items.columns:
            joined = kept.join(items.select("split", "landmark_id", "id"), on=["split", "landmark_id"])
            keys |= {key: place[name] for key, name in joined.select("id", "name").iter_rows() if key and name in place}
        spelt = kept.select("supercategory", "name").unique(maintain_order=True).iter_rows()
        return keys | {raw: place[name] for raw, name in spelt if raw and name in place} | place

    def _image_places(self):
        from .class_images import image_places

        assert self._folder is not None
        return image_places([paths or [] for paths in self._names["images"].to_list()], self._folder)

    def _encoder(self, spec: str) -> Encoder:
        return make_encoder(spec, names=("name",), device=self._embedding.device, batch_size=self._embedding.batch_size)

    @property
    def _cache(self) -> Path:
        return self._embedding.cache or default_folder()


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


def _notes(blocks: Sequence[dict]) -> list[str]:
    silent = [block["name"] for block in blocks if block["weight"] == 0]
    if not silent:
        return []
    by = "by it" if len(silent) == 1 else "by each of them"
    return [f"{', '.join(silent)}: takes no part, for {by} alone the names fall into other groups than by the encoder."]

"""The assign stage: join landmarks with their groups, and name those without a name by their images, if asked.

Two methods assign names: CLIP zero-shot, and the vote of neighbours. Both look at one vector a landmark, the
renormalised mean of its images' unit embeddings, and both score a *group*: the score is that group's share of the
probability (zero-shot) or of the vote, and the name is the best one within it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import polars as pl
from PIL import Image

from hgld.errors import ConfigError, ImageError, TableError
from hgld.tables import read_parquet

from ..stage import Progress, StageResult, StageRun, run_stage, write_dropped
from .config import AssignConfig, EmbedConfig
from .encoders.registry import JOINED, entry_of, make_encoder
from .landmark_images import (
    IMAGES_A_LANDMARK,
    ImagePlace,
    LandmarkKey,
    find_images,
    fingerprint,
    read_image,
)
from .names.landmark_tables import with_item_columns
from .provenance import without_folder

LOGIT_SCALE = 100.0  # the value that CLIP's learned temperature reaches (Radford et al., 2021, section 2.5)
NEIGHBOURS = 10
IMAGES_AT_ONCE = 256  # decoded images in memory; the encoder forms its own batches
LEAST_SCORE = 0.5  # more than half of the probability, or of the vote, for one group; otherwise no name is given
_BLOCK = 1024


@runtime_checkable
class ImageEncoder(Protocol):
    """An encoder of names and of images as unit rows in one space."""

    @property
    def key(self) -> str: ...

    def encode(self, names: Sequence[str]) -> np.ndarray: ...

    def encode_images(self, images: Sequence[Image.Image]) -> np.ndarray: ...


@dataclass(frozen=True)
class ImageVectors:
    """Mean embeddings of landmarks.

    Attributes:
        landmarks: the M landmarks with at least one readable image, in the order asked for.
        vectors: (M, D) float32 unit rows.
        unreadable: (landmark, member, reason) of every image that was left out.
    """

    landmarks: tuple[LandmarkKey, ...]
    vectors: np.ndarray
    unreadable: tuple[tuple[LandmarkKey, str, str], ...]


@dataclass(frozen=True)
class Choice:
    """The proposed name of M landmarks: index of the name, and its group's score in 0..1."""

    name: np.ndarray
    score: np.ndarray


def unit(rows: np.ndarray) -> np.ndarray:
    """Return the rows of (N, D) divided by their length; zero rows stay zero."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(length > 0, length, 1)).astype(np.float32)


def embed_landmarks(
    encoder: ImageEncoder,
    images: Mapping[LandmarkKey, Sequence[ImagePlace]],
    landmarks: Sequence[LandmarkKey],
    progress: Progress,
) -> ImageVectors:
    """Embed the images of ``landmarks`` (all of which are in ``images``), some hundred images at a time."""
    kept: list[LandmarkKey] = []
    sums: list[np.ndarray] = []
    unreadable: list[tuple[LandmarkKey, str, str]] = []
    waiting: list[tuple[LandmarkKey, Image.Image]] = []

    def encode_waiting() -> None:
        rows = encoder.encode_images([picture for _, picture in waiting]) if waiting else []
        for (landmark, _), row in zip(waiting, rows, strict=True):
            if kept and kept[-1] == landmark:
                sums[-1] = sums[-1] + row
            else:
                kept.append(landmark)
                sums.append(np.asarray(row, dtype=np.float64))
        waiting.clear()

    for done, landmark in enumerate(landmarks):
        for image in images[landmark]:
            try:
                waiting.append((landmark, read_image(image)))
            except ImageError as reason:
                unreadable.append((landmark, image.member, str(reason)))
            if len(waiting) >= IMAGES_AT_ONCE:
                encode_waiting()
        progress("embed images of landmarks", done + 1, len(landmarks))
    encode_waiting()
    vectors = unit(np.stack(sums)) if sums else np.zeros((0, 0), dtype=np.float32)
    return ImageVectors(tuple(kept), vectors, tuple(unreadable))


def zero_shot(images: np.ndarray, names: np.ndarray, groups: np.ndarray) -> Choice:
    """Choose names by CLIP zero-shot: softmax over all names, summed by group.

    Args:
        images: (M, D) unit rows of landmarks.
        names: (N, D) unit rows of names.
        groups: (N,) group of each name, 0..G-1.
    """
    member = np.zeros((len(names), int(groups.max()) + 1), dtype=np.float32)
    member[np.arange(len(names)), groups] = 1
    best, score = [], []
    for start in range(0, len(images), _BLOCK):
        logits = LOGIT_SCALE * (images[start : start + _BLOCK] @ names.T)
        share = np.exp(logits - logits.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        by_group = share @ member
        winner = by_group.argmax(axis=1)
        best.append(np.where(groups[None, :] == winner[:, None], share, -1).argmax(axis=1))
        score.append(by_group.max(axis=1))
    return _choice(best, score)


def vote(images: np.ndarray, known: np.ndarray, names: np.ndarray, groups: np.ndarray) -> Choice:
    """Choose names by the vote of the nearest named landmarks, weighted by cosine similarity (none below 0).

    Args:
        images: (M, D) unit rows of landmarks without a name.
        known: (R, D) unit rows of named landmarks.
        names: (R,) name index of each of those.
        groups: (N,) group of each name, 0..G-1.
    """
    nearest = min(NEIGHBOURS, len(known))
    best, score = [], []
    for start in range(0, len(images), _BLOCK):
        similarity = images[start : start + _BLOCK] @ known.T
        order = np.argsort(-similarity, axis=1, kind="stable")[:, :nearest]  # stable: ties go to the earlier landmark
        weight = np.maximum(np.take_along_axis(similarity, order, axis=1), 0)
        rows = np.repeat(np.arange(len(order)), nearest)
        by_name = np.zeros((len(order), len(groups)), dtype=np.float64)
        np.add.at(by_name, (rows, names[order].ravel()), weight.ravel())
        by_group = np.zeros((len(order), int(groups.max()) + 1), dtype=np.float64)
        np.add.at(by_group, (rows, groups[names[order]].ravel()), weight.ravel())
        winner = by_group.argmax(axis=1)
        best.append(np.where(groups[None, :] == winner[:, None], by_name, -1).argmax(axis=1))
        total = weight.sum(axis=1)
        score.append(by_group.max(axis=1) / np.where(total > 0, total, 1))
    return _choice(best, score)


def _choice(best: list[np.ndarray], score: list[np.ndarray]) -> Choice:
    if not best:
        return Choice(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32))
    share = np.minimum(np.concatenate(score), 1)  # a sum of rounded shares may be a hair above 1
    return Choice(np.concatenate(best), share.astype(np.float32))


# -- the stage -----------------------------------------------------------------------------------------------------

VERSION = 3  # 2: images are turned upright before they are looked at; 3: decisions about single items
LANDMARKS = {
    "split": pl.String,
    "landmark_id": pl.Int64,
    "category": pl.String,
    "title": pl.String,
    "supercategory": pl.String,
    "name": pl.String,
    "hierarchical_label": pl.String,
    "natural_or_human_made": pl.String,
    "assigned": pl.String,
    "score": pl.Float32,
}
DROPPED = {
    "split": pl.String,
    "landmark_id": pl.Int64,
    "category": pl.String,
    "reason": pl.String,
    "detail": pl.String,
}
UNREADABLE = {"split": pl.String, "landmark_id": pl.Int64, "member": pl.String, "reason": pl.String}
_KEY = ["split", "landmark_id"]
_MOST_NOTES = 10


def run(
    root: Path,
    scraped: StageRun,
    cleaned: StageRun,
    reviewed: StageRun,
    config: AssignConfig,
    embed: EmbedConfig,
    progress: Progress,
) -> StageRun:
    """Join landmarks with their names' groups, and give names to those without if ``config.assign`` says so.

    An assigned name is marked: ``assigned`` holds the method and ``score`` its score; ``supercategory`` stays null,
    because no name was scraped. Below a score of 0.5 no name is assigned.

    Raises:
        ConfigError: as :func:`check_options`, or the images are not where they should be.
        TableError: clean's and review's tables do not belong together.
    """
    check_options(config, embed)
    encoder, images = (None, {}) if config.images is None else _image_encoder(config.images, embed)
    inputs = {
        "scrape/landmarks": scraped.path("landmarks.parquet"),
        "clean/landmarks": cleaned.path("landmarks.parquet"),
        "clean/dropped": cleaned.path("dropped.parquet"),
        "review/names": reviewed.path("names.parquet"),
        "review/groups": reviewed.path("groups.parquet"),
        "review/dropped": reviewed.path("dropped.parquet"),
        "review/items": reviewed.path("items.parquet"),
    }
    settings: dict[str, Any] = {"assign": config.assign}
    if encoder is not None:
        settings |= {"images": fingerprint(images), "encoder": encoder.key}

    def work(directory: Path) -> StageResult:
        tables = _Tables.read(inputs)
        labelled, dropped = tables.join()
        given, failed, details = _no_names(), _no_drops(), {}
        if encoder is not None:
            given, failed, details = _assign_names(directory, config, encoder, images, tables, labelled, progress)
            details["encoder"] = without_folder(embed.encoder)
        landmarks = pl.concat([labelled, given]).sort(_KEY)
        landmarks.write_parquet(directory / "landmarks.parquet")
        reasons = write_dropped(directory, pl.concat([dropped, failed]).sort(_KEY))
        return StageResult(_counts(landmarks) | tables.counts, reasons, notes=tables.notes, details=details)

    return run_stage("assign", root, version=VERSION, config=settings, inputs=inputs, work=work)


def check_options(config: AssignConfig, embed: EmbedConfig) -> None:
    """Refuse options that contradict each other.

    Raises:
        ConfigError: names are asked for without images, or images without names, or with an encoder of text alone.
    """
    if config.assign == "none":
        if config.images is not None:
            raise ConfigError(
                f"--images {config.images}: --assign none does not use images. Add --assign images or "
                "--assign vote, or leave --images out."
            )
        return
    if config.images is None:
        raise ConfigError(
            f"--assign {config.assign} looks at the landmarks' images; say where they are with --images FOLDER, "
            "or leave --assign out."
        )
    entry = entry_of(embed.encoder)
    if entry is None or not entry.encodes_images:
        raise ConfigError(
            f"--assign {config.assign} needs an encoder of images and text; --encoder is {embed.encoder!r}, expected "
            "clip:MODEL/PRETRAINED."
        )


@dataclass(frozen=True)
class _Tables:
    landmarks: pl.DataFrame
    nameless: pl.DataFrame
    names: pl.DataFrame
    dropped: pl.DataFrame
    tops: pl.DataFrame
    given: pl.DataFrame  # landmarks that decisions put elsewhere than their names: name, label
    lost: tuple[str, ...]  # decisions about single landmarks that fit nothing

    @classmethod
    def read(cls, inputs: dict[str, Path]) -> "_Tables":
        table = {role: read_parquet(file) for role, file in inputs.items()}
        tops = table["review/groups"].select("label", natural_or_human_made="top")
        names = table["review/names"].select("name", "label").join(tops, on="label", how="left", maintain_order="left")
        titles = table["scrape/landmarks"].select(*_KEY, "title")
        nameless = (
            table["clean/dropped"]
            .select(*_KEY, "category")
            .unique(_KEY, keep="first", maintain_order=True)
            .join(table["clean/landmarks"], on=_KEY, how="anti")
            .join(titles, on=_KEY, how="left")
            .sort(_KEY)
        )
        given, lost = _given(table["review/items"], table["scrape/landmarks"], table["clean/landmarks"])
        return cls(table["clean/landmarks"], nameless, names, table["review/dropped"], tops, given, lost)

    @property
    def counts(self) -> dict[str, int]:
        return {"put elsewhere by decision": len(self.given)} if len(self.given) else {}

    @property
    def notes(self) -> tuple[str, ...]:
        more = len(self.lost) - _MOST_NOTES
        return (
            *self.lost[:_MOST_NOTES],
            *([f"{more} more decisions about single items fit nothing."] if more > 0 else []),
        )

    def join(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the landmarks with a group, and the drops of those whose name was dropped in review."""
        joined = self._put(self.landmarks.join(self.names, on="name", how="left", maintain_order="left"))
        labelled = joined.filter(pl.col("label").is_not_null())
        left = joined.filter(pl.col("label").is_null()).join(
            self.dropped.select("name", "reason", "who", "why"), on="name", how="left", maintain_order="left"
        )
        lost = left.filter(pl.col("reason").is_null())["name"].unique().sort().to_list()
        if lost:
            raise TableError(
                f"stage 'assign': {len(lost)} names of clean/landmarks.parquet are neither in review's names.parquet "
                f"nor in its dropped.parquet, among them {lost[:3]}. The stages' folders were mixed: remove "
                "stages/review and stages/cluster and run the same command again."
            )
        drops = left.select(
            *_KEY,
            "category",
            reason=pl.lit("name-dropped"),
            detail=pl.concat_str(
                "name", pl.concat_str("who", "why", separator=": ", ignore_nulls=True), separator=" - "
            ),
        )
        return _as_landmarks(labelled), drops.cast(DROPPED)  # pyright: ignore[reportArgumentType]

    def _put(self, joined: pl.DataFrame) -> pl.DataFrame:
        """Give single landmarks the names and groups that decisions give them."""
        if self.given.is_empty():
            return joined
        put = joined.join(self.given, on=_KEY, how="left", maintain_order="left", suffix="_given")
        put = put.join(self.tops, left_on="label_given", right_on="label", how="left", suffix="_given")
        is_put = pl.col("label_given").is_not_null()
        return put.with_columns(
            name=pl.coalesce("name_given", "name"),
            label=pl.coalesce("label_given", "label"),
            natural_or_human_made=pl.when(is_put)
            .then("natural_or_human_made_given")
            .otherwise("natural_or_human_made"),
        ).select(joined.columns)


def _given(items: pl.DataFrame, scraped: pl.DataFrame, landmarks: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the landmarks that decisions give a name or group of their own, and the decisions that fit nothing."""
    ids = with_item_columns(scraped).select(*_KEY, id=pl.coalesce("id", pl.col("landmark_id").cast(pl.String)))
    known = ids.join(landmarks.select(_KEY), on=_KEY, how="semi")
    found = items.join(known, on=("split", "id"), how="left")
    fits = pl.col("landmark_id").is_not_null() & pl.col("label").is_not_null()
    lost = [
        f"A decision of {row['who']} about the item {row['split']}/{row['id']} fits nothing: "
        + ("no item of this id has a name." if row["landmark_id"] is None else "its new name or group is gone.")
        for row in found.filter(~fits).iter_rows(named=True)
    ]
    return found.filter(fits).select(*_KEY, "name", "label"), tuple(lost)


def _as_landmarks(rows: pl.DataFrame) -> pl.DataFrame:
    full = rows.rename({"label": "hierarchical_label"}).with_columns(
        pl.lit(None).alias(name) for name in LANDMARKS if name not in rows.columns and name != "hierarchical_label"
    )
    return full.select(pl.col(name).cast(dtype) for name, dtype in LANDMARKS.items())


def _no_names() -> pl.DataFrame:
    return pl.DataFrame(schema=LANDMARKS)


def _no_drops() -> pl.DataFrame:
    return pl.DataFrame(schema=DROPPED)


def _counts(landmarks: pl.DataFrame) -> dict[str, int]:
    by_split = landmarks.group_by("split").len().sort("split")
    return {
        "landmarks": len(landmarks),
        **{f"landmarks/{split}": count for split, count in by_split.iter_rows()},
        "assigned": landmarks["assigned"].count(),
        "names": landmarks["name"].n_unique(),
        "groups": landmarks["hierarchical_label"].n_unique(),
        "undecided top": int(landmarks["natural_or_human_made"].null_count()),
    }


def _image_encoder(folder: Path, embed: EmbedConfig) -> tuple[ImageEncoder, dict[LandmarkKey, tuple[ImagePlace, ...]]]:
    """Return the encoder of names and images, and the images of every landmark."""
    seeing = embed.encoder.removesuffix(JOINED)
    encoder = make_encoder(seeing, templates=embed.templates, device=embed.device, batch_size=embed.batch_size)
    assert isinstance(encoder, ImageEncoder)
    return encoder, find_images(folder)


def _assign_names(
    directory: Path,
    config: AssignConfig,
    encoder: ImageEncoder,
    images: dict[LandmarkKey, tuple[ImagePlace, ...]],
    tables: _Tables,
    labelled: pl.DataFrame,
    progress: Progress,
) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, Any]]:
    asked = _pairs(tables.nameless)
    references = _pairs(labelled) if config.assign == "vote" else []
    looked_at = [landmark for landmark in [*asked, *references] if landmark in images]
    seen = embed_landmarks(encoder, images, looked_at, progress)
    unreadable = [(*landmark, member, reason) for landmark, member, reason in seen.unreadable]
    pl.DataFrame(unreadable, schema=UNREADABLE, orient="row").sort(*_KEY, "member").write_parquet(
        directory / "unreadable_images.parquet"
    )
    names, score, readable = _choose(config.assign, encoder, seen.landmarks, seen.vectors, set(asked), tables, labelled)
    scores = pl.DataFrame(
        {"split": [s for s, _ in readable], "landmark_id": [i for _, i in readable], "name": names, "score": score},
        schema={"split": pl.String, "landmark_id": pl.Int64, "name": pl.String, "score": pl.Float32},
    )
    given, failed = _apply_threshold(config.assign, tables, scores, set(images))
    details = {
        "least score": LEAST_SCORE,
        "neighbours": NEIGHBOURS if config.assign == "vote" else None,
        "images a landmark at most": IMAGES_A_LANDMARK,
        "landmarks with images": len(looked_at),
        "unreadable images": len(unreadable),
    }
    return given, failed, details


def _pairs(rows: pl.DataFrame) -> list[LandmarkKey]:
    return list(rows.select(_KEY).iter_rows())


def _choose(
    method: str,
    encoder: ImageEncoder,
    landmarks: Sequence[LandmarkKey],
    vectors: np.ndarray,
    asked: set[LandmarkKey],
    tables: _Tables,
    labelled: pl.DataFrame,
) -> tuple[list[str], np.ndarray, list[LandmarkKey]]:
    """Return name and score of every landmark without a name that has a readable image."""
    rows = np.array([i for i, landmark in enumerate(landmarks) if landmark in asked], dtype=np.int64)
    readable = [landmarks[i] for i in rows]
    all_names = tables.names["name"].to_list()
    groups = np.unique(tables.names["label"].to_numpy(), return_inverse=True)[1]
    if not readable:
        return [], np.zeros(0, dtype=np.float32), []
    if method == "images":
        choice = zero_shot(vectors[rows], encoder.encode(all_names), groups)
    else:
        index = {name: i for i, name in enumerate(all_names)}
        name_of = {(s, i): index[name] for s, i, name in labelled.select(*_KEY, "name").iter_rows()}
        known = np.array([i for i, landmark in enumerate(landmarks) if landmark not in asked], dtype=np.int64)
        if not known.size:
            raise ConfigError(
                "--assign vote: no landmark with a name has a readable image, so there are no votes. "
                "Give --images of named landmarks too, or take --assign images."
            )
        choice = vote(vectors[rows], vectors[known], np.array([name_of[landmarks[i]] for i in known]), groups)
    return [all_names[i] for i in choice.name], choice.score, readable


def _apply_threshold(
    method: str, tables: _Tables, scores: pl.DataFrame, with_images: set[LandmarkKey]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the landmarks that get their name, and the reasons of those that get none."""
    rows = tables.nameless.join(scores, on=_KEY, how="left", maintain_order="left").join(
        tables.names, on="name", how="left", maintain_order="left"
    )
    sure = pl.col("score").is_not_null() & (pl.col("score") >= LEAST_SCORE)
    given = rows.filter(sure).with_columns(assigned=pl.lit(method))
    seen = pl.Series("seen", [landmark in with_images for landmark in _pairs(rows)], dtype=pl.Boolean)
    failed = rows.with_columns(seen).filter(~sure.fill_null(value=False))
    reason = (
        pl.when(~pl.col("seen"))
        .then(pl.lit("no-image"))
        .when(pl.col("score").is_null())
        .then(pl.lit("unreadable-images"))
        .otherwise(pl.lit("low-score"))
    )
    best = pl.format("best: {} ({})", "label", pl.col("score").round(3))
    drops = failed.select(*_KEY, "category", reason=reason, detail=best)
    return _as_landmarks(given), drops.cast(DROPPED)  # pyright: ignore[reportArgumentType]

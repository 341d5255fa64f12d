"""Post-processing of embeddings before ranking: whitening, query expansion, pooling over scales, quantization."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from hgld.errors import ConfigError, InputError, SchemaError, excerpt, quoted
from hgld.evaluation.neighbors import neighbor_blocks
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.row_table import ALONE, ROWS_AT_ONCE, RowTable, Sharing
from hgld.evaluation.scores import Rows, choose_device, exact_products, open_embeddings, prepare_embeddings
from hgld.files import parse_json, reading_tensors, write_atomic
from hgld.labels import Array

SCHEMA_VERSION = 1
_METADATA = "hgld.whitening"
SQUARE_ROOTED = 0.25
_LARGEST_CODE = 127
_MOST_BYTES = 2 << 30
_RANK_TOLERANCE = 1e-10  # share of the largest variance; a smaller variance is rounding noise of float32


@dataclass(frozen=True, eq=False)
class Whitening:
    """PCA whitening: centre, project on the principal components, divide by a power of their variances, normalise.

    The power 0.5 is full whitening (Jégou and Chum, ECCV 2012; MultiGrain). The power 0.25 is *square-rooted*
    whitening, which divides by the square root of the standard deviations (listwise AP: Revaud et al., ICCV 2019).

    Attributes:
        mean: (D,) float64 mean of the embeddings.
        components: (C, D) float64 orthonormal rows, by descending variance.
        variances: (C,) float64 variances along the components, above 0.
        power: the exponent of the variances.
        fitted_on: name of the dataset that the whitening was fitted on.
        num_items: number of items of that dataset.
    """

    mean: np.ndarray
    components: np.ndarray
    variances: np.ndarray
    power: float
    fitted_on: str
    num_items: int

    @classmethod
    def fit(
        cls,
        embeddings: Array,
        *,
        fitted_on: str,
        dimensions: int | None = None,
        power: float = SQUARE_ROOTED,
        share: Sharing = ALONE,
    ) -> "Whitening":
        """Fit a whitening to embeddings, which are L2-normalised first. Do not evaluate the same items.

        Args:
            embeddings: (N, D) of any floating dtype.
            fitted_on: name of the dataset, for reports.
            dimensions: C, number of components to keep; None: all. A component without variance (from a feature that
                is always 0, or from few items) is divided by the smallest variance above 0. So no component is lost,
                and a classifier can follow the whitening.
            power: exponent of the variances: 0.25 for square-rooted whitening, 0.5 for full whitening, 0 for plain PCA.
            share: processes that share the work; each of them needs all embeddings, for example mapped from a file.

        Raises:
            InputError: there are fewer than two embeddings, or they vary in fewer than ``dimensions`` dimensions.
            ConfigError: the power is outside 0..1, or ``dimensions`` is below 1.
        """
        if not 0 <= power <= 1:
            raise ConfigError(f"power is {power}; expected 0 to 1: 0.25 is square-rooted, 0.5 full whitening.")
        if dimensions is not None and dimensions < 1:
            raise ConfigError(f"dimensions is {dimensions}; expected at least 1.")
        rows = Rows(embeddings, "whitening")
        if len(rows) < 2:
            raise InputError(f"there are {len(rows)} embeddings to fit a whitening; expected at least 2.")

        def blocks(part: range) -> Iterator[np.ndarray]:
            for start in range(part.start, part.stop, ROWS_AT_ONCE):
                yield rows[start : min(start + ROWS_AT_ONCE, part.stop)].numpy().astype(np.float64)

        def scatter_of(part: range) -> np.ndarray:
            total = np.zeros((rows.shape[1], rows.shape[1]))
            for block in blocks(part):
                centred = block - mean
                total += centred.T @ centred
            return total

        mean = share.total(lambda part: np.sum([block.sum(axis=0) for block in blocks(part)], axis=0), len(rows))
        mean /= len(rows)
        scatter = share.total(scatter_of, len(rows))
        variances, vectors = np.linalg.eigh(scatter / (len(rows) - 1))
        variances, components = variances[::-1], vectors.T[::-1]
        rank = int(np.count_nonzero(variances > max(variances[0], 0) * _RANK_TOLERANCE))
        if rank < (dimensions or 1):
            raise InputError(
                f"{len(rows)} embeddings vary in {rank} dimensions; expected {dimensions or 1} or more. Fit on more "
                "items."
            )
        variances = np.maximum(variances, variances[rank - 1])[:dimensions]
        components = components[: len(variances)]
        largest = np.abs(components).argmax(axis=1)
        # fix the sign of each eigenvector, which is arbitrary
        signs = np.sign(components[np.arange(len(components)), largest])
        return cls(mean, components * signs[:, None], variances.copy(), power, fitted_on, len(rows))

    def apply(self, embeddings: Array, share: Sharing = ALONE) -> np.ndarray:
        """Whiten embeddings, which are L2-normalised first.

        Args:
            embeddings: (N, D) of any floating dtype.
            share: processes that share the work; the result is then mapped from a file.

        Returns:
            (N, C) float32 unit rows.

        Raises:
            InputError: the embeddings have the wrong dimension, or an embedding equals the mean, so it has no
                direction.
        """
        rows = Rows(embeddings, "unwhitened")
        if rows.shape[1] != len(self.mean):
            raise InputError(
                f"embeddings have {rows.shape[1]} dimensions; the whitening was fitted on {self.fitted_on} with "
                f"{len(self.mean)} dimensions."
            )
        projection = (self.components / self.variances[:, None] ** self.power).T
        whitened = RowTable((len(rows), len(self.variances)), share.processes, share.folder)
        for items in share.blocks(len(rows)):
            part = (rows[items[0] : items[-1] + 1].numpy() - self.mean) @ projection
            norms = np.linalg.norm(part, axis=1, keepdims=True)
            if not norms.all():
                raise InputError(
                    f"embedding {items[(norms == 0).argmax()]} equals the whitening's mean: it has no direction."
                )
            whitened.write(items, torch.from_numpy(part / norms))
        whitened.close()
        return whitened.read().numpy()

    def describe(self) -> dict[str, Any]:
        """Return the facts about the whitening that a report's settings hold."""
        return {
            "power": self.power,
            "dimensions": len(self.variances),
            "fitted_on": self.fitted_on,
            "fitted_items": self.num_items,
        }

    def save(self, path: str | Path) -> None:
        """Write a safetensors file."""
        tensors = {"mean": self.mean, "components": self.components, "variances": self.variances}
        facts = {"schema_version": SCHEMA_VERSION, "power": self.power}
        facts |= {"fitted_on": self.fitted_on, "num_items": self.num_items}
        metadata = {_METADATA: json.dumps(facts)}  # one entry, because safetensors writes entries in arbitrary order
        stored = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        write_atomic(Path(path), lambda file: save_file(stored, str(file), metadata))

    @classmethod
    def load(cls, path: str | Path) -> "Whitening":
        """Read a file that :meth:`save` wrote.

        Raises:
            SchemaError: the file is not a whitening, has another schema version, or has arrays of inconsistent shapes.
        """
        file = Path(path)
        names = ("mean", "components", "variances")
        try:
            if file.stat().st_size > _MOST_BYTES:
                raise SchemaError(f"{file}: {file.stat().st_size} bytes; a whitening has at most {_MOST_BYTES}.")
            with reading_tensors(file), safe_open(str(file), framework="numpy") as stored:
                facts = parse_json((stored.metadata() or {}).get(_METADATA, "{}"), str(file), kind=dict)
                if (version := facts.get("schema_version")) != SCHEMA_VERSION:
                    raise SchemaError(
                        f"{file}: whitening schema version is {quoted(version)}; this hgld reads version "
                        f"{SCHEMA_VERSION}. Fit it again."
                    )
                mean, components, variances = parts = [stored.get_tensor(name) for name in names]
            power, num_items, fitted_on = float(facts["power"]), int(facts["num_items"]), str(facts["fitted_on"])
        except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OSError) as error:
            if isinstance(error, SchemaError):
                raise
            raise SchemaError(f"{file}: not a whitening that hgld wrote ({excerpt(error)}).") from error
        fits = mean.ndim == variances.ndim == 1 and components.shape == (len(variances), len(mean))
        fits = fits and all(part.dtype == np.float64 and np.isfinite(part).all() for part in parts)
        if not (fits and (variances > 0).all() and 0 <= power <= 1):
            raise SchemaError(f"{file}: invalid mean, components, variances (above 0) or power (0 to 1). Fit it again.")
        return cls(mean, components, variances, power, fitted_on, num_items)


def expand_queries(
    query_embeddings: Array | Rows,
    gallery_embeddings: Array | Rows,
    options: EvaluationOptions,
    self_index: np.ndarray | None = None,
) -> Any:
    """Expand queries if ``query_expansion`` is set: add the k nearest gallery items, weighted by score^alpha.

    Radenović, Tolias, Chum: "Fine-Tuning CNN Image Retrieval with No Human Annotation", TPAMI 2018. The query itself
    has weight 1; items with a score below 0 have weight 0. If the queries are the gallery (and ``self_index`` is
    given), this is database augmentation.

    Args:
        query_embeddings: (Q, D) of any floating dtype.
        gallery_embeddings: (G, D) embeddings.
        options: ``query_expansion`` is (alpha, k); ``device`` is the device to search on. The processes of ``share``
            share the queries.
        self_index: (Q,) gallery index of the query itself, which is not counted as a neighbour; -1 if the query is not
            in the gallery.

    Returns:
        (Q, D) float32 unit rows, on every process; the unchanged queries if ``query_expansion`` is None.

    Raises:
        InputError: embeddings have the wrong shape or dtype.
        ConfigError: k exceeds the gallery, or alpha is below 0.
    """
    if options.query_expansion is None:
        return query_embeddings
    alpha, k = options.query_expansion
    if not 0 <= alpha < float("inf"):
        raise ConfigError(f"alpha is {alpha}; expected a finite number >= 0.")
    device = choose_device(query_embeddings, options.device)
    share, is_shared = options.share or ALONE, options.share is not None
    query = open_embeddings(query_embeddings, "query", device=device, is_shared=is_shared)
    gallery = open_embeddings(gallery_embeddings, "gallery", device=device, is_shared=is_shared)
    own = share.own(len(query))
    expanded = RowTable((len(query), query.shape[1]), share.processes, share.folder)
    with exact_products(device):
        for queries, places, scores in neighbor_blocks(query, gallery, k, self_index, own, is_shared=is_shared):
            weights = np.where(scores > 0, np.maximum(scores, 0).astype(np.float64) ** alpha, 0.0)
            for start in range(0, len(queries), ROWS_AT_ONCE):
                part = slice(start, start + ROWS_AT_ONCE)
                items = np.array(queries[part])
                total = query[items[0] : items[-1] + 1].cpu().numpy().astype(np.float64)
                for neighbour in range(k):
                    found = gallery[torch.from_numpy(places[part, neighbour])].cpu().numpy()
                    total += weights[part, neighbour, None] * found
                expanded.write(items, torch.from_numpy(total / np.linalg.norm(total, axis=1, keepdims=True)))
            if options.progress is not None:
                options.progress("search", queries.stop - own.start, len(own))
    expanded.close()
    return expanded.read()


def pool_scales(embeddings: Sequence[Array], *, p: float = 1.0) -> np.ndarray:
    """Pool the embeddings of each image at several scales into one embedding, by the signed power mean.

    Args:
        embeddings: one (N, D) table per scale, of any floating dtype, with the images in the same order.
        p: exponent, >= 1. 1 is the mean; 3 is the generalised mean in the listwise AP paper's code.

    Returns:
        (N, D) float32 unit rows.

    Raises:
        InputError: there are no scales, the shapes differ, or the scales of an image cancel out.
        ConfigError: p is below 1.
    """
    if not 1 <= p < float("inf"):
        raise ConfigError(f"p is {p}; expected a finite number >= 1.")
    scales = [prepare_embeddings(part, f"scale {number}").numpy() for number, part in enumerate(embeddings)]
    if not scales or any(part.shape != scales[0].shape for part in scales):
        raise InputError(
            f"the scales have shapes {[part.shape for part in scales]}; expected one or more scales of one shape."
        )
    total = np.zeros(scales[0].shape)
    for part in scales:
        total += np.sign(part) * np.abs(part).astype(np.float64) ** p
    pooled = np.sign(total) * (np.abs(total) / len(scales)) ** (1 / p)
    norms = np.linalg.norm(pooled, axis=1, keepdims=True)
    if not norms.all():
        raise InputError(f"image {int((norms == 0).argmax())}: the embeddings of its scales cancel out.")
    return (pooled / norms).astype(np.float32)


def quantize_embeddings(embeddings: Array, kind: str, *, normalize: bool = True) -> np.ndarray:
    """Return embeddings after quantization, as float32 vectors.

    ``int8`` is round(127 x / m), rounding halves to even; m is the largest absolute value of the row. ``binary`` is 1
    if x >= 0, else -1. Its inner products are whole numbers, D minus twice the Hamming distance, so ties are exact.

    Args:
        embeddings: (N, D) finite numbers of any floating dtype.
        kind: format of the quantized numbers: ``int8`` or ``binary``.
        normalize: whether rows are normalised later, so that ``int8`` needs no scale. If False, ``int8`` rows are
            multiplied by m / 127.

    Returns:
        (N, D) float32.
    """
    quantized = np.empty(tuple(embeddings.shape), np.float32)
    for start in range(0, len(quantized), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        rows = embeddings[part]
        rows = rows.detach().cpu().double().numpy() if isinstance(rows, Tensor) else np.asarray(rows, np.float64)
        if kind == "binary":
            quantized[part] = np.where(rows >= 0, 1, -1)
        else:
            largest = np.abs(rows).max(axis=1, keepdims=True)
            largest[largest == 0] = 1
            codes = np.rint(rows * (_LARGEST_CODE / largest))
            quantized[part] = codes if normalize else codes * (largest / _LARGEST_CODE)
    return quantized

"""Dataset directories: reading and checking their tables, and random access to every image."""

import hashlib
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, SupportsIndex, overload

import numpy as np
import polars as pl
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from hgld.data.decode import decode_batch, decode_whole
from hgld.data.format import BOX, HIERARCHY, INDEX, JUDGEMENTS, LISTS, MANIFEST, MAX_IMAGE_BYTES, Manifest
from hgld.data.image_cache import ImageCache
from hgld.data.image_folder import LooseImages, list_folder, list_images
from hgld.data.images import MOST_BATCH_BYTES, EncodedImage, fits_batch, turn_of, turned
from hgld.data.index import SOURCE, read_index, read_table
from hgld.data.storage import READING, ShardStorage, read_manifest
from hgld.data.views import TestView
from hgld.errors import ConfigError, InputError, did_you_mean, quoted
from hgld.hierarchy import Hierarchy
from hgld.hub import dataset_folder, is_address
from hgld.user_cache import digest_of

Transform = Callable[[Image.Image], Any]
Positions = Sequence[int] | np.ndarray | Tensor

_DRAWN = 12  # maximum number of images shown in a notebook
_DIGEST = 32  # number of bytes of a SHA-256


def read_rows(
    storage: ShardStorage, manifest: Manifest, split: str | None, leave_out: Sequence[str] = ()
) -> pl.DataFrame:
    """Read the rows of a split, or of all splits, from ``index.parquet``.

    Args:
        storage: storage of the dataset.
        manifest: content of ``dataset.json``, which the index must fit.
        split: split to read; None: all splits.
        leave_out: columns that are not needed.

    Raises:
        InputError: levels, counts or offsets differ from the manifest, or the index is damaged.
        SchemaError: this hgld does not read the schema version of the index.
    """
    if isinstance(storage, LooseImages):
        return storage.frame if split is None else storage.frame.filter(pl.col("split") == split)
    where = f"{storage.where}/{INDEX}"
    frame, levels = read_index(storage.table(INDEX, manifest.files.get(INDEX)), where, leave_out=leave_out)
    _check_build(where, "levels", levels, manifest.levels)
    found = (f"{items} items of {name}" for name, items in frame["split"].value_counts().sort("split").iter_rows())
    expected = (f"{manifest.splits[name]['items']} items of {name}" for name in sorted(manifest.splits))
    _check_build(where, "has", found, (text for text in expected if not text.startswith("0 ")))
    _check_offsets(where, manifest, frame)
    return frame if split is None else frame.filter(pl.col("split") == split)


def _read_hierarchy(storage: ShardStorage, manifest: Manifest) -> Hierarchy:
    where = f"{storage.where}/{HIERARCHY}"
    hierarchy = Hierarchy.from_parquet(storage.table(HIERARCHY, manifest.files.get(HIERARCHY)), where)
    _check_build(where, "levels", hierarchy.levels, manifest.levels)
    return hierarchy


def _check_build(where: str, what: str, found: Iterable[str], stated: Iterable[str]) -> None:
    """Raise an error if a table differs from the manifest."""
    told, expected = ", ".join(found), ", ".join(stated)
    if told != expected:
        raise InputError(
            f"{where}: {what} {told or 'no items'}; {MANIFEST} says {expected or 'no items'}. The two files come from "
            "different builds: hgld index --force writes both again from the shards."
        )


def _check_offsets(where: str, manifest: Manifest, index: pl.DataFrame) -> None:
    """Raise an error if items of the index are not inside the manifest's shards."""
    shards = pl.DataFrame(
        [(shard.name, shard.split, shard.bytes) for shard in manifest.shards],
        schema={"shard": pl.String, "of_split": pl.String, "bytes": pl.Int64},
        orient="row",
    )
    inside = (pl.col("of_split") == pl.col("split")) & (pl.col("offset") + pl.col("size") <= pl.col("bytes"))
    placed = index.lazy().select("key", "shard", "split", "offset", "size")
    joined = placed.join(shards.lazy(), on="shard", how="left", maintain_order="left")  # the error names the first item
    wrong = joined.filter(~inside.fill_null(value=False) | (pl.col("size") > MAX_IMAGE_BYTES)).head(1).collect()
    for row in wrong.iter_rows(named=True):
        raise InputError(
            f"{where}: key {quoted(row['key'])} has {row['size']} bytes at offset {row['offset']} of {row['shard']}. "
            f"According to {MANIFEST}, this shard has {row['bytes'] or 0} bytes and belongs to the split "
            f"{quoted(row['of_split'])}. An image may have at most {MAX_IMAGE_BYTES} bytes. Rewrite index and manifest "
            "from the shards with hgld index --force; hgld build-shards --max-file-mb excludes large images."
        )


# -- opening a directory ----------------------------------------------------------------------------------------------
#
# Reading an image is one read of a shard. Reading labels needs no shard, because the index holds them.

# columns that are not kept in memory, where they would take half of an index
_NOT_NEEDED = ("suffix", "sha256", "duplicate_of", "class_run", SOURCE)


def open_dataset(
    root: str | Path,
    split: str | None = None,
    *,
    levels: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    transform: Transform | None = None,
    verify_reads: bool | None = None,
) -> "ShardDataset":
    """Open a dataset directory (docs/reference/dataset-files.md) on a disk or at a URL, or a plain folder of images.

    Args:
        root: path of the directory; or its URL (http, s3, ...), read with range requests; or ``hf://USER/NAME`` on the
            Hugging Face Hub, whose tables and shards are first fetched into hgld's cache. A folder without
            ``dataset.json`` is read as images (:func:`hgld.data.image_folder.list_folder`).
        split: the split to open; all items if None.
        levels: the levels to keep, finest first; all if None.
        storage_options: options for reading from a URL. http(s): headers, hosts and limits
            (docs/reference/dataset-files.md). Other schemes: options of fsspec, such as credentials and endpoints. All:
            ``cache``, a folder that keeps images, and ``cache_size``, its maximum size in GB (100).
        transform: function that makes ``dataset[i]["image"]`` from an RGB image; None leaves the image unchanged; a
            ``DataLoader`` then gets the central square at 224 pixels.
        verify_reads: whether to check the bytes of every image against the SHA-256 in the index; None: only if they
            come from a URL. The check takes 20 microseconds and 32 bytes of memory per image of 27 KB.

    Raises:
        InputError: there is no dataset, its files contradict each other, or the split does not exist.
        SchemaError: this hgld does not read the dataset's schema version.
        HierarchyError: a level is unknown, or labels contradict the tree.
        ConfigError: hgld cannot read URLs of this scheme, or a cache is given with ``verify_reads=False``.
        ServiceError: the server kept failing.
        StorageError: the cache cannot be written.
    """
    if is_address(root):
        root = dataset_folder(str(root), split)
    policy, options = READING.get(), dict(storage_options or {})
    cache, cache_size = options.pop("cache", policy.cache), options.pop("cache_size", policy.cache_size)
    storage = ShardStorage(root, options)
    is_plain = storage.is_local and Path(storage.where).is_dir() and not storage.exists(MANIFEST)
    if is_plain:
        storage = list_folder(Path(storage.where))
    manifest = storage.manifest if isinstance(storage, LooseImages) else read_manifest(storage)
    if split is not None and split not in manifest.splits:
        hint = did_you_mean(split, manifest.splits)
        if is_plain:
            hint = " A plain folder has no splits: `hgld build-shards folders` makes a dataset with splits."
        raise InputError(f"{storage.where}: no split {quoted(split)}; it has {', '.join(manifest.splits)}.{hint}")
    hierarchy = storage.hierarchy if isinstance(storage, LooseImages) else _read_hierarchy(storage, manifest)
    if verify_reads is None:
        verify_reads = policy.verify_reads
    verified = not storage.is_local if verify_reads is None else verify_reads
    left_out = [name for name in _NOT_NEEDED if name != "sha256" or not verified]
    index = read_rows(storage, manifest, split, leave_out=left_out)
    chosen = hierarchy if levels is None else hierarchy.restrict(levels)
    labels = index.select(chosen.levels).to_numpy().astype(np.int64, order="C")
    try:
        chosen.counts(labels)  # raises an error if a label is not a class
        chosen.check_labels(labels)
    except InputError as error:
        raise type(error)(f"{storage.where}/{INDEX}: {error}") from error
    dataset = ShardDataset(storage, manifest, chosen, split, index, torch.from_numpy(labels), transform)
    if cache is not None and not storage.is_local:
        if not verified:
            raise ConfigError("a cache finds images by their SHA-256, so it needs --verify-reads (verify_reads).")
        dataset.cache = ImageCache(Path(cache), int(cache_size * 1e9), digest_of(json.dumps(manifest.files)))
    return dataset


load_dataset = open_dataset  # the name of this function in Hugging Face's datasets


def dataset_of_images(images: Sequence[Path] | Sequence[bytes]) -> "ShardDataset":
    """Return image files, or encoded images in memory, as a dataset without classes, in their order.

    Raises:
        InputError: there are no images, or a file cannot be read or is too large.
    """
    listed = list_images(images)
    labels = torch.full((len(images), 1), -1)
    return ShardDataset(listed, listed.manifest, listed.hierarchy, None, listed.frame, labels, None)


class ShardDataset(Dataset[dict[str, Any]]):
    """The items of a dataset directory, or of one of its splits; :func:`open_dataset` returns this object.

    Items are numbered from 0 in the order of the index, which is the order of the shards. The dataset can be pickled,
    and used after a fork: every process opens its own files.

    ``dataset[3]`` is an item; ``dataset[:5]`` and ``dataset[[4, 2]]`` are datasets of these items. ``dataset["key"]``
    is a column of all items. Columns are ``image`` (read on access), ``labels``, ``key`` and ``index``, the class names
    of a level under the level's name, and the columns of the index such as ``split``. :meth:`to_torch` returns
    ``(image, label)`` pairs.

    Attributes:
        storage: storage of the shards.
        manifest: the content of ``dataset.json``.
        hierarchy: the tree of classes, with the requested levels.
        split: the split that was opened; None: all splits.
        keys: (N,) stable names of the items.
        labels: (N, L) int64 class ids, finest level first; -1 is unknown.
        sizes: (N, 2) int32 width and height in pixels of the upright images after cropping to their boxes.
        cache: cache of the images; None: the images are not cached.
        transform: function that is applied to the image of ``dataset[i]``.
    """

    cache: ImageCache | None = None

    def __init__(
        self,
        storage: ShardStorage,
        manifest: Manifest,
        hierarchy: Hierarchy,
        split: str | None,
        index: pl.DataFrame,
        labels: Tensor,
        transform: Transform | None,
    ) -> None:
        self.storage, self.manifest, self.hierarchy, self.split = storage, manifest, hierarchy, split
        self.keys, self.labels, self.transform = index["key"], labels, transform
        self._rows: np.ndarray | None = None  # row numbers in the split's index; None: all rows
        self._shard_names = index["shard"].unique(maintain_order=True).to_list()
        self._shard = index["shard"].cast(pl.Enum(self._shard_names)).to_physical().to_numpy()
        self._offset, self._size = index["offset"].to_numpy(), index["size"].to_numpy()
        self._orientation = index["orientation"].to_numpy()
        self._boxes = index.select(pl.col(BOX).fill_null(-1)).to_numpy() if BOX[0] in index.columns else None
        self._sha256 = _digests(index["sha256"], f"{storage.where}/{INDEX}") if "sha256" in index.columns else None
        stored = index.select("width", "height").to_numpy()
        # orientations 5 to 8 swap width and height
        self.sizes = np.where(self._orientation[:, None] >= 5, stored[:, ::-1], stored)
        if self._boxes is not None:
            self.sizes = np.where(self._boxes[:, :1] >= 0, self._boxes[:, 2:] - self._boxes[:, :2], self.sizes)

    def __getstate__(self) -> dict[str, Any]:
        # The index's rows are not pickled, because worker processes can read them again.
        return {name: value for name, value in vars(self).items() if name != "frame"}

    def __len__(self) -> int:
        return len(self._offset)

    @property
    def levels(self) -> tuple[str, ...]:
        """Names of the L levels, finest first."""
        return self.hierarchy.levels

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of the finest level; a label is a position in it."""
        return self.hierarchy.names[0]

    @property
    def targets(self) -> Tensor:
        """(N,) int64 labels of the finest level; -1 is unknown."""
        return self.labels[:, 0]

    def __repr__(self) -> str:
        name = f"{self.manifest.name}, {self.split or 'all splits'}"
        return f"ShardDataset({name}: {len(self)} items, {quoted(self.hierarchy)})"

    def _repr_html_(self) -> str:
        """Draw a notebook's view: classes per level, and evenly spaced images with labels; no images from a URL."""
        from hgld.html_page import data_uri, picture_sheet

        sizes = zip(self.levels, self.hierarchy.num_classes, strict=True)
        name = f"{self.manifest.name}, {self.split or 'all splits'}: {len(self):,} items"
        heading = (name, "Classes: " + ", ".join(f"{level} {size:,}" for level, size in sizes))
        count = min(len(self), _DRAWN) if self.storage.is_local else 0
        shown = self.select([i * len(self) // count for i in range(count)])
        named = [[name or "unknown" for name in shown[level]] for level in self.levels]
        tiles = []
        for position, texts in enumerate(zip(*named, shown.keys, strict=True)):
            try:
                tiles.append((data_uri(shown.image(position)), texts))
            except InputError as error:
                tiles.append((str(error), texts))
        note = f"{len(tiles)} of {len(self):,} items, evenly spaced." if 0 < len(tiles) < len(self) else ""
        return picture_sheet(heading, tiles, note)

    def select(self, positions: Positions) -> "ShardDataset":
        """Return the items at these positions as a dataset of their own, in this order, numbered from 0.

        Raises:
            IndexError: a position is outside the dataset.
        """
        i = self._positions(positions)
        chosen = copy(self)
        for name in ("lists", "sources"):  # drop what was cached for the old positions; __getstate__ drops frame
            vars(chosen).pop(name, None)
        chosen.keys, chosen.labels = self.keys.gather(i), self.labels[torch.from_numpy(i)]
        chosen._rows = i if self._rows is None else self._rows[i]
        for name in ("sizes", "_shard", "_offset", "_size", "_orientation", "_sha256", "_boxes"):
            rows = getattr(self, name)
            setattr(chosen, name, None if rows is None else rows[i])
        return chosen

    def relabelled(self, labels: Tensor) -> "ShardDataset":
        """Return the same items with other labels, (N, L) class ids of the same tree."""
        chosen = copy(self)
        chosen.labels = labels
        return chosen

    # -- bytes ------------------------------------------------------------------------------------------------

    def read(self, index: int) -> bytes:
        """Return the stored file of an image as bytes.

        Raises:
            InputError: the shard is missing or too short; the message states shard, key and offset.
        """
        return self.read_many([self._position(index)])[0]

    def read_many(self, indices: Positions) -> list[bytes]:
        """Return the stored files of several images, in the given order; adjacent files of a shard are read together.

        Raises:
            InputError: a file cannot be read, or the files have more than 4 GiB in total.
        """
        i = self._positions(indices)
        if not fits_batch(total := int(self._size[i].sum())):
            raise InputError(
                f"{self.storage.where}: {len(i)} images have {total} bytes in total, according to the index; "
                f"expected at most {MOST_BATCH_BYTES}. Read fewer at a time."
            )
        if self.cache is None or self._sha256 is None:
            return self._read_stored(i)
        digests = [digest.tobytes() for digest in self._sha256[i]]
        images = self.cache.read(digests)
        missing = {
            digest: position for digest, position in zip(digests, i.tolist(), strict=True) if digest not in images
        }
        if missing:
            read = dict(zip(missing, self._read_stored(np.array(list(missing.values()))), strict=True))
            self.cache.add(read)
            images |= read
        return [images[digest] for digest in digests]

    def _read_stored(self, i: np.ndarray) -> list[bytes]:
        """Read the files of the items ``i`` (B,) from the storage, and check their SHA-256 if it is known."""
        names = [self._shard_names[shard] for shard in self._shard[i].tolist()]
        ranges = list(zip(names, self._offset[i].tolist(), self._size[i].tolist(), strict=True))
        try:
            data = self.storage.read_many(ranges)
        except InputError as error:
            if len(i) == 1:
                raise InputError(f"item {i[0]}, key {quoted(self.keys[int(i[0])])}: {error}") from error
            # read one image at a time, so that the error states the key
            return [self.read(position) for position in i.tolist()]
        if self._sha256 is not None:
            for position, content in zip(i.tolist(), data, strict=True):
                if hashlib.sha256(content).digest() != self._sha256[position].tobytes():
                    raise InputError(
                        f"item {position}, key {quoted(self.keys[position])}: {self.storage.where}/"
                        f"{self._shard_names[self._shard[position]]}: the {len(content)} bytes at offset "
                        f"{self._offset[position]} do not have the SHA-256 in the index. The shard changed after it "
                        "was indexed, or was damaged in transfer; run hgld verify at its origin to tell which."
                    )
        return data

    def encoded(self, indices: Positions) -> list[EncodedImage]:
        """Return the encoded images of some items with the orientation and box that decoders need.

        Raises:
            InputError: a file cannot be read, or the files have more than 4 GiB in total.
        """
        i = self._positions(indices)
        boxes: Any = [None] * len(i) if self._boxes is None else self._boxes[i].tolist()
        facts = zip(i.tolist(), self.read_many(i), self._orientation[i].tolist(), boxes, strict=True)
        return [
            EncodedImage(content, turn, tuple(box) if box and box[0] >= 0 else None, self._where(position))
            for position, content, turn, box in facts
        ]

    @property
    def places(self) -> tuple[Sequence[str], np.ndarray, np.ndarray, np.ndarray]:
        """Return the names of the shards, and the shard number, offset and size of every item, (N,) each."""
        return self._shard_names, self._shard, self._offset, self._size

    def _where(self, position: int) -> str:
        shard = self._shard_names[self._shard[position]]
        if isinstance(self.storage, LooseImages):
            return str(Path(self.storage.where, shard))
        if not self.storage.is_local:
            shard = f"{self.storage.where}/{shard}"
        return f"{shard}: item {position}, key {quoted(self.keys[position])}, offset {self._offset[position]}"

    def _position(self, index: int) -> int:
        i = operator.index(index)
        if not -len(self) <= i < len(self):
            raise IndexError(f"there is no item {i}; this dataset has {len(self)} items")
        return i % len(self)

    def _positions(self, indices: Positions) -> np.ndarray:
        i = np.asarray(indices, dtype=np.int64).reshape(-1)
        if i.size and not 0 <= i.min() <= i.max() < len(self):
            raise IndexError(f"not all items {i.min()} to {i.max()} exist; this dataset has {len(self)} items")
        return i

    # -- images -----------------------------------------------------------------------------------------------

    def image(self, index: int) -> Image.Image:
        """Read and decode an image: RGB, upright, cropped to its box.

        Raises:
            InputError: the image is incomplete, or differs in size from the index; the message states shard, key and
                offset.
        """
        return self._decode_images([self._position(index)])[0]

    def _decode_images(self, indices: Sequence[int]) -> list[Image.Image]:
        images = []
        for item, (width, height) in zip(self.encoded(indices), self.sizes[list(indices)].tolist(), strict=True):
            image = Image.fromarray(turned(decode_whole(item, (width, height)), turn_of(item.orientation)))
            images.append(image if item.box is None else image.crop(item.box))
        return images

    @overload
    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: str) -> Any: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | np.ndarray) -> "ShardDataset": ...
    def __getitem__(self, index: Any) -> Any:
        """Return one item, a dataset of several items (slice, positions or mask), or a column by its name.

        An item has ``image`` (transformed), ``labels`` (L,), ``index`` and ``key``.

        Raises:
            IndexError: a position is outside the dataset.
            InputError: there is no such column, or an image cannot be read.
        """
        if isinstance(index, str):
            return self._column(index)
        if isinstance(index, slice):
            return self.select(range(*index.indices(len(self))))
        if np.ndim(index):
            chosen = np.asarray(index)
            if chosen.dtype == np.bool_ and chosen.shape != (len(self),):
                raise IndexError(f"the mask has shape {chosen.shape}; expected ({len(self)},)")
            return self.select(np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen)
        position = self._position(index)
        image = self.image(position)
        return self._item(position, image if self.transform is None else self.transform(image))

    def _column(self, name: str) -> Any:
        if name in self.levels:
            level = self.hierarchy.level_index(name)
            names = (*self.hierarchy.names[level], None)  # a label of -1 is the last index, so it reads None
            return [names[label] for label in self.labels[:, level].tolist()]
        made = {"image": lambda: ImageColumn(self), "labels": lambda: self.labels, "key": self.keys.to_list}
        if name in made:
            return made[name]()
        if name == "index":
            return list(range(len(self)))
        if name not in self.frame.columns:
            known = list(dict.fromkeys((*made, "index", *self.levels, *self.frame.columns)))
            hint = did_you_mean(name, known)
            raise InputError(f"{self.storage.where}: no column {quoted(name)}; it has {', '.join(known)}.{hint}")
        return self.frame[name].to_list()

    def to_torch(self, transform: Transform | None = None, level: str | int | None = None) -> "ImageLabelPairs":
        """Return the items as ``(image, label)`` pairs, like torchvision's datasets.

        Args:
            transform: function that makes a pair's image from an RGB image; None: the dataset's own.
            level: name or column of the level of the labels; None: the finest.

        Raises:
            HierarchyError: there is no such level.
        """
        return ImageLabelPairs(self, transform, level)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the items of a batch for torch's DataLoader; their bytes are read together.

        All images of a batch need the same size. Without a ``transform``, :class:`hgld.data.TestView` makes (3, 224,
        224) uint8 tensors: it resizes the short side to 256 pixels and crops the central square.

        Raises:
            ConfigError: one of hgld's samplers was passed as ``sampler`` instead of ``batch_sampler``.
        """
        indices = [operator.index(i) for i in indices]  # raises an error with the fix if an index is a sampler's batch
        if self.transform is not None:
            images = map(self.transform, self._decode_images(indices))
        else:
            parameters = TestView().parameters(*self.sizes[indices].T)
            images = torch.empty((len(indices), 3, *parameters.shape), dtype=torch.uint8)
            decode_batch(self.encoded(indices), parameters, images)
        return [self._item(i, image) for i, image in zip(indices, images, strict=True)]

    def _item(self, position: int, image: Any) -> dict[str, Any]:
        return {"image": image, "labels": self.labels[position], "index": position, "key": self.keys[position]}

    # -- tables -----------------------------------------------------------------------------------------------

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The items' rows of ``index.parquet`` with all columns; read at the first use."""
        rows = read_rows(self.storage, self.manifest, self.split)
        return rows if self._rows is None else rows[self._rows]

    @cached_property
    def sources(self) -> pl.Series:
        """(N,) paths that the images came from; an item without a path has its key."""
        return self.frame[SOURCE] if SOURCE in self.frame.columns else self.keys

    @cached_property
    def lists(self) -> dict[str, np.ndarray]:
        """Positions in this dataset of the items of each named list; some protocols need such lists.

        A list without any of these items is omitted.

        Raises:
            InputError: a list is not readable.
        """
        table = self.listed
        if table is None:
            return {}
        places = pl.DataFrame({"key": self.keys, "position": np.arange(len(self))})
        found = table.join(places, on="key", how="inner", maintain_order="left")
        return {str(name): part["position"].to_numpy() for (name,), part in found.group_by("list", maintain_order=True)}

    @cached_property
    def listed(self) -> pl.DataFrame | None:
        """Table of the named lists with columns list and key; None if the dataset has no such table."""
        return self._table(LISTS)

    @cached_property
    def judgements(self) -> pl.DataFrame | None:
        """Table of judged pairs of keys with columns query, item and verdict; None if the dataset has no such table."""
        return self._table(JUDGEMENTS)

    def _table(self, name: str) -> pl.DataFrame | None:
        if name not in self.manifest.files:
            return None
        return read_table(name, self.storage.table(name, self.manifest.files[name]), f"{self.storage.where}/{name}")


class ImageColumn(Sequence[Any]):
    """The images of a dataset, each read, decoded and transformed on access; :class:`ShardDataset` returns this object.

    Args:
        dataset: dataset of the images.
    """

    def __init__(self, dataset: ShardDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        found = self._dataset[index]
        return ImageColumn(found) if isinstance(found, ShardDataset) else found["image"]


class ImageLabelPairs(Dataset[tuple[Any, int]]):
    """``(image, label)`` pairs of a dataset, made by :meth:`ShardDataset.to_torch`.

    Args:
        dataset: dataset of the items.
        transform: function that makes a pair's image from an RGB image; None: the dataset's own.
        level: name or column of the level of the labels; None: the finest.

    Attributes:
        dataset: the dataset, with the transform.
        classes: names of the level's classes; a label is a position in it.
        class_to_idx: the label of every class.
        targets: (N,) int64 labels; -1 is unknown.

    Raises:
        HierarchyError: there is no such level.
    """

    def __init__(
        self, dataset: ShardDataset, transform: Transform | None = None, level: str | int | None = None
    ) -> None:
        self.dataset = copy(dataset)
        self.dataset.transform = transform or dataset.transform
        column = dataset.hierarchy.level_index(level or 0)
        self.classes, self.targets = dataset.hierarchy.names[column], dataset.labels[:, column]
        self.class_to_idx = {name: label for label, name in enumerate(self.classes)}

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        item = self.dataset[index]
        return item["image"], int(self.targets[item["index"]])

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, int]]:
        """Return the pairs of a batch; the bytes of its images are read together."""
        return [(item["image"], int(self.targets[item["index"]])) for item in self.dataset.__getitems__(indices)]


def _digests(sha256: pl.Series, where: str) -> np.ndarray:
    """Convert (N,) texts of 64 hex digits to (N, 32) uint8 digests."""
    raw = sha256.str.decode("hex", strict=False).fill_null(b"")
    if not (raw.bin.size() == _DIGEST).all():
        raise InputError(f"{where}: sha256 is not 64 hex digits in every row. hgld index --force writes it again.")
    return np.frombuffer(b"".join(raw.to_list()), dtype=np.uint8).reshape(-1, _DIGEST)

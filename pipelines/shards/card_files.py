"""The files of a dataset directory that are made from its manifest and card: README.md and croissant.json."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from hgld.data.format import BOX, CARD, CROISSANT, HIERARCHY, INDEX, MANIFEST, MAX_MANIFEST_BYTES, FileFacts, Manifest
from hgld.errors import ConfigError, InputError, StorageError
from hgld.files import aside_of, file_lock, put_in_place
from hgld.tables import parquet_schema

from ..check.scan import opened_regular
from ..stage import json_text
from .cards import DataCard, dataset_card, load_card, published_differences
from .croissant import card_facts, croissant

_LOCK = ".dataset.lock"


@dataclass(frozen=True)
class RemadeCard:
    """Outcome of :func:`remake_card`.

    Attributes:
        files: names of the files written.
        card: the dataset's card; None where hgld has none.
        differences: from the published counts, see :func:`hgld.pipelines.shards.cards.published_differences`.
    """

    files: tuple[str, ...]
    card: DataCard | None
    differences: pl.DataFrame


def remake_card(root: Path) -> RemadeCard:
    """Rewrite ``README.md`` and ``croissant.json`` of a dataset directory and enter them in its manifest.

    Notes of the adapter are taken from the manifest's provenance (``notes``, a list of texts), where it has any.

    Args:
        root: the directory; its manifest, index and hierarchy are read.

    Raises:
        InputError: it is no dataset directory, or its manifest cannot be read.
        StorageError: the disk is full or not writable.
    """
    if not root.is_dir():
        raise InputError(f"{root}: there is no such folder; expected a dataset directory.")
    with dataset_lock(root):
        return _remake(root)


def _remake(root: Path) -> RemadeCard:
    manifest = _read_manifest(root)
    card = known_card(manifest)
    notes = manifest.provenance.get("notes", [])
    notes = [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []
    empty = pl.DataFrame(schema={"split": pl.String, "what": pl.String, "published": pl.String, "found": pl.Int64})
    differences = empty if card is None else published_differences(card, manifest)
    text = dataset_card(card, manifest, differences, notes)
    described = croissant(manifest, card_facts(card, manifest), boxes=_has_boxes(root))
    try:
        _write(root, manifest, text, described)
    except OSError as error:
        raise StorageError(
            f"{root} cannot be written ({error.strerror or error}). Free space there, then run again."
        ) from error
    return RemadeCard((CARD, CROISSANT), card, differences)


def known_card(manifest: Manifest) -> DataCard | None:
    """Return the card that has the dataset's name; None if there is none or if its levels differ."""
    try:
        card = load_card(manifest.name)
    except ConfigError:
        return None
    return card if card.levels == manifest.levels else None


def _read_manifest(root: Path) -> Manifest:
    path = root / MANIFEST
    if not path.is_file():
        raise InputError(
            f"{root} has no {MANIFEST}; expected a dataset directory. If it holds shards: hgld index {root}"
        )
    with opened_regular(path) as file:
        manifest = Manifest.from_json(file.read(MAX_MANIFEST_BYTES + 1), str(path))
    missing = [name for name in (INDEX, HIERARCHY) if name not in manifest.files]
    if missing:
        raise InputError(f"{path} does not list {missing[0]}. Make it anew: hgld index {root} --force")
    return manifest


def _has_boxes(root: Path) -> bool:
    return BOX[0] in parquet_schema(root / INDEX, fix=f"Make it anew: hgld index {root}")


@contextmanager
def dataset_lock(root: Path) -> Iterator[None]:
    """Hold a dataset directory against other processes that change its files.

    Raises:
        StorageError: another process holds it, or the folder is not writable.
    """
    busy = f"another process is changing the dataset in {root}; wait for it, or stop it."
    with file_lock(root / _LOCK, busy, keep=False):
        yield


def _write(root: Path, manifest: Manifest, text: str, described: dict[str, object]) -> None:
    """Write the files aside and rename them, the manifest last; if stopped in between, the same command repairs it."""
    made = {CARD: text.encode(), CROISSANT: json_text(described).encode()}
    facts = {name: FileFacts(bytes=len(d), sha256=hashlib.sha256(d).hexdigest()) for name, d in made.items()}
    files = dict(sorted({**manifest.files, **facts}.items()))
    made[MANIFEST] = replace(manifest, files=files).to_json().encode()
    asides = {name: aside_of(root / name) for name in made}
    try:
        for name, aside in asides.items():
            aside.write_bytes(made[name])
        for name, aside in asides.items():
            put_in_place(aside, root / name)
    finally:
        for aside in asides.values():
            aside.unlink(missing_ok=True)

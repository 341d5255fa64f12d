"""``hgld verify``: reads a dataset directory back, whole, and lists whatever is off. It changes nothing."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

import polars as pl

from hgld import Hierarchy
from hgld import dataset_files as files
from hgld.dataset_names import SEARCH
from hgld.errors import InputError
from pipelines.findings import Findings
from pipelines.progress import Progress
from pipelines.shard_scan import ITEMS, ScanOptions, ShardScan, opened_regular, scan_shards
from pipelines.verify_index import (
    check_against_tars,
    check_counts,
    check_labels,
    check_names,
    check_runs,
    without_set_aside,
)
from pipelines.verify_splits import check_bytes, check_classes, check_near_duplicates

_Read = TypeVar("_Read")


@dataclass(frozen=True)
class Verification:
    """What was read, and what is off.

    Attributes:
        name: of the dataset.
        items: that the tars hold, whole.
        shards: that were read.
        bytes: that were read in shards.
        findings: one row a finding (:data:`pipelines.findings.SCHEMA`); none if nothing is off.
        notes: what a person may want to know and is not a fault, one line each.
    """

    name: str
    items: int
    shards: int
    bytes: int
    findings: pl.DataFrame
    notes: tuple[str, ...]


def verify(
    root: Path, *, decode: bool = False, near: bool = False, workers: int = 1, progress: Progress
) -> Verification:
    """Check a dataset directory against itself.

    Sizes and checksums of all files and items; members that must not be used; the index against the tars both ways,
    the items' JSON against both; labels against the hierarchy; counts; classes and images that training shares with
    the other splits; lists, judgements and rejected items against the keys.

    Args:
        root: the directory.
        decode: decode every image.
        near: look for images of other splits that look like training images.
        workers: shards read at a time; 0: one a core.
        progress: told of every shard.

    Raises:
        InputError: ``root`` is not a dataset: no manifest, or one that cannot be read.
        SchemaError: written by another hgld.
    """
    manifest = _manifest(root)
    return _Verifier(root, manifest).run(ScanOptions(decode=decode, hashes=near), workers, progress)


def _manifest(root: Path) -> files.Manifest:
    path = root / files.MANIFEST
    if not path.exists():
        raise InputError(
            f"{root}: no {files.MANIFEST}, so this is no dataset. Name the folder that hgld build-shards wrote; "
            "hgld index makes one for tars alone."
        )
    with opened_regular(path) as file:
        return files.Manifest.from_json(file.read(files.MAX_MANIFEST_BYTES + 1), str(path))


class _Verifier:
    """Runs the checks of one directory."""

    def __init__(self, root: Path, manifest: files.Manifest) -> None:
        self.root, self.manifest, self.findings = root, manifest, Findings()
        self.notes: list[str] = []

    def run(self, options: ScanOptions, workers: int, progress: Progress) -> Verification:
        self._check_strays()
        for name, facts in self.manifest.files.items():
            self._check_file(name, facts)
        index, tree = self._index(), self._tree()
        rejected = self._table(files.REJECTED)
        scans = scan_shards(self._shards(), options, workers=workers, progress=progress, task="reading shards")
        for scan in scans:
            self._check_shard(scan)
        stored = pl.concat(
            [
                pl.DataFrame(schema={**ITEMS, "shard": pl.String}),
                *(s.items.with_columns(shard=pl.lit(s.name)) for s in scans),
            ]
        )
        if index is not None:
            stored = without_set_aside(stored, index, rejected)
        if tree is not None:
            check_names(stored, tree, self.findings)
        if index is not None:
            self._check_index(index, tree, scans, stored, near=options.hashes)
            self._check_keys(index, rejected)
        return Verification(
            name=self.manifest.name,
            items=int(stored["sound"].sum()),
            shards=len(scans),
            bytes=sum(scan.bytes for scan in scans),
            findings=self.findings.table(),
            notes=tuple(self.notes),
        )

    def _check_index(
        self,
        index: pl.DataFrame,
        tree: Hierarchy | None,
        scans: Sequence[ShardScan],
        stored: pl.DataFrame,
        *,
        near: bool,
    ) -> None:
        manifest, findings = self.manifest, self.findings
        read = index.filter(pl.col("shard").is_in([scan.name for scan in scans]))
        check_against_tars(read, manifest.levels, stored, findings)
        if tree is not None:
            check_labels(index, tree, findings)
        check_runs(index, manifest.levels[0], manifest.group_size, findings)
        check_counts(index, manifest, findings)
        self._note(check_classes(index, manifest, tree, findings))
        check_bytes(index, findings)
        if near:
            self._note(check_near_duplicates(index, stored, findings))

    def _note(self, note: str | None) -> None:
        if note is not None:
            self.notes.append(note)

    def _check_strays(self) -> None:
        known = {files.MANIFEST, *self.manifest.files, *(shard.name for shard in self.manifest.shards)}
        for path in sorted(self.root.iterdir()):
            kept = path.name == SEARCH and path.is_dir() and not path.is_symlink()
            if path.name not in known and not kept:
                kind = "a symbolic link" if path.is_symlink() else "a folder" if path.is_dir() else "a file"
                self.findings.add("stray-file", f"{kind} that {files.MANIFEST} does not name", "none", shard=path.name)

    def _check_file(self, name: str, facts: files.FileFacts) -> None:
        found = self._open(name, _fingerprint)
        if found is not None:
            self._compare(name, found, facts)

    def _open(self, name: str, use: Callable[[BufferedReader], _Read]) -> _Read | None:
        """What ``use`` makes of a file of the directory; None, and a finding, if it is no readable regular file."""
        path = self.root / name
        if not path.exists() and not path.is_symlink():
            self.findings.add("missing-file", "nothing there", f"a file, as {files.MANIFEST} says", shard=name)
            return None
        try:
            with opened_regular(path) as file:
                return use(file)
        except InputError as error:
            self.findings.add("unreadable-file", error, "a readable regular file", shard=name)
            return None

    def _read(self, name: str, read: Callable[[Path], _Read]) -> _Read | None:
        """A table of the directory; None, and a finding, if it cannot be read."""
        if name not in self.manifest.files:
            self.findings.add("missing-file", f"{files.MANIFEST} does not name it", "a file", shard=name)
            return None
        path = self.root / name
        if path.is_symlink() or not path.is_file():
            return None  # found already, with the file's checksum
        try:
            return read(path)
        except InputError as error:
            self.findings.add("unreadable-file", error, "a file that hgld wrote (hgld index makes it anew)", shard=name)
            return None

    def _index(self) -> pl.DataFrame | None:
        found = self._read(files.INDEX, lambda path: files.read_index(path))
        return found[0] if found is not None and self._levels_agree(found[1], files.INDEX) else None

    def _tree(self) -> Hierarchy | None:
        found = self._read(files.HIERARCHY, Hierarchy.from_parquet)
        return found if found is not None and self._levels_agree(found.levels, files.HIERARCHY) else None

    def _levels_agree(self, levels: tuple[str, ...], name: str) -> bool:
        if levels != self.manifest.levels:
            expected = f"levels {', '.join(self.manifest.levels)}, as {files.MANIFEST} says"
            self.findings.add("levels", f"levels {', '.join(levels)}", expected, shard=name)
        return levels == self.manifest.levels

    def _shards(self) -> list[Path]:
        """The shards that are there as regular files; the others are findings."""
        return [self.root / shard.name for shard in self.manifest.shards if self._open(shard.name, lambda file: True)]

    def _check_shard(self, scan: ShardScan) -> None:
        facts = next(shard for shard in self.manifest.shards if shard.name == scan.name)
        found = files.FileFacts(bytes=scan.bytes, sha256=scan.sha256)
        self._compare(scan.name, found, files.FileFacts(bytes=facts.bytes, sha256=facts.sha256))
        rows = scan.faults.with_columns(shard=pl.lit(scan.name), split=pl.lit(facts.split))
        found_there = pl.concat_str("detail", pl.lit(" (offset "), "offset", pl.lit(")"))
        self.findings.add_rows(rows, pl.col("reason"), found_there, "a sound member", "member")

    def _compare(self, name: str, found: files.FileFacts, stated: files.FileFacts) -> None:
        if found["bytes"] != stated["bytes"]:
            self.findings.add("size", f"{found['bytes']} bytes", f"{stated['bytes']} bytes", shard=name)
        if found["sha256"] != stated["sha256"]:
            self.findings.add("sha256", found["sha256"], stated["sha256"], shard=name)

    def _check_keys(self, index: pl.DataFrame, rejected: pl.DataFrame) -> None:
        """Lists and judgements name items of the index; rejected items are none of it, but for repeated keys."""
        keys = index.select("key")
        for name, column in ((files.LISTS, "key"), (files.JUDGEMENTS, "query"), (files.JUDGEMENTS, "item")):
            table = self._table(name)
            lost = table.join(keys, left_on=column, right_on="key", how="anti", maintain_order="left")
            lost = lost.with_columns(shard=pl.lit(name)).unique(column, maintain_order=True)
            self.findings.add_rows(lost, "unknown-key", pl.lit(f"a {column} that the index lacks"), "an item", column)
        kept = rejected.filter(pl.col("reason") != "duplicate-key").join(keys, on="key", maintain_order="left")
        kept = kept.with_columns(shard=pl.lit(files.REJECTED))
        self.findings.add_rows(kept, "rejected-key", pl.col("reason"), "no item of the index")

    def _table(self, name: str) -> pl.DataFrame:
        empty = pl.DataFrame(schema=files.TABLES[name])
        if name not in self.manifest.files:
            return empty
        table = self._read(name, lambda path: files.read_table(name, path))
        return empty if table is None else table


def _fingerprint(file: BufferedReader) -> files.FileFacts:
    digest = hashlib.file_digest(file, "sha256")
    return files.FileFacts(bytes=file.tell(), sha256=digest.hexdigest())

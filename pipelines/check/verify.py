"""``hgld verify``: read a whole dataset directory back and list every fault. It changes nothing.

The index is checked against the tars, the hierarchy and the manifest, its rows against each other, and the splits
against each other: classes, images and near-duplicates of training that other splits share.
"""

import hashlib
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl

from hgld.data import format as files
from hgld.data import index as index_file
from hgld.data.format import BOX, Manifest, SplitFacts, short
from hgld.data.index import split_facts, with_runs
from hgld.errors import ConfigError, InputError, TableError
from hgld.evaluation.protocols import protocol_names
from hgld.hierarchy import Hierarchy
from hgld.tables import CsvText

from ..stage import Progress
from .near_duplicates import MAX_DISTANCE, nearest, next_nearest
from .scan import ITEMS, Findings, ScanOptions, ShardScan, opened_regular, scan_shards

_COMPARED = {  # columns that the index and a scan of the tars share, and the kind of finding for a difference
    "offset": "place",
    "size": "place",
    "sha256": "item-sha256",
    "suffix": "suffix",
    "width": "header",
    "height": "header",
    "orientation": "header",
    "split": "split",
}
_STORED = " in the tar"
_ROWS_TOGETHER = 200_000  # of the index and of the tars
_COUNT, _FIRST, _IMPLIED = "items of the run", "first of the run", "implied value"  # beside levels of any name


def without_set_aside(stored: pl.DataFrame, index: pl.DataFrame, rejected: pl.DataFrame) -> pl.DataFrame:
    """Return the stored items without those that ``rejected.parquet`` names and the index leaves out."""
    file = pl.concat_str("shard", pl.lit("/"), "key", pl.lit("."), "suffix")
    aside = stored.select("shard", "key", file=file).join(rejected.select("file").unique(), on="file", how="semi")
    aside = aside.join(index, on=("shard", "key"), how="anti")
    if aside.is_empty():  # a join would copy all items
        return stored
    return stored.join(aside, on=("shard", "key"), how="anti", maintain_order="left")


def check_against_tars(index: pl.DataFrame, levels: Sequence[str], stored: pl.DataFrame, findings: Findings) -> None:
    """Check that the index and the tars hold the same items with the same facts.

    Args:
        index: rows of the shards that were read.
        levels: finest first.
        stored: items of the shards, :data:`hgld.pipelines.check.scan.ITEMS` and the column shard.
        findings: to add to.
    """
    joined = index.join(stored, on=("shard", "key"), how="left", suffix=_STORED, maintain_order="left")
    there = pl.col(f"sha256{_STORED}").is_not_null()
    at = _said("an image at offset", "offset")
    findings.add_rows(joined.filter(~there), "missing-member", pl.lit("no such image in the tar"), at)
    extra = stored.filter(pl.col("sha256").is_not_null()).join(
        index, on=("shard", "key"), how="anti", maintain_order="left"
    )
    findings.add_rows(extra, "unindexed-member", at, "every image of the tar in the index")
    held = joined.filter(there)
    for name, kind in _COMPARED.items():
        differs = held.filter(pl.col(f"{name}{_STORED}") != pl.col(name))
        findings.add_rows(differs, kind, _said(name, f"{name}{_STORED}"), _said(name, name))
    known = held.filter(pl.col("labels").is_not_null())
    _compare_texts(known, "labels", _listed("labels"), _texts_of(levels), findings)
    stated = known.filter(pl.col("levels").list.len() > 0)
    _compare_texts(stated, "levels", _listed("levels"), pl.lit(", ".join(levels)), findings)
    boxes = _texts_of(BOX) if BOX[0] in index.columns else pl.lit(None, pl.String)
    none = pl.lit("none")
    _compare_texts(known, "box", _listed("box").fill_null(none), boxes.fill_null(none), findings)


def _compare_texts(rows: pl.DataFrame, kind: str, found: pl.Expr, expected: pl.Expr, findings: Findings) -> None:
    said = pl.concat_str(pl.lit(f"{kind} "), found), pl.concat_str(pl.lit(f"{kind} "), expected)
    findings.add_rows(rows.filter(found != expected), kind, *said)


def _said(what: str, column: str) -> pl.Expr:
    return pl.concat_str(pl.lit(f"{what} "), pl.col(column))


def _listed(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.List(pl.String)).list.join(", ")


def _texts_of(columns: Sequence[str]) -> pl.Expr:
    return pl.concat_str(columns, separator=", ")


def check_names(stored: pl.DataFrame, tree: Hierarchy, findings: Findings) -> None:
    """Check labels and class names in the items' JSON against the hierarchy."""
    usable = stored.filter(pl.col("labels").list.len() == len(tree.levels))
    for c, level in enumerate(tree.levels):
        classes = pl.DataFrame(
            {"label": range(-1, len(tree.names[c])), "own": ["", *tree.names[c]]},
            schema={"label": pl.Int32, "own": pl.String},
        )
        named = usable.select(
            *("key", "split", "shard"), label=pl.col("labels").list.get(c), name=pl.col("names").list.get(c)
        ).join(classes, on="label", how="left", maintain_order="left")
        wrong = named.filter(pl.col("name") != pl.col("own"))
        found = pl.concat_str(pl.lit(f"{level} "), "label", pl.lit(" is called "), "name")
        findings.add_rows(wrong, "names", found, pl.concat_str(pl.lit("called "), "own"))


def check_labels(index: pl.DataFrame, tree: Hierarchy, findings: Findings) -> None:
    """Check that labels of the index are classes of the hierarchy and lie on one path of it."""
    for c, level in enumerate(tree.levels):
        size = len(tree.names[c])
        findings.add_rows(
            index.filter(pl.col(level) >= size), "hierarchy", _said(level, level), f"{level} below {size}"
        )
        if c + 1 == len(tree.levels):
            return
        above = tree.levels[c + 1]
        parents = pl.DataFrame({level: range(size), _IMPLIED: tree.parents[c]}, schema_overrides={level: pl.Int32})
        held = index.join(parents, on=level, how="left", maintain_order="left")
        wrong = held.filter((pl.col(above) >= 0) & (pl.col(_IMPLIED) >= 0) & (pl.col(above) != pl.col(_IMPLIED)))
        found = pl.concat_str(pl.lit(f"{level} "), level, pl.lit(f" under {above} "), above)
        findings.add_rows(wrong, "hierarchy", found, pl.concat_str(pl.lit(f"under {above} "), _IMPLIED))


def check_runs(index: pl.DataFrame, finest: str, group_size: int, findings: Findings) -> None:
    """Check that run and duplicate_of follow from the rows, and that groups are as large as the manifest promises."""
    implied = with_runs(index, finest)
    for name in ("class_run", "duplicate_of"):
        rows = index.with_columns(implied[name].alias(_IMPLIED)).filter(pl.col(name).ne_missing(pl.col(_IMPLIED)))
        found, expected = (
            pl.concat_str(pl.lit(f"{name} "), pl.col(column).cast(pl.String).fill_null("none"))
            for column in (name, _IMPLIED)
        )
        findings.add_rows(rows, name, found, expected)
    short = short_runs(implied, finest, group_size)
    found = pl.concat_str(pl.lit("a group of "), _COUNT)
    findings.add_rows(short, "group-size", found, f"at least {group_size} items of the class together", _FIRST)


def short_runs(index: pl.DataFrame, finest: str, group_size: int) -> pl.DataFrame:
    """Find runs of fewer than ``group_size`` items of a class that has as many in its split.

    Returns:
        split, the class, shard, run, the number of its items and the key of its first one.
    """
    runs = (
        index.filter(pl.col(finest) >= 0)
        .group_by("split", finest, "shard", "class_run", maintain_order=True)
        .agg(pl.len().alias(_COUNT), pl.col("key").first().alias(_FIRST))
    )
    whole = pl.col(_COUNT).sum().over("split", finest)
    return runs.filter((pl.col(_COUNT) < group_size) & (whole >= group_size))


def check_counts(index: pl.DataFrame, manifest: Manifest, findings: Findings) -> None:
    """Check the manifest's counts against the index."""
    found = split_facts(index, manifest.levels)
    for split in sorted(found.keys() | manifest.splits.keys()):
        ours, stated = (_flat(facts.get(split)) for facts in (found, manifest.splits))
        for what in sorted(ours.keys() | stated.keys()):
            if ours.get(what, 0) != stated.get(what, 0):
                findings.add(
                    "counts", f"{ours.get(what, 0)} {what} in the index", f"{stated.get(what, 0)} {what}", split=split
                )
    held = dict(index.group_by("shard").len().iter_rows())
    for shard in manifest.shards:
        count = held.pop(shard.name, 0)
        if count != shard.items:
            findings.add(
                "counts", f"{count} items in the index", f"{shard.items} items", split=shard.split, shard=shard.name
            )
    for shard, count in sorted(held.items()):
        findings.add("counts", f"{count} items in the index", "a shard of the manifest", shard=shard)


def _flat(facts: SplitFacts | None) -> dict[str, int]:
    if facts is None:
        return {}
    classes = {f"classes of {level}": count for level, count in facts["classes"].items()}
    return {"items": facts["items"], "shards": facts["shards"], "unlabelled": facts["unlabelled"], **classes}


# -- checks between splits --------------------------------------------------------------------------------------------

NEAR = "near-duplicate"

TRAIN = "train"
EVALUATED = ("test", "query", "gallery")
_COUNT_SPLITS, _NAME = "items of the split", "name of the class"  # beside levels of any name


def check_protocol(manifest: Manifest, findings: Findings) -> None:
    """Check that the manifest's protocol is one that there is, of hgld or of an installed package."""
    if manifest.protocol and manifest.protocol not in protocol_names():
        findings.add("protocol", manifest.protocol, f"none, or one of {', '.join(protocol_names())}")


def check_classes(index: pl.DataFrame, manifest: Manifest, tree: Hierarchy | None, findings: Findings) -> str | None:
    """Look for finest classes that training and evaluation share.

    They are findings where the manifest's provenance says ``disjoint``; else a note for people is returned, or None.
    """
    finest = manifest.levels[0]
    known = index.filter(pl.col(finest) >= 0)
    counts = known.group_by(finest, "split").len(_COUNT_SPLITS).sort(finest, "split")
    trained = counts.filter(split=TRAIN).select(finest, pl.col(_COUNT_SPLITS).alias("in train"))
    shared = counts.filter(pl.col("split").is_in(EVALUATED)).join(trained, on=finest, maintain_order="left")
    if not len(shared):
        return None
    if manifest.provenance.get("disjoint") is not True:
        number = shared[finest].n_unique()
        return f"{number} classes of {finest} are in {TRAIN} and in {', '.join(sorted(set(shared['split'])))}."
    names = dict(enumerate(tree.names[0])) if tree else {}
    rows = shared.with_columns(
        pl.col(finest).replace_strict(names, default=pl.col(finest).cast(pl.String)).alias(_NAME)
    )
    found = pl.concat_str(
        pl.lit(f"a class of {finest} with "), "in train", pl.lit(f" items in {TRAIN}, "), _COUNT_SPLITS, pl.lit(" here")
    )
    findings.add_rows(rows, "disjoint", found, f"no class of {TRAIN}", _NAME)
    return None


def check_bytes(index: pl.DataFrame, findings: Findings) -> None:
    """Look for images of other splits that have the bytes of a training image."""
    trained = index.filter(split=TRAIN).unique("sha256", keep="first", maintain_order=True)
    shared = index.filter(pl.col("split") != TRAIN).join(
        trained.select("sha256", pl.col("key").alias("trained")), on="sha256", maintain_order="left"
    )
    findings.add_rows(shared, "leakage", _training_key("the bytes of"), f"no image of {TRAIN}")


@dataclass(frozen=True)
class NearOptions:
    """Rules for near-duplicates that are findings.

    Attributes:
        distance: bits of 64 in which the hashes of two images may differ.
        allowed: pairs of keys, ``{key, key}``, of images that are meant to look alike.
    """

    distance: int = MAX_DISTANCE
    allowed: Set[Set[str]] = frozenset()

    def __post_init__(self) -> None:
        if not 0 <= self.distance <= MAX_DISTANCE:
            raise ConfigError(f"--near-distance is {self.distance}; expected 0 to {MAX_DISTANCE} bits.")


def read_allowed(path: Path, keys: pl.Series) -> frozenset[frozenset[str]]:
    """Read pairs of images that are meant to look alike: a CSV with the columns ``key`` and ``looks_like``.

    Args:
        path: of the CSV; a pair may stand in either order.
        keys: of the dataset's items.

    Raises:
        TableError: it cannot be read, or names an item that the dataset lacks.
    """
    rows = list(CsvText.read(path).select(("key", "looks_like")))
    known = set(keys)
    for line, pair in rows:
        for key in pair:
            if key not in known:
                raise TableError(
                    f"{path}, line {line}: the dataset has no item {short(key)}; correct or delete the row."
                )
    return frozenset(frozenset(pair) for _, pair in rows)


def check_near_duplicates(
    index: pl.DataFrame, stored: pl.DataFrame, options: NearOptions, findings: Findings
) -> str | None:
    """Look for images of other splits that look like a training image of other bytes.

    Args:
        index: the dataset's index.
        stored: items of the shards, with perceptual hashes.
        options: rules for findings.
        findings: to add to.

    Returns:
        a note for people on images without a hash, or None.
    """
    known = index.select("key", "shard", "split", "sha256").join(
        stored.select("key", "shard", "hash"), on=("key", "shard"), maintain_order="left"
    )
    hashed = known.filter(pl.col("hash").is_not_null())
    trained, others = hashed.filter(split=TRAIN), hashed.filter(pl.col("split") != TRAIN)
    others = others.join(trained, on="sha256", how="anti", maintain_order="left")  # equal bytes are leakage already
    if len(trained) and len(others):
        places, distances = nearest(others["hash"].to_numpy(), trained["hash"].to_numpy())
        places = np.where(distances <= options.distance, places, -1)
        _pass_allowed(others, trained, options, places, distances)
        near = others.with_columns(place=pl.Series(places), distance=pl.Series(distances)).filter(pl.col("place") >= 0)
        near = near.with_columns(trained=trained["key"].gather(near["place"]))
        found = pl.concat_str(pl.lit("differs in "), "distance", pl.lit(" of 64 bits from "), _training_key(""))
        findings.add_rows(near, NEAR, found, f"no image that looks like one of {TRAIN}")
    plain = len(known) - len(hashed)
    return f"{plain} images are too plain to be compared by their looks." if plain else None


def _pass_allowed(
    others: pl.DataFrame, trained: pl.DataFrame, options: NearOptions, places: np.ndarray, distances: np.ndarray
) -> None:
    """Replace an allowed neighbour by the closest image that is not allowed."""
    partners: dict[str, set[str]] = {}
    for pair in options.allowed:
        for key in pair:
            partners.setdefault(key, set()).update(pair)
    hashes, keys = trained["hash"].to_numpy(), trained["key"]
    for row in np.flatnonzero(others["key"].is_in(list(partners)).to_numpy() & (places >= 0)):
        left_out = keys.is_in(list(partners[others["key"][int(row)]])).to_numpy()
        query = others["hash"].to_numpy()[row]
        places[row], distances[row] = next_nearest(query, hashes, left_out, options.distance)


def _training_key(what: str) -> pl.Expr:
    return pl.concat_str(pl.lit(f"{what} ".lstrip()), "trained", pl.lit(f" of {TRAIN}"))


# -- the whole directory ----------------------------------------------------------------------------------------------

_Read = TypeVar("_Read")


@dataclass(frozen=True)
class Verification:
    """Outcome of :func:`verify`.

    Attributes:
        name: of the dataset.
        items: number of sound items in the tars.
        shards: number of shards read.
        bytes: read from shards.
        findings: one row a finding (:data:`hgld.pipelines.check.scan.SCHEMA`); no row if all is well.
        notes: facts for people that are not faults, one line each.
    """

    name: str
    items: int
    shards: int
    bytes: int
    findings: pl.DataFrame
    notes: tuple[str, ...]


def verify(
    root: Path,
    *,
    decode: bool = False,
    near: bool = False,
    near_distance: int = MAX_DISTANCE,
    near_allow: Path | None = None,
    workers: int = 1,
    progress: Progress,
) -> Verification:
    """Check a dataset directory against itself.

    Sizes and checksums of all files and items; members that must not be used; the index against the tars both ways,
    the items' JSON against both; labels against the hierarchy; counts; classes and images that training shares with
    the other splits; lists, judgements and rejected items against the keys.

    Args:
        root: the directory.
        decode: decode every image.
        near: look for images of other splits that look like training images.
        near_distance: bits of 64 in which the perceptual hashes of such images may differ, at most 5.
        near_allow: pairs of images that are meant to look alike (:func:`hgld.pipelines.check.verify.read_allowed`).
        workers: shards read at a time; 0: one a core.
        progress: told of every shard.

    Raises:
        InputError: ``root`` is not a dataset: no manifest, or one that cannot be read.
        TableError: ``near_allow`` is not such a list.
        SchemaError: another version of hgld wrote it.
    """
    manifest = _manifest(root)
    options = NearOptions(near_distance)
    return _Verifier(root, manifest, options, near_allow).run(
        ScanOptions(decode=decode, hashes=near), workers, progress
    )


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
    """The checks of one directory, and their findings so far."""

    def __init__(self, root: Path, manifest: files.Manifest, near: NearOptions, allow: Path | None) -> None:
        self.root, self.manifest, self.findings = root, manifest, Findings()
        self.near, self.allow = near, allow
        self.notes: list[str] = []

    def run(self, options: ScanOptions, workers: int, progress: Progress) -> Verification:
        self._check_strays()
        for name, facts in self.manifest.files.items():
            self._check_file(name, facts)
        index, tree = self._index(), self._tree()
        rejected = self._table(files.REJECTED)
        if self.allow is not None and index is not None:
            self.near = replace(self.near, allowed=read_allowed(self.allow, index["key"]))
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
        for shards in _together(stored["shard"], None if index is None else index["shard"], [s.name for s in scans]):
            part = stored.filter(pl.col("shard").is_in(shards))
            if tree is not None:
                check_names(part, tree, self.findings)
            if index is not None:
                own = index.filter(pl.col("shard").is_in(shards))
                check_against_tars(own, self.manifest.levels, part, self.findings)
        if index is not None:
            self._check_index(index, tree, stored, near=options.hashes)
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
        stored: pl.DataFrame,
        *,
        near: bool,
    ) -> None:
        manifest, findings = self.manifest, self.findings
        if tree is not None:
            check_labels(index, tree, findings)
        check_runs(index, manifest.levels[0], manifest.group_size, findings)
        check_counts(index, manifest, findings)
        check_protocol(manifest, findings)
        self._note(check_classes(index, manifest, tree, findings))
        check_bytes(index, findings)
        if near:
            self._note(check_near_duplicates(index, stored, self.near, findings))

    def _note(self, note: str | None) -> None:
        if note is not None:
            self.notes.append(note)

    def _check_strays(self) -> None:
        known = {files.MANIFEST, *self.manifest.files, *(shard.name for shard in self.manifest.shards)}
        for path in sorted(self.root.iterdir()):
            if path.name not in known:
                kind = "a symbolic link" if path.is_symlink() else "a folder" if path.is_dir() else "a file"
                self.findings.add("stray-file", f"{kind} that {files.MANIFEST} does not name", "none", shard=path.name)

    def _check_file(self, name: str, facts: files.FileFacts) -> None:
        found = self._open(name, _fingerprint)
        if found is not None:
            self._compare(name, found, facts)

    def _open(self, name: str, use: Callable[[BufferedReader], _Read]) -> _Read | None:
        """Apply ``use`` to a file of the directory; None, and a finding, if it is not a readable regular file."""
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
        """Read a table of the directory; None, and a finding, if it cannot be read."""
        if name not in self.manifest.files:
            self.findings.add("missing-file", f"{files.MANIFEST} does not name it", "a file", shard=name)
            return None
        path = self.root / name
        if path.is_symlink() or not path.is_file():
            return None  # a finding already, from the check of its checksum
        try:
            return read(path)
        except InputError as error:
            self.findings.add("unreadable-file", error, "a file that hgld wrote (hgld index makes it anew)", shard=name)
            return None

    def _index(self) -> pl.DataFrame | None:
        found = self._read(files.INDEX, lambda path: index_file.read_index(path))
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
        """Return the shards that are regular files; the others become findings."""
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
        """Check that lists and judgements name items of the index, and rejected items do not, except repeated keys."""
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
        empty = pl.DataFrame(schema=index_file.TABLES[name])
        if name not in self.manifest.files:
            return empty
        table = self._read(name, lambda path: index_file.read_table(name, path))
        return empty if table is None else table


def _together(stored: pl.Series, indexed: pl.Series | None, scanned: Sequence[str]) -> list[list[str]]:
    """Return shards that are checked together: what compares their items takes memory that no dataset makes grow.

    Args:
        stored: the shard of every item that was read.
        indexed: the shard of every row of the index; None without one.
        scanned: names of the shards that were read.
    """
    rows = stored if indexed is None else pl.concat([stored, indexed])
    counts = rows.to_frame("shard").group_by("shard").len().filter(pl.col("shard").is_in(scanned)).sort("shard")
    groups = counts.group_by((pl.col("len").cum_sum() - 1) // _ROWS_TOGETHER, maintain_order=True).agg("shard")
    return groups["shard"].to_list()


def _fingerprint(file: BufferedReader) -> files.FileFacts:
    digest = hashlib.file_digest(file, "sha256")
    return files.FileFacts(bytes=file.tell(), sha256=digest.hexdigest())

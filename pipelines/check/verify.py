"""``hgld verify``: read a whole dataset directory back and list every error. It changes nothing.

The index is checked against the tars, the hierarchy and the manifest, and its rows against each other. Classes and
images of training must not occur in other splits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import polars as pl

from hgld.data import format as files
from hgld.data.format import BOX, FileFacts, Manifest, SplitFacts
from hgld.data.index import SOURCE, TABLES, read_index, read_table, split_facts, with_runs
from hgld.errors import InputError
from hgld.evaluation.protocols import protocol_names
from hgld.hierarchy import Hierarchy

from ..shards.reading import opened_regular, read_manifest
from ..stage import Progress, fingerprint
from .scan import ITEMS, ShardScan, scan_shards

TRAIN = "train"
EVALUATED = ("test", "query", "gallery")
FINDINGS = pl.Schema(dict.fromkeys(("kind", "split", "shard", "member", "found", "expected"), pl.String))
_COMPARED = {  # column of the index and of a scan of the tars -> type of the finding if the two differ
    "offset": "place",
    "size": "place",
    "sha256": "item-sha256",
    "suffix": "suffix",
    "width": "header",
    "height": "header",
    "orientation": "header",
    "split": "split",
    SOURCE: SOURCE,
}
_STORED = " in the tar"
_COUNT, _FIRST, _IMPLIED = "items counted", "first of them", "implied value"
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class Verification:
    """Outcome of :func:`verify`.

    Attributes:
        name: name of the dataset.
        items: number of usable items in the tars.
        shards: number of shards read.
        bytes: number of bytes read from shards.
        findings: one row per finding, with the columns :data:`FINDINGS`. ``shard`` is a file of the directory;
            ``member`` is a key, a name in a tar, or the subject of a table's row; split, shard and member are null if
            they do not apply.
        notes: facts for the user that are not errors, one line each.
    """

    name: str
    items: int
    shards: int
    bytes: int
    findings: pl.DataFrame
    notes: tuple[str, ...]


def verify(root: Path, *, decode: bool = False, workers: int = 1, progress: Progress) -> Verification:
    """Check the files of a dataset directory against each other.

    The function checks the sizes and checksums of all files, and the index against the tars in both directions. It
    checks labels against the hierarchy, and the manifest's counts. It looks for classes and images that training shares
    with other splits, and for lists, judgements and rejected items whose keys do not fit the index.

    Args:
        root: the dataset directory.
        decode: whether to decode every image.
        workers: number of shards read at a time; 0: one per core.
        progress: function called for every shard.

    Raises:
        InputError: ``root`` has no readable manifest, so it is not a dataset.
        SchemaError: another version of hgld wrote the manifest.
    """
    if not (root / files.MANIFEST).exists():
        raise InputError(
            f"{root}: no {files.MANIFEST}, so this is not a dataset. Pass a folder that hgld build-shards wrote, or "
            "run hgld index if the folder has only tars."
        )
    check = _Verifier(root, read_manifest(root / files.MANIFEST))
    index, tree = check.files()
    rejected = check.table(files.REJECTED)
    shards = [root / shard.name for shard in check.manifest.shards if check.read(shard.name, lambda path: True)]
    scans = scan_shards(shards, decode=decode, workers=workers, progress=progress)
    for scan in scans:
        check.shard(scan)
    parts = [scan.items.with_columns(shard=pl.lit(scan.name)) for scan in scans]
    stored = pl.concat([pl.DataFrame(schema={**ITEMS, "shard": pl.String}), *parts])
    if index is not None:
        stored = without_set_aside(stored, index, rejected)
    items, rows = (
        {} if table is None else table.partition_by("shard", as_dict=True, include_key=True)
        for table in (stored, index)
    )
    for scan in scans:  # one shard at a time, because a join of all shards would take twice the memory
        part = items.get((scan.name,), stored.clear())
        if tree is not None:
            check.names(part, tree)
        if index is not None:
            check.against_tars(rows.get((scan.name,), index.clear()), part)
    if index is not None:
        if tree is not None:
            check.labels(index, tree)
        check.runs(index)
        check.counts(index)
        check.classes(index, tree)
        check.bytes(index)
        check.keys(index, rejected)
    return Verification(
        name=check.manifest.name,
        items=int(stored["sound"].sum()),
        shards=len(scans),
        bytes=sum(scan.bytes for scan in scans),
        findings=pl.concat([pl.DataFrame(schema=FINDINGS), *check.found]),
        notes=tuple(check.notes),
    )


class _Verifier:
    """The checks of one directory, and their findings so far."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self.root, self.manifest = root, manifest
        self.found: list[pl.DataFrame] = []
        self.notes: list[str] = []
        self.unusable: set[str] = set()  # files that have a finding because they are missing or unreadable

    def add(
        self, kind: str, found: object, expected: object, *, split: str | None = None, shard: str | None = None
    ) -> None:
        """Add one finding about a split or a file."""
        row = (kind, split, shard, None, str(found), str(expected))
        self.found.append(pl.DataFrame([row], schema=FINDINGS, orient="row"))

    def add_rows(
        self, rows: pl.DataFrame, kind: str | pl.Expr, found: pl.Expr, expected: pl.Expr | str, member: str = "key"
    ) -> None:
        """Add one finding per row of a table that has the columns split, shard (each if it applies) and ``member``."""
        if rows.is_empty():
            return
        place = {name: pl.col(name) if name in rows.columns else pl.lit(None) for name in ("split", "shard")}
        texts = {
            name: pl.lit(text) if isinstance(text, str) else text
            for name, text in (("kind", kind), ("expected", expected))
        }
        made = rows.select(**place, **texts, member=pl.col(member), found=found).select(FINDINGS.names())
        self.found.append(made.cast(FINDINGS))  # pyright: ignore[reportArgumentType]  # polars' stubs miss schemas

    # -- files --------------------------------------------------------------------------------------------------------

    def files(self) -> tuple[pl.DataFrame | None, Hierarchy | None]:
        """Check all files except the shards; return index and hierarchy, if they can be used."""
        manifest = self.manifest
        known = {files.MANIFEST, *manifest.files, *(shard.name for shard in manifest.shards)}
        for path in sorted(self.root.iterdir()):
            if path.name not in known:
                kind = "a symbolic link" if path.is_symlink() else "a folder" if path.is_dir() else "a file"
                self.add("stray-file", f"{kind} that {files.MANIFEST} does not name", "none", shard=path.name)
        for name, stated in manifest.files.items():
            if (found := self.read(name, fingerprint)) is not None:
                self.compare(name, found, stated)
        if manifest.protocol and manifest.protocol not in protocol_names():
            self.add("protocol", manifest.protocol, f"none, or one of {', '.join(protocol_names())}")
        index, levels = self.read(files.INDEX, lambda path: read_index(path)) or (None, manifest.levels)
        tree = self.read(files.HIERARCHY, Hierarchy.from_parquet)
        found_levels = {files.INDEX: levels, files.HIERARCHY: tree.levels if tree else manifest.levels}
        wrong = {name: found for name, found in found_levels.items() if found != manifest.levels}
        for name, found in wrong.items():
            expected = f"levels {', '.join(manifest.levels)}, as {files.MANIFEST} says"
            self.add("levels", f"levels {', '.join(found)}", expected, shard=name)
        return None if files.INDEX in wrong else index, None if files.HIERARCHY in wrong else tree

    def read(self, name: str, read: Callable[[Path], _Read]) -> _Read | None:
        """Apply a reader to a file of the directory; if it fails, add one finding per file and return None."""
        path, stated = self.root / name, {*self.manifest.files, *(shard.name for shard in self.manifest.shards)}
        if name in self.unusable:
            return None
        self.unusable.add(name)
        if name not in stated:
            self.add("missing-file", f"{files.MANIFEST} does not name it", "a file", shard=name)
        elif not path.exists() and not path.is_symlink():
            self.add("missing-file", "nothing there", f"a file, as {files.MANIFEST} says", shard=name)
        else:
            try:
                with opened_regular(path):
                    found = read(path)
            except InputError as error:
                expected = "a readable regular file (hgld index writes the tables again)"
                self.add("unreadable-file", error, expected, shard=name)
            else:
                self.unusable.remove(name)
                return found
        return None

    def table(self, name: str) -> pl.DataFrame:
        """Return a table of the directory; it is empty if the manifest does not name it or it cannot be read."""
        named = name in self.manifest.files
        table = self.read(name, lambda path: read_table(name, path)) if named else None
        return pl.DataFrame(schema=TABLES[name]) if table is None else table

    def compare(self, name: str, found: FileFacts, stated: FileFacts) -> None:
        """Compare the size and checksum of a file with the values in the manifest."""
        if found["bytes"] != stated["bytes"]:
            self.add("size", f"{found['bytes']} bytes", f"{stated['bytes']} bytes", shard=name)
        if found["sha256"] != stated["sha256"]:
            self.add("sha256", found["sha256"], stated["sha256"], shard=name)

    def shard(self, scan: ShardScan) -> None:
        """Check the checksum of a shard, and list its errors."""
        stated = next(shard for shard in self.manifest.shards if shard.name == scan.name)
        found = FileFacts(bytes=scan.bytes, sha256=scan.sha256)
        self.compare(scan.name, found, FileFacts(bytes=stated.bytes, sha256=stated.sha256))
        rows = scan.faults.with_columns(shard=pl.lit(scan.name), split=pl.lit(stated.split))
        place = pl.format("{} (offset {})", "detail", "offset")
        self.add_rows(rows, pl.col("reason"), place, "a sound member", "member")

    # -- comparison of the index with the tars
    # -----------------------------------------------------------------------------------

    def against_tars(self, index: pl.DataFrame, stored: pl.DataFrame) -> None:
        """Check that the index and the tars hold the same items with the same facts.

        Args:
            index: rows of the shards that were read.
            stored: items in the shards, with the columns of :data:`hgld.pipelines.check.scan.ITEMS` and ``shard``.
        """
        place, levels = ("shard", "key"), self.manifest.levels
        joined = index.join(stored, on=place, how="left", suffix=_STORED, maintain_order="left")
        there = pl.col(f"sha256{_STORED}").is_not_null()
        at = pl.format("an image at offset {}", "offset")
        self.add_rows(joined.filter(~there), "missing-member", pl.lit("no such image in the tar"), at)
        extra = stored.filter(pl.col("sha256").is_not_null()).join(index, on=place, how="anti", maintain_order="left")
        self.add_rows(extra, "unindexed-member", at, "every image of the tar in the index")
        held = joined.filter(there)
        for name, kind in _COMPARED.items():
            if name not in index.columns:
                continue
            differs = held.filter(pl.col(f"{name}{_STORED}") != pl.col(name))
            found, expected = (pl.format(f"{name} {{}}", column) for column in (f"{name}{_STORED}", name))
            self.add_rows(differs, kind, found, expected)
        known = held.filter(pl.col("labels").is_not_null())
        boxes = pl.concat_str(BOX, separator=", ") if BOX[0] in index.columns else pl.lit(None, pl.String)
        for kind, rows, expected in (
            ("labels", known, pl.concat_str(levels, separator=", ")),
            ("levels", known.filter(pl.col("levels").list.len() > 0), pl.lit(", ".join(levels))),
            ("box", known, boxes.fill_null("none")),
        ):
            found = pl.col(kind).cast(pl.List(pl.String)).list.join(", ").fill_null("none")
            said = pl.format(f"{kind} {{}}", found), pl.format(f"{kind} {{}}", expected)
            self.add_rows(rows.filter(found != expected), kind, *said)

    def names(self, stored: pl.DataFrame, tree: Hierarchy) -> None:
        """Check labels and class names in the items' JSON against the hierarchy."""
        usable = stored.filter(pl.col("labels").list.len() == len(tree.levels))
        for c, level in enumerate(tree.levels):
            label, name = (pl.col(column).list.get(c) for column in ("labels", "names"))
            rows = usable.with_columns(label=label, name=name)
            rows = rows.with_columns(_looked_up("label", ["", *tree.names[c]], -1, pl.String))
            found = pl.format("{} {} is called {}", pl.lit(level), "label", "name")
            wrong = rows.filter(pl.col("name") != pl.col(_IMPLIED))
            self.add_rows(wrong, "names", found, pl.format("called {}", _IMPLIED))

    # -- consistency of the index -------------------------------------------------------------------------------------

    def labels(self, index: pl.DataFrame, tree: Hierarchy) -> None:
        """Check that labels of the index are classes on one path of the hierarchy."""
        for c, level in enumerate(tree.levels):
            size = len(tree.names[c])
            beyond, found = index.filter(pl.col(level) >= size), pl.format("{} {}", pl.lit(level), level)
            self.add_rows(beyond, "hierarchy", found, f"{level} below {size}")
            if c + 1 < len(tree.levels):
                above = tree.levels[c + 1]
                held = index.with_columns(_looked_up(level, tree.parents[c].tolist(), 0, pl.Int32))
                known = (pl.col(above) >= 0) & (pl.col(_IMPLIED) >= 0)
                found = pl.format("{} {} under {} {}", pl.lit(level), level, pl.lit(above), above)
                expected = pl.format("under {} {}", pl.lit(above), _IMPLIED)
                self.add_rows(held.filter(known & (pl.col(above) != pl.col(_IMPLIED))), "hierarchy", found, expected)

    def runs(self, index: pl.DataFrame) -> None:
        """Check that class_run and duplicate_of fit the rows, and that groups are as large as the manifest states."""
        finest, k = self.manifest.levels[0], self.manifest.group_size
        implied = with_runs(index, finest)
        for name in ("class_run", "duplicate_of"):
            rows = index.with_columns(implied[name].alias(_IMPLIED)).filter(pl.col(name).ne_missing(pl.col(_IMPLIED)))
            found, expected = (
                pl.format(f"{name} {{}}", pl.col(column).cast(pl.String).fill_null("none"))
                for column in (name, _IMPLIED)
            )
            self.add_rows(rows, name, found, expected)
        expected = f"at least {k} adjacent items of the class"
        found = pl.format("a group of {}", _COUNT)
        self.add_rows(short_runs(implied, finest, k), "group-size", found, expected, _FIRST)

    def counts(self, index: pl.DataFrame) -> None:
        """Check the manifest's counts against the index."""
        found, stated = (_flat(facts) for facts in (split_facts(index, self.manifest.levels), self.manifest.splits))
        for split, what in sorted(found.keys() | stated.keys()):
            ours, theirs = (counts.get((split, what), 0) for counts in (found, stated))
            if ours != theirs:
                self.add("counts", f"{ours} {what} in the index", f"{theirs} {what}", split=split)
        held = dict(index.group_by("shard").len().iter_rows())
        expected = {shard.name: f"{shard.items} items" for shard in self.manifest.shards}
        for shard in sorted(held.keys() | expected.keys()):
            text = f"{held.get(shard, 0)} items"
            if text != expected.get(shard):
                wanted = expected.get(shard, "a shard of the manifest")
                self.add("counts", f"{text} in the index", wanted, shard=shard)

    def keys(self, index: pl.DataFrame, rejected: pl.DataFrame) -> None:
        """Check that the index has the keys of lists and judgements, and no rejected keys except repeated keys."""
        keys = index.select("key")
        for name, column in ((files.LISTS, "key"), (files.JUDGEMENTS, "query"), (files.JUDGEMENTS, "item")):
            lost = self.table(name).join(keys, left_on=column, right_on="key", how="anti", maintain_order="left")
            lost = lost.with_columns(shard=pl.lit(name)).unique(column, maintain_order=True)
            self.add_rows(lost, "unknown-key", pl.lit(f"a {column} that the index lacks"), "an item", column)
        kept = rejected.filter(pl.col("reason") != "duplicate-key").join(keys, on="key", maintain_order="left")
        kept = kept.with_columns(shard=pl.lit(files.REJECTED))
        self.add_rows(kept, "rejected-key", pl.col("reason"), "no item of the index")

    # -- comparison of the splits with each other
    # --------------------------------------------------------------------------------

    def classes(self, index: pl.DataFrame, tree: Hierarchy | None) -> None:
        """Look for finest classes that training and evaluation share.

        Shared classes are findings if the manifest's provenance says ``disjoint``; otherwise they are a note.
        """
        finest = self.manifest.levels[0]
        counts = index.filter(pl.col(finest) >= 0).group_by(finest, "split").len(_COUNT).sort(finest, "split")
        trained = counts.filter(split=TRAIN).select(finest, pl.col(_COUNT).alias(_IMPLIED))
        shared = counts.filter(pl.col("split").is_in(EVALUATED)).join(trained, on=finest, maintain_order="left")
        if len(shared) and self.manifest.provenance.get("disjoint") is not True:
            splits = ", ".join(sorted(set(shared["split"])))
            self.notes.append(f"{shared[finest].n_unique()} classes of {finest} are in {TRAIN} and in {splits}.")
            return
        names = dict(enumerate(tree.names[0])) if tree else {}
        name = pl.col(finest).replace_strict(names, default=pl.col(finest).cast(pl.String), return_dtype=pl.String)
        text = f"a class of {{}} with {{}} items in {TRAIN}, {{}} here"
        found = pl.format(text, pl.lit(finest), _IMPLIED, _COUNT)
        self.add_rows(shared.with_columns(name.alias(_FIRST)), "disjoint", found, f"no class of {TRAIN}", _FIRST)

    def bytes(self, index: pl.DataFrame) -> None:
        """Look for images in other splits with the same bytes as a training image."""
        trained = index.filter(split=TRAIN).unique("sha256", keep="first", maintain_order=True)
        shared = index.filter(pl.col("split") != TRAIN).join(
            trained.select("sha256", pl.col("key").alias(_FIRST)), on="sha256", maintain_order="left"
        )
        self.add_rows(shared, "leakage", pl.format(f"the bytes of {{}} of {TRAIN}", _FIRST), f"no image of {TRAIN}")


def without_set_aside(stored: pl.DataFrame, index: pl.DataFrame, rejected: pl.DataFrame) -> pl.DataFrame:
    """Return the stored items, without items that are in ``rejected.parquet`` and not in the index."""
    file = pl.concat_str("shard", pl.lit("/"), "key", pl.lit("."), "suffix")
    aside = stored.select("shard", "key", file=file).join(rejected.select("file").unique(), on="file", how="semi")
    aside = aside.join(index, on=("shard", "key"), how="anti")
    if aside.is_empty():  # return early, because a join would copy all items
        return stored
    return stored.join(aside, on=("shard", "key"), how="anti", maintain_order="left")


def short_runs(index: pl.DataFrame, finest: str, group_size: int) -> pl.DataFrame:
    """Find runs with fewer than ``group_size`` items, of classes with at least ``group_size`` items in their split.

    Returns:
        one row per run: split, class, shard, class_run, number of items, and key of the first item.
    """
    runs = (
        index.filter(pl.col(finest) >= 0)
        .group_by("split", finest, "shard", "class_run", maintain_order=True)
        .agg(pl.len().alias(_COUNT), pl.col("key").first().alias(_FIRST))
    )
    whole = pl.col(_COUNT).sum().over("split", finest)
    return runs.filter((pl.col(_COUNT) < group_size) & (whole >= group_size))


def _looked_up(column: str, values: list, first: int, dtype: pl.DataType | type[pl.DataType]) -> pl.Expr:
    """Return an expression that replaces numbers from ``first`` on by ``values``, and all other numbers by null."""
    numbers = list(range(first, first + len(values)))
    return pl.col(column).replace_strict(numbers, values, default=None, return_dtype=dtype).alias(_IMPLIED)


def _flat(splits: Mapping[str, SplitFacts]) -> dict[tuple[str, str], int]:
    """Return the counts of all splits by split and name of the count."""
    flat = {}
    for split, facts in splits.items():
        flat |= {(split, what): facts[what] for what in ("items", "shards", "unlabelled")}
        flat |= {(split, f"classes of {level}"): count for level, count in facts["classes"].items()}
    return flat

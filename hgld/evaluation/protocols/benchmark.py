"""Embedded benchmarks: the splits of a dataset with embeddings and tables, which a protocol evaluates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from hgld.data.dataset import ShardDataset, open_dataset
from hgld.data.format import JUDGEMENTS, LISTS, MANIFEST
from hgld.errors import ConfigError, InputError
from hgld.evaluation.embedding_files import read_embeddings
from hgld.evaluation.evaluate import refuse_undefined
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.postprocess import Whitening
from hgld.evaluation.protocols import Protocol, at_finest, protocol_names, protocol_of
from hgld.evaluation.report import RetrievalReport
from hgld.evaluation.row_table import ALONE, RowTable, Sharing
from hgld.labels import Array

DISTRACTORS = "distractors"


@dataclass(frozen=True, eq=False)
class EmbeddedSplit:
    """The items of a split that could be embedded.

    Attributes:
        vectors: (N, D) embeddings, or (N, C) class scores if the protocol needs class scores.
        keys: (N,) text keys of the items.
        labels: (N, L) int64 class ids, finest level first, -1 if unknown.
        contents: function that returns the (N,) SHA-256 of the image files in hexadecimal; None: the hashes are
            unknown.
    """

    vectors: Array
    keys: pl.Series
    labels: np.ndarray
    contents: Callable[[], pl.Series] | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Benchmark:
    """The input of a protocol: embedded splits and their tables.

    Attributes:
        name: name of the dataset.
        levels: names of the levels, finest first.
        splits: the embedded splits by name.
        judgements: table of judged pairs of keys (query, item, verdict); None: the dataset has no judgements.
        lists: table of the keys in each named list (list, key); None: the dataset has no lists.
    """

    name: str
    levels: tuple[str, ...]
    splits: Mapping[str, EmbeddedSplit]
    judgements: pl.DataFrame | None = None
    lists: pl.DataFrame | None = None

    def __getitem__(self, split: str) -> EmbeddedSplit:
        return self.splits[split]

    @property
    def distractors(self) -> Array | None:
        """Return the embeddings of further gallery items that are relevant to no query."""
        split = self.splits.get(DISTRACTORS)
        return split.vectors if split is not None and len(split) else None

    @property
    def listed_keys(self) -> pl.DataFrame:
        """Return the table of the keys in each named list (list, key); empty if the dataset has no lists."""
        return pl.DataFrame(schema={"list": pl.String, "key": pl.String}) if self.lists is None else self.lists

    def with_distractors(self, side: EmbeddedSplit, share: Sharing | None) -> tuple[Array, np.ndarray]:
        """Return embeddings and labels of a split, followed by the distractors if there are any.

        Args:
            side: the split.
            share: processes that share the work; they join the embeddings in one file.

        Raises:
            InputError: the distractors have another dimension.
        """
        vectors, further = side.vectors, self.distractors
        if further is None:
            return vectors, side.labels
        if vectors.ndim != 2 or further.ndim != 2 or vectors.shape[1] != further.shape[1]:
            raise InputError(
                f"gallery embeddings have shape {tuple(vectors.shape)}, distractors {tuple(further.shape)}; expected "
                "two tables of the same dimension."
            )
        known = np.concatenate([side.labels, np.full((len(further), side.labels.shape[1]), -1)])
        if share is not None:
            made = RowTable((len(known), vectors.shape[1]), share.processes, share.folder)
            for begin, part in ((0, vectors), (len(vectors), further)):
                for items in share.blocks(len(part)):
                    made.write(begin + items, torch.as_tensor(part[items[0] : items[-1] + 1]))
            made.close()
            return made.read(), known
        if isinstance(vectors, np.ndarray) and isinstance(further, np.ndarray):
            # not more precise than a table of several processes, so that both give the same values
            return np.concatenate([vectors, further.astype(np.result_type(vectors, np.float32))]), known
        first = torch.as_tensor(vectors)
        return torch.cat([first, torch.as_tensor(further).to(first)]), known

    def listed(self, name: str, split: str) -> np.ndarray:
        """Return the positions of a list's keys in a split, in the order of the split.

        Raises:
            InputError: the list does not exist, or none of its items is in the split.
        """
        table = self.listed_keys
        keys = table.filter(pl.col("list") == name)["key"]
        places = np.flatnonzero(self[split].keys.is_in(keys.implode()).to_numpy())
        if not len(places):
            there = ", ".join(table["list"].unique().sort()) or "none"
            raise InputError(
                f"dataset {self.name}: no item of the split {split} is in the list {name!r} ({len(keys)} items); its "
                f"lists are {there}. Build the dataset again with its lists."
            )
        return places

    def listed_without_embedding(self) -> dict[str, int]:
        """Count, per list, the keys that no split has: images that could not be read or embedded."""
        keys = pl.concat([split.keys for split in self.splits.values()])
        lost = self.listed_keys.filter(~pl.col("key").is_in(keys.implode()))
        return dict(lost["list"].value_counts().sort("list").iter_rows())

    def judged(self, query: str, gallery: str, verdicts: Sequence[str]) -> tuple[list[list[np.ndarray]], int]:
        """Return the judgements of the items of a query split and a gallery split.

        Returns:
            the gallery positions for every query and verdict, and the number of judgements that are ignored because an
            image could not be embedded.

        Raises:
            InputError: a verdict is not one of ``verdicts``.
        """
        assert self.judgements is not None  # Protocol.check raises an error for a benchmark without judgements
        odd = self.judgements.filter(~pl.col("verdict").is_in(verdicts))
        if len(odd):
            raise InputError(
                f"dataset {self.name}: judgements.parquet has the verdict {odd['verdict'][0]!r} ({len(odd)} rows); "
                f"expected {', '.join(verdicts)}. Does it belong to another protocol?"
            )
        places = [
            pl.DataFrame({name: self[split].keys, f"{name}_at": np.arange(len(self[split]))})
            for name, split in (("query", query), ("item", gallery))
        ]
        found = self.judgements.join(places[0], on="query").join(places[1], on="item")
        grouped = {key: part["item_at"].sort().to_numpy() for key, part in found.group_by("query_at", "verdict")}
        none = np.empty(0, np.int64)
        rows = [[grouped.get((row, verdict), none) for verdict in verdicts] for row in range(len(self[query]))]
        return rows, len(self.judgements) - len(found)

    @classmethod
    def of(cls, dataset: ShardDataset, splits: Mapping[str, EmbeddedSplit]) -> "Benchmark":
        """Return the benchmark of a dataset (all of its items) and its embedded splits."""
        return cls(dataset.manifest.name, dataset.levels, splits, dataset.judgements, dataset.listed)

    def processed(
        self, *, distractors: str | Path | None, whitening: str | Path | None, share: Sharing | None = None
    ) -> tuple["Benchmark", dict[str, Any]]:
        """Replace the distractors by the embeddings of a file, then whiten all embeddings.

        Args:
            distractors: file of embeddings; None: keep the distractors of the benchmark.
            whitening: file of a :class:`hgld.evaluation.postprocess.Whitening`; None: do not whiten.
            share: processes that share the work.

        Returns:
            the benchmark, and report settings that list the files and the whitening.
        """
        named = {"distractors": distractors, "whitening": whitening}
        stated: dict[str, Any] = {"files": {role: Path(path).name for role, path in named.items() if path is not None}}
        splits = dict(self.splits)
        if distractors is not None:
            vectors = read_embeddings(distractors)
            keys = pl.Series([f"distractor-{i}" for i in range(len(vectors))], dtype=pl.String)
            splits[DISTRACTORS] = EmbeddedSplit(vectors, keys, np.full((len(vectors), len(self.levels)), -1))
        if whitening is not None:
            loaded = Whitening.load(whitening)
            stated["whitening"] = loaded.describe()
            together = share or ALONE
            splits = {n: replace(one, vectors=loaded.apply(one.vectors, together)) for n, one in splits.items()}
        return replace(self, splits=splits), stated


def open_benchmark(place: str, protocol: str = "") -> tuple[str, ShardDataset]:
    """Open a dataset and check that its protocol can be evaluated.

    Args:
        place: directory or URL of the dataset.
        protocol: name of the protocol; empty: the protocol in ``dataset.json``.

    Returns:
        the protocol's name, and all items of the dataset.

    Raises:
        ConfigError: the dataset names no protocol, or an unknown protocol.
        InputError: the dataset cannot be read, or lacks a split or table that the protocol needs.
    """
    dataset = open_dataset(place)
    return checked_protocol(dataset, place, protocol), dataset


def checked_protocol(dataset: ShardDataset, place: str, protocol: str = "") -> str:
    """Return the name of a dataset's protocol after checking that the dataset has what the protocol needs.

    Args:
        dataset: all items of a dataset, or the items of a split.
        place: directory or URL of the dataset, for messages.
        protocol: name of the protocol; empty: the protocol in ``dataset.json``.

    Raises:
        ConfigError: the dataset names no protocol, or an unknown protocol.
        InputError: the dataset lacks a split or table that the protocol needs.
    """
    name = protocol or dataset.manifest.protocol
    if not name:
        raise ConfigError(
            f"{place}: its {MANIFEST} names no protocol. Choose splits to evaluate (--split S, or --query-split Q and "
            f"--gallery-split G; there are {', '.join(dataset.manifest.splits)}), or a protocol (--protocol NAME; "
            f"there are {', '.join(protocol_names())})."
        )
    tables = [file.partition(".")[0] for file in (JUDGEMENTS, LISTS) if file in dataset.manifest.files]
    protocol_of(name).check(name, place, filled_splits(dataset), tables, dataset.levels)
    return name


def open_searched(place: str) -> ShardDataset:
    """Open the gallery of a dataset's protocol; all items if the dataset names no protocol or an unknown protocol.

    Args:
        place: directory or URL of the dataset.

    Raises:
        InputError: the dataset cannot be read.
    """
    dataset = open_dataset(place)
    name = dataset.manifest.protocol
    searched = protocol_of(name).searched(filled_splits(dataset)) if name in protocol_names() else ()
    if len(searched) == 1:
        return open_dataset(place, searched[0])
    return dataset.select(np.flatnonzero(dataset.frame["split"].is_in(searched))) if searched else dataset


def filled_splits(dataset: ShardDataset) -> list[str]:
    """Return the names of a dataset's splits that hold items."""
    return [split for split, facts in dataset.manifest.splits.items() if facts["items"]]


def evaluate_protocol(
    name: str,
    benchmark: Benchmark,
    *,
    metrics: Sequence[str] | None = None,
    options: EvaluationOptions,
) -> RetrievalReport:
    """Evaluate a benchmark with a protocol.

    Args:
        name: name of the protocol.
        benchmark: the benchmark with embedded splits.
        metrics: names of metrics; None: the metrics of the protocol.
        options: options of ranking; the field ``metrics`` is ignored.

    Returns:
        the report; its settings state the protocol, the dataset and the excluded items.

    Raises:
        ConfigError: the protocol is unknown, or it does not support a metric.
        InputError: the benchmark lacks what the protocol needs, or no value is defined.
    """
    protocol = protocol_of(name)
    tables = [table for table in ("judgements", "lists") if getattr(benchmark, table) is not None]
    filled = [split for split, items in benchmark.splits.items() if len(items)]
    protocol.check(name, f"dataset {benchmark.name}", filled, tables, benchmark.levels)
    chosen = asked_metrics(name, protocol, metrics, benchmark.levels)
    if strange := [split for split in filled if split not in (*protocol.splits, *protocol.further)]:
        raise ConfigError(
            f"the protocol {name} does not use the splits {', '.join(strange)}. Omit them, or choose another protocol."
        )
    report = protocol.function()(benchmark, replace(options, metrics=chosen))
    refuse_undefined(report, f"dataset {benchmark.name}, protocol {name}")
    stated: dict[str, Any] = {"protocol": name, "dataset": benchmark.name}
    if "lists" in protocol.tables and (lost := benchmark.listed_without_embedding()):
        stated["listed_without_embedding"] = lost
    printed = [value for value in at_finest(protocol.printed, benchmark.levels) if value in report.values]
    return replace(report, settings=report.settings | stated | {"printed": printed})


def asked_metrics(
    name: str, protocol: Protocol, metrics: Sequence[str] | None, levels: Sequence[str]
) -> tuple[str, ...]:
    """Return the names of the metrics to compute with a protocol.

    Raises:
        ConfigError: users cannot choose the metrics of this protocol.
    """
    if metrics is None or (not protocol.metrics and not metrics):
        return at_finest(protocol.metrics, levels)
    if not protocol.metrics:
        raise ConfigError(
            f"the protocol {name} measures only {', '.join(protocol.printed)}. Omit --metrics, or choose splits to "
            "evaluate with other metrics (--split, or --query-split and --gallery-split)."
        )
    return tuple(metrics)

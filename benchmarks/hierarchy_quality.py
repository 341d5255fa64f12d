"""Quality of groupings of names: ARI and NMI against known groupings, and scores of the top level.

    python benchmarks/hierarchy_quality.py --data DIR --encoder lexical --encoder sbert:PATH

DIR holds ``gldv2_washington_landmarks``, ``taxonomies`` and ``grocery``, each with a ``labels.csv``. Names with several
groups are excluded. Values for the true number of groups are means over seeds with standard deviations. The tables are
Markdown.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from sklearn.cluster import AgglomerativeClustering, KMeans
from sklearn.metrics import adjusted_rand_score, f1_score, normalized_mutual_info_score

from hgld.pipelines.hierarchy.config import ClusterConfig
from hgld.pipelines.hierarchy.encoders.registry import Encoder, make_encoder
from hgld.pipelines.hierarchy.groups.cluster import cluster_names
from hgld.pipelines.hierarchy.groups.evidence import Block, weigh
from hgld.pipelines.hierarchy.groups.toplevel import HUMAN_MADE, MARGIN, NATURAL, Anchors, class_shares, text_rows

SETS = (  # name, folder, column of names, column of groups
    ("washington", "gldv2_washington_landmarks", "label", "mid"),
    ("geonames", "taxonomies/geonames", "label", "mid"),
    ("places365", "taxonomies/places365", "label", "mid"),
    ("cub200", "taxonomies/cub200", "label", "mid"),
    ("schemaorg mid", "taxonomies/schemaorg_places", "label", "mid"),
    ("schemaorg top", "taxonomies/schemaorg_places", "label", "top"),
    ("overture mid", "taxonomies/overture_places", "label", "mid"),
    ("overture top", "taxonomies/overture_places", "label", "top"),
    ("grocery", "grocery", "fine", "coarse"),
)


@dataclass(frozen=True)
class NameSet:
    """Names of a dataset with their groups and optional descriptions."""

    name: str
    names: list[str]
    groups: list[str]
    descriptions: list[str] | None

    @property
    def number(self) -> int:
        return len(set(self.groups))


def read_set(data: Path, name: str, folder: str, label: str, column: str) -> NameSet:
    table = pl.read_csv(data / folder / "labels.csv", infer_schema=False)
    table = table.filter(pl.col(column).fill_null("") != "", ~pl.col(column).fill_null("").str.contains(r"\|"))
    table = table.with_columns(pl.col(label).str.replace_all("-", " ") if label == "fine" else pl.col(label))
    table = table.unique(label, keep="first").sort(label)
    said = table["description"].fill_null("").to_list() if "description" in table.columns else None
    return NameSet(name, table[label].to_list(), table[column].to_list(), said)


# -- variants ------------------------------------------------------------------------------------------------------

Rows = Callable[["Spaces"], np.ndarray]
Grouping = Callable[[np.ndarray, list[str], int, int], np.ndarray]  # rows, names, groups, seed -> (N,) labels


class Spaces:
    """Vectors of a dataset's names from the encoder, from wording, and from all evidence."""

    def __init__(self, names: NameSet, encoder: str) -> None:
        self.set = names
        lexical = make_encoder("lexical", names=names.names).encode(names.names)
        made = make_encoder(encoder, names=names.names)
        self.text = made.encode(names.names)
        self.wording = None if encoder.startswith("lexical") else lexical
        self.descriptions = None
        if names.descriptions is not None and not encoder.startswith("lexical"):
            pairs = zip(names.descriptions, names.names, strict=True)
            self.descriptions = made.encode([said or name for said, name in pairs])

    def blocks(self, descriptions: bool) -> list[Block]:
        found = [Block.of("text", self.text)]
        if self.wording is not None:
            found.append(Block.of("wording", self.wording, is_form=True))
        if descriptions and self.descriptions is not None:
            found.append(Block.of("descriptions", self.descriptions))
        return found

    def evidence(self, descriptions: bool = True) -> np.ndarray:
        return weigh(self.blocks(descriptions), groups=self.set.number).joint()


def kmeans(rows: np.ndarray, names: list[str], groups: int, seed: int) -> np.ndarray:
    n_init: Any = 10  # the type inferred from scikit-learn's default does not allow numbers
    return np.asarray(KMeans(groups, n_init=n_init, random_state=seed).fit(rows).labels_)


def ward(rows: np.ndarray, names: list[str], groups: int, seed: int) -> np.ndarray:
    return AgglomerativeClustering(groups, linkage="ward").fit_predict(rows)


def ours(rows: np.ndarray, names: list[str], groups: int, seed: int) -> np.ndarray:
    return cluster_names(rows, ClusterConfig(groups=groups, seed=seed)).groups


VARIANTS: dict[str, tuple[Rows, Grouping]] = {
    "encoder, k-means": (lambda s: s.text, kmeans),
    "encoder, Ward": (lambda s: s.text, ward),
    "encoder, hgld": (lambda s: s.text, ours),
    "evidence without descriptions, hgld": (lambda s: s.evidence(False), ours),
    "evidence, hgld": (lambda s: s.evidence(), ours),
}


def scores(space: Spaces, variant: str, seeds: int) -> np.ndarray:
    """Return ARI and NMI per seed, (seeds, 2)."""
    rows, grouping = VARIANTS[variant][0](space), VARIANTS[variant][1]
    found = [grouping(rows, space.set.names, space.set.number, seed) for seed in range(seeds)]
    measures = (adjusted_rand_score, normalized_mutual_info_score)
    return np.array([[measure(space.set.groups, labels) for measure in measures] for labels in found])


def quality(spaces: list[Spaces], seeds: int) -> Iterator[str]:
    heads = [f"{space.set.name} ({len(space.set.names)}, {space.set.number})" for space in spaces]
    yield f"| rows and clustering | {' | '.join(heads)} | mean |"
    yield f"|---|{'---|' * (len(spaces) + 1)}"
    for variant in VARIANTS:
        found = np.array([scores(space, variant, seeds) for space in spaces])  # (datasets, seeds, 2 scores)
        cells = [_cell(each.mean(axis=0), each.std(axis=0)) for each in found]
        spread = found.mean(axis=0).std(axis=0)
        yield f"| {variant} | {' | '.join(cells)} | {_cell(found.mean(axis=(0, 1)), spread)} |"


def _cell(values: np.ndarray, spread: np.ndarray | None = None) -> str:
    if spread is None or not (spread >= 0.005).any():
        return f"{values[0]:.2f} / {values[1]:.2f}"
    return f"{values[0]:.2f} ± {spread[0]:.2f} / {values[1]:.2f} ± {spread[1]:.2f}"


# -- classes of the top level ---------------------------------------------------------------------------------------

# printed name, folder, classes to merge ("": exclude), how a class is described to the encoder (anchors or names)
TOPS = (
    ("washington, natural / human-made", "gldv2_washington_landmarks", {}, "anchors"),
    ("geonames, natural / human-made", "taxonomies/geonames", {"other": ""}, "anchors"),
    (
        "places365, indoor / outdoor", "taxonomies/places365",
        {"outdoor manmade": "outdoor", "outdoor natural": "outdoor"}, "names",
    ),
    ("schemaorg, its 10", "taxonomies/schemaorg_places", {}, "names"),
    ("overture, its 22", "taxonomies/overture_places", {}, "names"),
)  # fmt: skip
MARGINS = (0.0, 0.1, MARGIN, 0.3, 0.5)


def tops(data: Path, encoder: str) -> Iterator[str]:
    heads = [f"{margin}" + (" (default)" if margin == MARGIN else "") for margin in MARGINS]
    yield f"| coverage / error / macro-F1 at a margin of | always the more frequent | {' | '.join(heads)} |"
    yield f"|---|---:|{'---|' * len(heads)}"
    for title, folder, merged, texts in TOPS:
        table = (
            pl.read_csv(data / folder / "labels.csv", infer_schema=False).unique("label", keep="first").sort("label")
        )
        table = table.with_columns(pl.col("top").fill_null("").replace(merged))
        table = table.filter(pl.col("top") != "", ~pl.col("top").str.contains(r"\|"))
        names, truth = table["label"].to_list(), np.array(table["top"].to_list())
        made = make_encoder(encoder, names=names)
        classes, known = _texts(made, texts, truth)
        rows = made.encode(names)
        evidence = weigh([Block.of("text", rows), *_wording(encoder, names)], groups=len(classes))
        shares = class_shares(rows, known, evidence.joint(form=0))
        most = max(classes, key=lambda name: int((truth == name).sum()))
        cells = [f"{_macro(truth, np.full(len(truth), most)):.3f}"]
        for margin in MARGINS:
            lead = -np.diff(-np.sort(-shares, axis=1)[:, :2], axis=1)[:, 0]
            decided = np.where(lead >= margin, shares.argmax(axis=1), -1)
            told = np.array([classes[place] if place >= 0 else "" for place in decided])
            on = decided >= 0
            wrong = float((told[on] != truth[on]).mean()) if on.any() else 0.0
            cells.append(f"{on.mean():.2f} / {wrong:.2f} / {_macro(truth, told):.3f}")
        yield f"| {title} | {' | '.join(cells)} |"


def _wording(encoder: str, names: list[str]) -> list[Block]:
    if encoder.startswith("lexical"):
        return []
    return [Block.of("wording", make_encoder("lexical", names=names).encode(names), is_form=True)]


def _texts(encoder: Encoder, texts: str, truth: np.ndarray) -> tuple[list[str], list[np.ndarray]]:
    said = Anchors.read().prompts if texts == "anchors" else {name: [name] for name in sorted(set(truth.tolist()))}
    classes = [NATURAL, HUMAN_MADE] if texts == "anchors" else sorted(said)
    return classes, [text_rows(encoder, said[name]) for name in classes]


def _macro(truth: np.ndarray, told: np.ndarray) -> float:
    """Return the macro-F1 over the existing classes; an undecided name counts as a miss of its class."""
    of_none: Any = 0  # the type inferred from scikit-learn's default does not allow numbers
    labels = sorted(set(truth.tolist()))
    return float(f1_score(truth, told, average="macro", labels=labels, zero_division=of_none))


PARTS = ("quality", "tops")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("HGLD_DATA"), help="folder of the datasets; default: HGLD_DATA"
    )
    parser.add_argument(
        "--encoder", action="append", help="encoder of build-hierarchy; again for more; default: lexical"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--part", choices=PARTS, action="append", help="default: all")
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data is needed, or HGLD_DATA")
    parts = options.part or PARTS
    sets = [read_set(Path(options.data), *one) for one in SETS]
    for spec in options.encoder or ["lexical"]:
        print(f"\n### {make_encoder(spec, names=['x']).name}\n")
        for part in parts:
            if part == "quality":
                lines = quality([Spaces(one, spec) for one in sets], options.seeds)
            else:
                lines = tops(Path(options.data), spec)
            for line in lines:
                print(line, flush=True)
            print()


if __name__ == "__main__":
    main()

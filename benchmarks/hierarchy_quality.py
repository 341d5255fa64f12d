"""Quality of groupings of names: ARI and NMI against known groupings, at the true number of groups.

    python benchmarks/hierarchy_quality.py --data DIR --encoder lexical --encoder sbert:PATH

DIR holds ``gldv2_washington_landmarks`` and ``taxonomies``, each with a ``labels.csv`` of the columns label and mid.
Every figure is the median over seeds; the table is Markdown.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from sklearn.cluster import AgglomerativeClustering, KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.preprocessing import normalize

from hgld.pipelines.hierarchy.clustering import cluster_names
from hgld.pipelines.hierarchy.config import ClusterConfig
from hgld.pipelines.hierarchy.encoders.lexical import LexicalEncoder, NounKinds
from hgld.pipelines.hierarchy.encoders.registry import make_encoder

SETS = ("gldv2_washington_landmarks", "taxonomies/geonames", "taxonomies/cub200", "taxonomies/places365")
Grouping = Callable[[np.ndarray, list[str], int, int], np.ndarray]  # rows, names, groups, seed -> (N,) labels


def names_and_groups(folder: Path) -> tuple[list[str], list[str]]:
    """Return the distinct names of a set that have a group, and the first group of each."""
    table = pl.read_csv(folder / "labels.csv").filter(pl.col("mid").fill_null("") != "").unique("label", keep="first")
    table = table.sort("label")
    return table["label"].to_list(), table["mid"].to_list()


def tfidf(names: list[str]) -> np.ndarray:
    features = TfidfVectorizer(ngram_range=(1, 2)).fit_transform(names)
    return np.asarray(normalize(TruncatedSVD(min(100, len(names) - 1), random_state=0).fit_transform(features)))


def without_lexicon(names: list[str]) -> np.ndarray:
    return LexicalEncoder(names, NounKinds({})).encode(names)


def encoded(spec: str, names: list[str]) -> np.ndarray:
    return make_encoder(spec, names=names).encode(names)


PLAIN = {"TF-IDF + SVD": tfidf, "lexical without its lexicon": without_lexicon}


def kmeans(rows: np.ndarray, names: list[str], groups: int, seed: int) -> np.ndarray:
    n_init: Any = 10  # the type inferred from scikit-learn's default does not allow numbers
    return np.asarray(KMeans(groups, n_init=n_init, random_state=seed).fit(rows).labels_)


def ward(rows: np.ndarray, names: list[str], groups: int, seed: int) -> np.ndarray:
    return AgglomerativeClustering(groups, linkage="ward").fit_predict(rows)


def ours(rows: np.ndarray, names: list[str], groups: int, seed: int) -> np.ndarray:
    return cluster_names(rows, names, config=ClusterConfig(groups=groups, seed=seed)).groups


def score(rows: np.ndarray, names: list[str], truth: list[str], grouping: Grouping, seeds: int) -> str:
    found = [grouping(rows, names, len(set(truth)), seed) for seed in range(seeds)]
    ari = np.median([adjusted_rand_score(truth, labels) for labels in found])
    nmi = np.median([normalized_mutual_info_score(truth, labels) for labels in found])
    return f"{ari:.2f} / {nmi:.2f}"


def table(data: Path, encoders: list[str], seeds: int) -> Iterator[str]:
    sets = {folder: names_and_groups(data / folder) for folder in SETS}
    heads = (f"{Path(f).name} ({len(n)} names, {len(set(t))} groups)" for f, (n, t) in sets.items())
    yield f"| names as | grouped by | {' | '.join(heads)} |"
    yield f"|---|---|{'---|' * len(sets)}"
    for shown, encode in {**PLAIN, **{_shown(spec): partial(encoded, spec) for spec in encoders}}.items():
        spaces = {folder: encode(names) for folder, (names, _) in sets.items()}
        for title, grouping in {"k-means": kmeans, "Ward": ward, "hgld": ours}.items():
            cells = (score(spaces[folder], *sets[folder], grouping, seeds) for folder in sets)
            yield f"| {shown} | {title} | {' | '.join(cells)} |"


def _shown(spec: str) -> str:
    return make_encoder(spec, names=["x"]).name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("HGLD_DATA"), help="default: HGLD_DATA")
    parser.add_argument("--encoder", action="append", help="as of build-hierarchy; again for more (default: lexical)")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data is needed, or HGLD_DATA")
    for line in table(Path(options.data), options.encoder or ["lexical"], options.seeds):
        print(line, flush=True)


if __name__ == "__main__":
    main()

"""Quality of groupings of names: ARI and NMI against known groupings.

    python benchmarks/hierarchy_quality.py --data DIR --encoder lexical --encoder sbert:PATH

DIR holds ``gldv2_washington_landmarks``, ``taxonomies`` and ``grocery``, each with a ``labels.csv``. Names with several
groups are excluded. Every method gets the true number of groups; values are means over seeds with standard deviations.
The tables are Markdown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measured import head, row  # modules beside this script
from name_sets import SETS, names_parser, rows_of
from sklearn.cluster import AgglomerativeClustering, KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from hgld.pipelines.hierarchy.config import ClusterConfig
from hgld.pipelines.hierarchy.encoders.registry import make_encoder
from hgld.pipelines.hierarchy.groups.cluster import cluster_names
from hgld.pipelines.hierarchy.groups.evidence import Block, weigh


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


def read_set(data: Path, name: str) -> NameSet:
    """Read a dataset; a name that occurs twice has its first group."""
    _, label, level = SETS[name]
    first: dict[str, Mapping[str, str]] = {}
    for told in rows_of(data, name):
        first.setdefault(told[label].replace("-", " ") if label == "fine" else told[label], told)
    names = sorted(first)
    said = [first[name]["description"] for name in names if "description" in first[name]]
    return NameSet(name, names, [first[name][level] for name in names], said or None)


def rows_by_encoder(names: NameSet, spec: str) -> dict[str, np.ndarray]:
    """Return the rows of names from the encoder, and from all evidence."""
    encoder = make_encoder(spec, names=names.names)
    text = encoder.encode(names.names)
    blocks = [Block.of("text", text)]
    if not spec.startswith("lexical"):
        wording = make_encoder("lexical", names=names.names).encode(names.names)
        blocks.append(Block.of("wording", wording, is_form=True))
        if names.descriptions is not None:
            pairs = zip(names.descriptions, names.names, strict=True)
            blocks.append(Block.of("descriptions", encoder.encode([said or name for said, name in pairs])))
    return {"encoder": text, "evidence": weigh(blocks, groups=names.number).joint()}


def kmeans(rows: np.ndarray, groups: int, seed: int) -> np.ndarray:
    n_init: Any = 10  # the type inferred from scikit-learn's default does not allow numbers
    return np.asarray(KMeans(groups, n_init=n_init, random_state=seed).fit(rows).labels_)


def ward(rows: np.ndarray, groups: int, seed: int) -> np.ndarray:
    return AgglomerativeClustering(groups, linkage="ward").fit_predict(rows)


def ours(rows: np.ndarray, groups: int, seed: int) -> np.ndarray:
    return cluster_names(rows, ClusterConfig(groups=groups, seed=seed)).groups


METHODS = {"k-means": kmeans, "Ward": ward, "hgld": ours}
VARIANTS = (("encoder", "k-means"), ("encoder", "Ward"), ("encoder", "hgld"), ("evidence", "hgld"))


def quality(sets: Sequence[NameSet], spec: str, seeds: int) -> Iterator[str]:
    """Yield the lines of a table: ARI / NMI by rows and method."""
    spaces = [rows_by_encoder(names, spec) for names in sets]
    yield head("rows and clustering", *(f"{of.name} ({len(of.names)}, {of.number})" for of in sets), "mean")
    for rows, method in VARIANTS:
        found = np.array(
            [
                [scores(of.groups, METHODS[method](space[rows], of.number, seed)) for seed in range(seeds)]
                for of, space in zip(sets, spaces, strict=True)
            ]
        )  # (datasets, seeds, 2 scores)
        cells = [_cell(each.mean(axis=0), each.std(axis=0)) for each in found]
        spread = found.mean(axis=0).std(axis=0)
        yield row([f"{rows}, {method}", *cells, _cell(found.mean(axis=(0, 1)), spread)])


def scores(truth: Sequence[str], labels: np.ndarray) -> list[float]:
    return [float(measure(truth, labels)) for measure in (adjusted_rand_score, normalized_mutual_info_score)]


def _cell(values: np.ndarray, spread: np.ndarray) -> str:
    if not (spread >= 0.005).any():
        return f"{values[0]:.2f} / {values[1]:.2f}"
    return f"{values[0]:.2f} ± {spread[0]:.2f} / {values[1]:.2f} ± {spread[1]:.2f}"


def main() -> None:
    options = names_parser(__doc__, SETS, seeds=5).parse_args()
    sets = [read_set(options.data, name) for name in options.sets.split(",")]
    for spec in options.encoder or ["lexical"]:
        print(f"\n### {make_encoder(spec, names=['x']).name}\n")
        for line in quality(sets, spec, options.seeds):
            print(line, flush=True)


if __name__ == "__main__":
    main()

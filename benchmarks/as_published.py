"""Compare builds as published with a known grouping, with and without the decisions of two reviewers.

    python benchmarks/as_published.py --data DIR --work DIR --encoder lexical --encoder sbert:FOLDER > as_published.csv

DIR has ``gldv2_washington_landmarks``: 844 landmarks of Google Landmarks v2 with their scraped names, grouped by hand.
The second dataset is the synthetic release of the rehearsal, whose landmarks are scraped from fake wikis on 127.0.0.1,
with --route api, because the fakes have no infobox for most landmarks.
Every build is ``hgld build-hierarchy --as-published`` with the number of groups of the known grouping, once with
k-means as published and once with hgld's default, Ward's linkage. CLIP's weights are not needed: --encoder replaces
them.

Two simulated reviewers decide every name, or the quarter of the names whose placement the build finds least certain.
They know the known grouping, but put 5 or 10% of the names into a random other group. A third person, who makes as many
mistakes, decides where the two disagree. The rows are means over seeds, with standard deviations. ``right`` is the
share of the names in the group that matches their known group, one to one. --scale is the synthetic release's scale.
"""

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
import polars as pl
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

ROOT = Path(__file__).resolve().parent.parent
# lets imports find hgld if it is not installed, and the tests' fake wikis
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from measured import make_parser, match_groups, run_hgld  # noqa: E402
from rehearsed.release import COMMONS  # noqa: E402
from rehearsed.servers import Wikis  # noqa: E402
from rehearsed.world import SETS, World  # noqa: E402

WHEN = "2026-01-01T00:00:00Z"
COLUMNS = ("dataset", "names", "groups", "encoder", "method", "reviewers", "seeds")
SCORES = ("ARI", "NMI", "right")
REVIEWS = ((0.25, 0.05), (0.25, 0.1), (1.0, 0.05), (1.0, 0.1))  # shares of reviewed names and of mistakes


@dataclass(frozen=True)
class Dataset:
    """Landmarks with a known grouping.

    Attributes:
        name: name of the dataset.
        flags: flags of the build that give its landmarks.
        known: split, landmark_id and group of the landmarks whose group is known.
    """

    name: str
    flags: list[str]
    known: pl.DataFrame


def washington(data: Path, work: Path) -> Dataset:
    """Return the real landmarks; their names are scraped already."""
    table = pl.read_csv(data / "gldv2_washington_landmarks" / "landmarks.csv", infer_schema=False)
    table.select("landmark_id", "category", "supercategory").write_csv(work / "washington.csv")
    known = table.filter(pl.col("hierarchical_label") != "unclassified")
    known = known.select(split=pl.lit("train"), landmark_id="landmark_id", group="hierarchical_label")
    return Dataset("844 landmarks of Washington", [f"--names=train={work / 'washington.csv'}"], known)


def synthetic(world: World, wikis: str, work: Path) -> Dataset:
    """Return the landmarks of the rehearsal's release; the build scrapes their names."""
    flags = [f"--commons-url={wikis}", f"--wikidata-url={wikis}", "--rate=100000", "--route=api"]
    known = []
    for split in SETS:
        own = world.landmarks[split]
        urls = [COMMONS + quote(world.title(int(place)).replace(" ", "_")) for place in own.place]
        ids = [str(number) for number in range(len(urls))]
        pl.DataFrame({"landmark_id": ids, "category": urls}).write_csv(work / f"{split}.csv")
        flags.append(f"--landmarks={split}={work / f'{split}.csv'}")
        groups = [world.groups[world.names[name].group][0] if name >= 0 else None for name in own.name]
        known.append(pl.DataFrame({"split": split, "landmark_id": ids, "group": groups}).drop_nulls())
    return Dataset(f"synthetic release, {sum(map(len, known)):,} landmarks", flags, pl.concat(known))


def build(dataset: Dataset, out: Path, flags: list[str]) -> pl.DataFrame:
    """Build a hierarchy; return name, label, and the known group of most of the name's landmarks."""
    run_hgld("build-hierarchy", *dataset.flags, "--as-published", "--out", out, *flags)
    landmarks = pl.read_parquet(out / "stages" / "clean" / "landmarks.parquet").with_columns(
        pl.col("landmark_id").cast(pl.String)
    )
    counted = landmarks.join(dataset.known, on=["split", "landmark_id"]).group_by("name", "group").len()
    most = counted.sort("name", "len", "group", descending=[False, True, False]).unique("name", keep="first")
    names = pl.read_parquet(out / "stages" / "review" / "names.parquet").select("name", "label", "confidence")
    return names.join(most.select("name", "group"), on="name").sort("name")


def match(names: pl.DataFrame) -> dict[str, str]:
    """Match the known groups one to one to labels of the build."""
    return match_groups(Counter(names.select("group", "label").iter_rows()))


def score(names: pl.DataFrame) -> dict[str, float]:
    """Return ARI, NMI and the share of right names."""
    labels, groups = names["label"].to_list(), names["group"].to_list()
    home = match(names)
    right = np.mean([home.get(group) == label for label, group in zip(labels, groups, strict=True)])
    return {
        "ARI": float(adjusted_rand_score(groups, labels)),
        "NMI": float(normalized_mutual_info_score(groups, labels)),
        "right": float(right),
    }


def decide(said: Mapping[str, str], names: pl.DataFrame, homes: Mapping[str, str], who: str, file: Path) -> None:
    """Write the decisions of a person who says a group for each name; groups without a label in the build are new."""
    now = dict(names.select("name", "label").iter_rows())
    decisions = []
    for group in sorted(set(said.values())):
        to, members = homes.get(group, f"{group} (new)"), sorted(name for name, own in said.items() if own == group)
        stay = [name for name in members if now[name] == to]
        moved = [name for name in members if now[name] != to]
        decisions += [{"action": "accept", "group": to, "names": stay}] if stay else []
        decisions += [{"action": "move" if group in homes else "new", "names": moved, "to": to}] if moved else []
    signed = [decision | {"who": who, "when": WHEN} for decision in decisions]
    role = "adjudicator" if who == "eve" else "annotator"
    file.write_text(json.dumps({"schema_version": 1, "role": role, "decisions": signed}), encoding="utf-8")


def review(names: pl.DataFrame, share: float, mistakes: float, rng: np.random.Generator, folder: Path) -> list[str]:
    """Write the decisions of two reviewers and of a third person; return the build's flags for them."""
    groups, homes = sorted(set(names["group"])), match(names)
    shown = names.sort("confidence", "name").head(round(share * len(names)))
    truth = dict(shown.select("name", "group").iter_rows())

    def says() -> dict[str, str]:
        wrong = rng.random(len(truth)) < mistakes
        others = rng.integers(1, len(groups), len(truth))
        return {
            name: groups[(groups.index(group) + int(other) * int(is_wrong)) % len(groups)]
            for (name, group), is_wrong, other in zip(truth.items(), wrong, others, strict=True)
        }

    ada, bob, eve = says(), says(), says()
    contested = {name: group for name, group in eve.items() if ada[name] != bob[name]}
    files = []
    for who, said in (("ada", ada), ("bob", bob), ("eve", contested)):
        if said:
            files.append(folder / f"{who}.yaml")
            decide(said, names, homes, who, files[-1])
    return [f"--decisions={file}" for file in files]


def rows(dataset: Dataset, encoder: str, work: Path, seeds: int) -> Iterator[list[object]]:
    """Yield a row per method and review (share of the names, share of mistakes); None: a build without reviewers."""
    groups = dataset.known["group"].n_unique()
    for method in ("kmeans", "ward"):
        names = pl.DataFrame()
        found: dict[tuple[float, float] | None, list[dict[str, float]]] = {one: [] for one in (None, *REVIEWS)}
        for seed in range(seeds):
            flags = ["--encoder", encoder, "--method", method, "--groups", str(groups), "--seed", str(seed)]
            names = build(dataset, work / "build", flags)
            found[None].append(score(names))
            for share, mistakes in REVIEWS:
                files = review(names, share, mistakes, np.random.default_rng([seed, round(mistakes * 1000)]), work)
                found[share, mistakes].append(score(build(dataset, work / "build", [*flags, *files])))
        for one, scores in found.items():
            who = "none" if one is None else f"two, {one[0]:.0%} of the names, {one[1]:.0%} mistakes"
            figures = {name: [one[name] for one in scores] for name in SCORES}
            shown = [f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}" for values in figures.values()]
            yield [dataset.name, len(names), groups, encoder.partition(":")[0], method, who, seeds, *shown]


def main() -> None:
    parser = make_parser(__doc__, data=Path, work=Path, seeds=5, scale=0.01)
    parser.add_argument("--encoder", action="append", required=True)
    told = parser.parse_args()
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow([*COLUMNS, *SCORES])
    world = World(told.scale, 0)
    with Wikis(world) as wikis:
        told.work.mkdir(parents=True, exist_ok=True)
        for dataset in (washington(told.data, told.work), synthetic(world, wikis.url, told.work)):
            work = told.work / dataset.name.partition(",")[0].replace(" ", "-")
            for encoder in told.encoder:
                for row in rows(dataset, encoder, work, told.seeds):
                    out.writerow(row)
                    sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Test the error probabilities of names in groups against known groupings, leaving one taxonomy out at a time.

    python benchmarks/hierarchy_doubt.py --data DIR --encoder lexical --encoder sbert:PATH

DIR has the datasets of names. The program groups each dataset with each encoder: into the reference's number of groups,
half as many, twice as many, and the number that hgld chooses. It also puts the names into predefined groups
(``--into``): into all reference groups, and into two thirds of them, without seeds and with five seeds per group.

Without predefined groups, a name is in the wrong group if its reference group is not the most frequent reference group
there. With predefined groups, it is wrong if it is not in its reference group, or, if that group was excluded, not in
"none of these"; seeds are not counted. A model predicts the probability of an error; it is fitted on all other
taxonomies, without seeds and without names that equal a group. Figures are for the reference's number of groups.

    ... --shown 5   prints the accuracy of ``--into`` on the other names if five names of each group are its seeds: by
                    the nearest mean row of a group's texts, by a logistic regression on the encoder's rows, without
                    and with the words of names, by hgld

    ... --fit       fits the model on all datasets and writes pipelines/hierarchy/groups/doubt.yaml
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from measured import head, row
from name_sets import SETS, names_parser, rows_of
from scipy.optimize import minimize
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from hgld.pipelines.hierarchy.config import ClusterConfig
from hgld.pipelines.hierarchy.encoders.registry import make_encoder
from hgld.pipelines.hierarchy.groups import doubt
from hgld.pipelines.hierarchy.groups.cluster import cluster_names
from hgld.pipelines.hierarchy.groups.evidence import TEXT, WORDING, Block, Evidence, add_words, weigh
from hgld.pipelines.hierarchy.groups.given import GivenGroup, GivenGroups, embed_examples, place_names
from hgld.pipelines.hierarchy.names.clean import name_key
from hgld.pipelines.hierarchy.unit_rows import sums, unit

NUMBERS = (1.0, 0.5, 2.0, 0.0)  # number of groups as a multiple of the reference's; 0: chosen from the data
GIVEN = (1.0, 2 / 3)  # shares of the reference groups that are predefined
SEEDS = (0, 5)  # seeds per predefined group
ALONE = 0.1  # error label of a name that is alone in its group while most of its reference group is in another group
PENALTY = 0.003
# features that were chosen on these datasets: spreads are those of a model without them, which fits new data no better
CHOSEN = ("sure", "together")
MOST_NAMES = 400  # maximum number of names that the fit uses per placement


# -- placements -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Placements:
    """Groups of one dataset and encoder: features of each name, whether its group is wrong, and its confidence."""

    kind: str  # "found" (by clustering) or "given" (predefined): where the groups come from
    shown: str
    source: str  # taxonomy that the names come from
    encoder: str
    number: float
    groups: np.ndarray
    marks: Mapping[str, np.ndarray]
    # (N,) bool: the name is in the wrong group; if two reference groups tie, the first one counts as right
    wrong: np.ndarray
    # (N,) labels 0..1 of the fit: error probability, strictly between 0 and 1 for ties and for names alone in a group
    soft: np.ndarray
    confidence: np.ndarray
    given: doubt.Given | None = None  # the predefined groups with their seeds
    seeds: int = 0  # number of seeds per predefined group

    @property
    def uncertain(self) -> np.ndarray:
        """Indices of the names that do not equal a predefined group."""
        return np.arange(len(self.soft)) if self.given is None else np.flatnonzero(~self.given.is_named)


def names_and_groups(data: Path, dataset: str) -> tuple[list[str], np.ndarray, list[str]]:
    """Return the distinct names of a dataset that have one group, their group numbers, and the groups' names."""
    _, name, group = SETS[dataset]
    found: dict[str, str] = {}
    for told in rows_of(data, dataset):
        found.setdefault(told[name].replace("-", " "), told[group].replace("-", " "))
    names = sorted(found)
    titles = sorted(set(found.values()))
    return names, np.array([titles.index(found[name]) for name in names]), titles


def placements(data: Path, encoders: Sequence[str], sets: Sequence[str]) -> Iterator[Placements]:
    for shown in sets:
        names, truth, titles = names_and_groups(data, shown)
        for spec in encoders:
            lexicon = spec != "words"
            encoder = make_encoder("lexical" if spec == "words" else spec, names=names, lexicon=lexicon)
            rows = encoder.encode(names)
            name = spec if spec == "words" else encoder.name
            about: dict[str, Any] = {"shown": shown, "source": SETS[shown][0], "encoder": name}
            for number in NUMBERS:
                groups = round(number * len(titles))
                if groups > 0.6 * len(names):
                    continue
                placed = cluster_names(rows, ClusterConfig(groups=groups))
                marks = doubt.features(rows, placed.groups, names)
                wrong, soft = against_majorities(placed.groups, truth)
                yield Placements(
                    "found", **about, number=number, groups=placed.groups, marks=marks, wrong=wrong, soft=soft,
                    confidence=placed.confidence,
                )  # fmt: skip
            evidence = Evidence((Block.of(TEXT, rows),), (1.0,), np.eye(1))
            for share, seeds in product(GIVEN, SEEDS):
                kept = np.sort(np.random.default_rng(0).permutation(len(titles))[: round(share * len(titles))])
                chosen = draw_seeds(truth, seeds, 0) if seeds else [np.zeros(0, int)] * len(titles)
                of = [GivenGroup(titles[g], "", seeds=tuple(names[i] for i in chosen[g])) for g in kept]
                joint, examples = embed_examples(encoder, of, names, evidence)
                least = 0.0 if "sbert" not in spec else -1.0
                into, given = place_names(joint, names, GivenGroups(tuple(of)), examples, least)
                target = np.full(len(titles), len(kept))
                target[kept] = np.arange(len(kept))
                others = np.setdiff1d(np.arange(len(names)), np.concatenate(chosen))
                marks = doubt.features(joint, into.groups, names, given=given)
                wrong = (into.groups != target[truth])[others]
                yield Placements(
                    "given", **about, number=share, groups=into.groups[others], wrong=wrong, soft=wrong.astype(float),
                    marks={mark: of[others] for mark, of in marks.items()}, confidence=into.confidence[others],
                    given=replace(given, is_named=given.is_named[others]), seeds=seeds,
                )  # fmt: skip


def draw_seeds(truth: np.ndarray, count: int, seed: int) -> list[np.ndarray]:
    """Return indices of at most ``count`` random names of each group; every group keeps a name that is no seed."""
    drawn = np.random.default_rng(seed).permutation(len(truth))
    members = [drawn[truth[drawn] == group] for group in range(truth.max() + 1)]
    return [part[: min(count, len(part) - 1)] for part in members]


def accuracies(data: Path, encoders: Sequence[str], count: int, sets: Sequence[str], seeds: int = 3) -> Iterator[str]:
    """Yield the lines of a table: mean accuracy over random choices of ``count`` seeds per group."""
    yield head("set", "encoder", "nearest mean row", "logistic regression", "logistic regression with words", "hgld")
    every = []
    for title in sets:
        names, truth, titles = names_and_groups(data, title)
        exact = {name_key(text): group for group, text in enumerate(titles)}
        named = np.array([exact.get(name_key(name), -1) for name in names])
        for spec in encoders:
            encoder = make_encoder(spec, names=names)
            rows, texts = encoder.encode(names), encoder.encode(titles)
            blocks = [Block.of(TEXT, rows)]
            if spec != "lexical":
                blocks.append(Block.of(WORDING, make_encoder("lexical", names=names).encode(names), is_form=True))
            evidence, found = weigh(blocks, groups=round(len(names) ** 0.5)), []
            for seed in range(seeds):
                chosen = draw_seeds(truth, count, seed)
                seen = np.concatenate(chosen)
                of = [
                    GivenGroup(text, "", "", tuple(names[i] for i in part))
                    for text, part in zip(titles, chosen, strict=True)
                ]
                joint, examples = embed_examples(encoder, of, names, evidence)
                ours = place_names(joint, names, GivenGroups(tuple(of)), examples, -1.0)[0].groups
                prototypes = unit(unit(sums(rows[seen], truth[seen], len(titles))) + texts)
                known = np.flatnonzero(texts.any(axis=1))
                taught = np.concatenate([truth[seen], known])
                worded = add_words(rows, texts[known], [*names, *(titles[group] for group in known)])
                regressed = [
                    LogisticRegression(C=10, max_iter=1000).fit(np.vstack([own[seen], shown]), taught).predict(own)
                    for own, shown in ((rows, texts[known]), worded)
                ]
                others = np.setdiff1d(np.arange(len(names)), seen)
                guesses = ((rows @ prototypes.T).argmax(axis=1), *regressed, ours)
                found.append([(np.where(named >= 0, named, g) == truth)[others].mean() for g in guesses])
            every.append(np.mean(found, axis=0))
            yield row([title, spec.partition(":")[0], *(f"{value:.3f}" for value in every[-1])])
    yield row(["mean", "", *(f"{value:.3f}" for value in np.mean(every, axis=0))])


def against_majorities(groups: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a mask of names outside their group's most frequent reference group, and soft labels for the fit."""
    table = np.zeros((groups.max() + 1, truth.max() + 1))
    np.add.at(table, (groups, truth), 1)
    most = table.max(axis=1)
    tied = (table == most[:, None]).sum(axis=1)
    soft = np.where(table[groups, truth] < most[groups], 1.0, 1 - 1 / tied[groups])
    home = table.argmax(axis=0)
    soft[(table.sum(axis=1)[groups] == 1) & (home[truth] != groups)] = ALONE
    return table.argmax(axis=1)[groups] != truth, soft


# -- the fit --------------------------------------------------------------------------------------------------------


def fit(train: Sequence[Placements], *, spreads: bool = True) -> dict[str, Any]:
    """Return a section of ``doubt.yaml``; every taxonomy has the same weight.

    The spreads come from models that leave out one taxonomy and are tested on it.
    """
    marks = list(train[0].marks)
    drawn = [np.sort(np.random.default_rng(0).permutation(p.uncertain)[:MOST_NAMES]) for p in train]
    total = Counter[str]()
    for p, chosen in zip(train, drawn, strict=True):
        total[p.source] += len(chosen)
    features = np.vstack(
        [np.stack([p.marks[m][chosen] for m in marks], axis=1) for p, chosen in zip(train, drawn, strict=True)]
    )
    soft = np.concatenate([p.soft[chosen] for p, chosen in zip(train, drawn, strict=True)])
    weights = np.concatenate([np.full(len(c), 1 / total[p.source]) for p, c in zip(train, drawn, strict=True)])
    weights /= weights.sum()
    mean = weights @ features
    scale = np.sqrt(weights @ (features - mean) ** 2) + 1e-9
    shifted = np.tile((features - mean) / scale, (2, 1))
    sides, shares = np.repeat([1, 0], len(soft)), np.concatenate([weights * soft, weights * (1 - soft)])
    model = LogisticRegression(C=1 / PENALTY, max_iter=1000).fit(shifted, sides, shares)
    stated: dict[str, Any] = {
        "intercept": float(model.intercept_[0]),
        "features": {
            mark: {"mean": float(m), "scale": float(s), "weight": float(w)}
            for mark, m, s, w in zip(marks, mean, scale, model.coef_[0], strict=True)
        },
        "between_sets": 1.0,
        "between_groups": 0.5,
    }
    if spreads:
        stated |= _spreads([replace(p, marks={m: of for m, of in p.marks.items() if m not in CHOSEN}) for p in train])
    return stated


def _spreads(train: Sequence[Placements]) -> dict[str, float]:
    levels: list[float] = []
    within: list[float] = []
    shares: list[float] = []
    for source in sorted({p.source for p in train}):
        held = [p for p in train if p.source == source]
        model = doubt.Model.of(fit([p for p in train if p.source != source], spreads=False))
        for p in held:
            odds, soft = logit(model.probabilities(p.marks))[p.uncertain], p.soft[p.uncertain]

            def loss(at: np.ndarray, odds: np.ndarray = odds, soft: np.ndarray = soft) -> float:
                prior = (at[0] / 2) ** 2 / 2 + (at[1] - 1) ** 2 / 2
                return float(
                    -(soft * _log(at[0] + at[1] * odds) + (1 - soft) * _log(-at[0] - at[1] * odds)).sum() + prior
                )

            level, slope = minimize(loss, [0.0, 1.0]).x
            centred = expit(level + slope * odds)
            rest = np.bincount(p.groups[p.uncertain], soft - centred)
            room = np.bincount(p.groups[p.uncertain], centred * (1 - centred))
            levels.append(float(minimize(lambda at, loss=loss: loss(np.array([at[0], 1.0])), [0.0]).x[0]))
            within.append((rest**2 - room).sum() / (room**2).sum())
            shares.append(1 / len(held))
    weights = np.array(shares) / sum(shares)
    return {
        "between_sets": float(np.sqrt(weights @ np.square(levels))),
        "between_groups": float(np.sqrt(max(weights @ np.array(within), 0.01))),
    }


def _log(odds: np.ndarray) -> np.ndarray:
    return -np.logaddexp(0, -odds)


# -- figures --------------------------------------------------------------------------------------------------------


def auroc(wrong: np.ndarray, score: np.ndarray) -> float:
    return float(roc_auc_score(wrong, score)) if 0 < wrong.sum() < len(wrong) else float("nan")


def calibration_error(wrong: np.ndarray, p: np.ndarray) -> float:
    """Return the mean difference of probability and frequency over bins of equal size: 20 names each, or ten bins."""
    order = np.argsort(p, kind="stable")
    bins = np.array_split(order, int(np.clip(len(p) // 20, 1, 10)))
    return float(sum(abs(p[b].mean() - wrong[b].mean()) * len(b) for b in bins) / len(p))


@dataclass(frozen=True)
class Figures:
    """Printed figures of one dataset and encoder."""

    errors: float
    old: float
    auroc: float
    calibration: float


def of_fit(found: Sequence[Placements], without: str = "") -> list[Placements]:
    """Return the placements without seeds, from every source but one."""
    return [p for p in found if p.source != without and not p.seeds]


def figures(p: Placements, model: doubt.Model) -> Figures:
    wrong = model.probabilities(p.marks)
    wrong = wrong if p.given is None else doubt.with_seeds(wrong, p.given, model.spreads)
    error = calibration_error(p.wrong, wrong)
    return Figures(float(p.wrong.mean()), auroc(p.wrong, -p.confidence), auroc(p.wrong, wrong), error)


def table(found: Sequence[Placements], kind: str) -> Iterator[str]:
    """Yield the lines of a table; the model for each dataset is fitted on the other taxonomies."""
    chosen = [p for p in found if p.kind == kind]
    models = {s: doubt.Model.of(fit(of_fit(chosen, s))) for s in sorted({p.source for p in chosen})}
    judged = [(p, figures(p, models[p.source])) for p in chosen]
    yield f"Groups {kind}, each taxonomy judged by the model of the others:"
    yield ""
    yield head("set", "encoder", "wrong", "AUROC of margin", "AUROC", "calibration error")
    own = [(p, f) for p, f in judged if p.number == 1 and not p.seeds]
    for p, f in own:
        yield _line(p.shown, p.encoder, [f])
    for encoder in dict.fromkeys(p.encoder for p, _ in own):
        yield _line("mean", encoder, [f for p, f in own if p.encoder == encoder])
    yield _line("mean", "all", [f for _, f in own])
    yield _line("mean", "all numbers of groups", [f for p, f in judged if not p.seeds])
    if shown := [(p, f) for p, f in judged if p.number == 1 and p.seeds]:
        yield _line("mean", "five seeds per group", [f for _, f in shown])


def _line(title: str, encoder: str, found: Sequence[Figures]) -> str:
    means = np.nanmean([astuple(one) for one in found], axis=0)
    return row([title, encoder, *(f"{value:.2f}" for value in means)])


def write_model(found: Sequence[Placements], file: Path) -> None:
    """Write the coefficients with the names of the training taxonomies."""
    about = {
        "what": "how doubt.py turns features into probabilities; made by benchmarks/hierarchy_doubt.py --fit",
        "sets": sorted({p.shown for p in found}),
        "encoders": sorted({p.encoder for p in found}),
        "names": {p.shown: len(p.wrong) for p in found},
        "placements": {kind: len(of_fit([p for p in found if p.kind == kind])) for kind in ("found", "given")},
        "penalty": PENALTY,
        "versions": {name: version(name) for name in ("numpy", "scipy", "scikit-learn")},
    }
    stated = {kind: _rounded(fit(of_fit([p for p in found if p.kind == kind]))) for kind in ("found", "given")}
    file.write_text(
        yaml.safe_dump({"schema_version": 1, "about": about, **stated}, sort_keys=False, width=110), encoding="utf-8"
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(member) for name, member in value.items()}
    return round(value, 4)


def main() -> None:
    parser = names_parser(__doc__)
    parser.add_argument("--fit", action="store_true", help="write the coefficients that hgld ships with")
    parser.add_argument("--shown", type=int, help="print only the accuracy with this number of seeds per group")
    options = parser.parse_args()
    sets = options.sets.split(",")
    if options.shown is not None:
        for line in accuracies(options.data, options.encoder or ["lexical"], options.shown, sets):
            print(line, flush=True)
        return
    found = list(placements(options.data, options.encoder or ["words", "lexical"], sets))
    if options.fit:
        write_model(found, doubt.MODEL)
    for kind in ("found", "given"):
        for line in table(found, kind):
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()

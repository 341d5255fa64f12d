"""Cost of a training step on a CPU: ResNet-50, 256 images of 224 px, three levels, and one thread that reads.

    python benchmarks/step_cost.py --work DIR [--losses HAPPIER CSL ...] [--steps 2] [--batch 256] [--chunk 32]

Three steps warm up, --steps are measured (about a minute each on two cores). The batch passes the net in chunks,
because its activations at once would take some 25 GB. The images are made on the first run, 256 px JPEGs in shards,
and kept.
"""

import argparse
import shutil
from pathlib import Path

import made_shards

from hgld.training.config import TrainConfig, with_fields
from hgld.training.loop import train

PARTS = ("prepare", "forward", "gradients", "optimizer", "rest")


def config(loss: str, options: argparse.Namespace) -> TrainConfig:
    fields = {
        "backbone": "torchvision:resnet50",
        "pretrained": "none",
        "freeze_batch_norm": True,  # as chunks need it
        "loss": loss,
        "batch_size": options.batch,
        "chunk": options.chunk,
        "workers": 1,
        "epochs": 1,
        "steps_per_epoch": 3 + options.steps,
        "frozen_epochs": 0,
        "evaluate_on": (),
    }
    return with_fields(TrainConfig(), fields)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--losses", nargs="+", default=["HAPPIER"])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--chunk", type=int, default=32)
    options = parser.parse_args()
    jpegs = made_shards.make_jpegs(options.work / "jpegs", 2048, 256, 256)
    data = options.work / "dataset"
    if not data.exists():
        made_shards.write_hgld(data, [file.read_bytes() for file in jpegs], (256, 256))
    print(f"| loss | step | {' | '.join(PARTS)} | loss | share of the step | data wait | share |")
    print(f"|---|{'---|' * (len(PARTS) + 5)}")
    for loss in options.losses:
        out = options.work / f"run-{loss}"
        shutil.rmtree(out, ignore_errors=True)
        parts = train(config(loss, options), str(data), out, profile=True).profile
        step = sum(parts.values())
        others = " | ".join(f"{parts.get(name, 0) / 1000:.2f} s" for name in PARTS)
        costs = " | ".join(f"{parts[name]:.0f} ms | {parts[name] / step:.2%}" for name in ("loss", "data"))
        print(f"| {loss} | {step / 1000:.1f} s | {others} | {costs} |", flush=True)


if __name__ == "__main__":
    main()

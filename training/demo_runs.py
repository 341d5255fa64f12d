"""The two runs that ``hgld demo`` compares: the same but for the levels of labels that their loss sees.

Both train the small residual net from scratch for half a minute on drawn landmarks, with the rates of the small
recipes. ROADMAP is HAPPIER with one level: the same surrogate of AP and the same proxies, for landmarks alone.
"""

from .config import TrainConfig, with_fields

BASELINE, HIERARCHICAL = "ROADMAP", "HAPPIER"

_BOTH = with_fields(
    TrainConfig(),
    {
        "backbone": "small-resnet",
        "pretrained": "none",
        "dim": 128,
        "size": 32,
        "resize": 32,
        "crop_min": 0.7,
        "workers": 1,
        "batch_size": 64,
        "images_per_class": 4,
        "decomposability": "proxy",
        "lr": 2e-3,
        "lr_head": 2e-3,
        "lr_proxies": 1e-2,
        "device": "cpu",
    },
)


def demo_runs(seed: int, *, epochs: int, steps: int) -> dict[str, TrainConfig]:
    """Return the configs of the runs by name, the fine-only baseline first.

    Args:
        seed: of everything random: the runs start from the same weights and see the same batches.
        epochs: of a run, each followed by an evaluation.
        steps: of an epoch.
    """
    length = {"epochs": epochs, "steps_per_epoch": steps, "warmup_steps": min(30, epochs * steps // 10)}
    both = with_fields(_BOTH, {"seed": seed, **length})
    return {name: with_fields(both, {"loss": name}) for name in (BASELINE, HIERARCHICAL)}

"""The two runs that ``hgld demo`` compares: the same but for the levels of labels that their loss sees.

Both train the small net from scratch for half a minute on drawn landmarks. ROADMAP is HAPPIER with one level: the same
surrogate of AP and the same proxies, for landmarks alone. What differs from the settings with which the papers
fine-tune pretrained nets was chosen for both together, by their results on the demo's landmarks:

- The projection starts as a PCA. A net with random weights gives all images nearly the same embedding, and a random
  projection keeps that: after 250 steps nothing had been learned.
- lambda is 0.02. With the published 0.1 the proxies' term first draws all embeddings together, where every class is as
  likely; pretrained embeddings are apart from the start.
"""

from hgld.training.config import TrainConfig, with_fields

BASELINE, HIERARCHICAL = "ROADMAP", "HAPPIER"

_BOTH = with_fields(
    TrainConfig(),
    {
        "backbone": "small",
        "pretrained": "none",
        "pooling": "max",
        "dim": 128,
        "projection": "pca",
        "size": 32,
        "resize": 32,
        "crop_min": 0.7,
        "workers": 1,
        "batch_size": 64,
        "images_per_class": 4,
        "decomposability": "proxy",
        "lambda_": 0.02,
        "lr": 1e-3,
        "lr_head": 1e-3,
        "lr_proxies": 10.0,
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
    both = with_fields(_BOTH, {"seed": seed, "epochs": epochs, "steps_per_epoch": steps})
    return {name: with_fields(both, {"loss": name}) for name in (BASELINE, HIERARCHICAL)}

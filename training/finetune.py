"""All numbers of a fine-tune: fixed values, and the candidates from which :mod:`hgld.training.plan` chooses.

The numbers were tuned by hand in single runs on photographs of groceries and landmarks, with one class split and one
seed each. No search on validation classes has confirmed them.
"""

from dataclasses import dataclass, replace

from .config import TrainConfig, with_fields

FINETUNE = "finetune"

SHARED = {
    "layer_norm": True,
    "dim": 0,
    "crop_min": 0.25,
    "jitter": 0.4,
    "erasing": 0.5,
    "weight_decay": 1e-4,
    "schedule": "cosine",
    "evaluate_start": True,
    "monitor_tolerance": 0.005,  # with ten to twenty validation classes, differences of half a point of H-AP are noise
}


@dataclass(frozen=True)
class Start:
    """Values that depend on the initial weights of a fine-tune.

    Attributes:
        lr: learning rate of the backbone.
        lr_head: learning rate of pooling and projection.
        lr_proxies: learning rate of the loss's own parameters.
        passes: number of passes over the training images.
        least_steps: minimum number of steps of a run, however small the dataset is.
        most_steps: maximum number of steps of a run, however large the dataset is.
        evaluations: number of evaluations of a run, without the evaluation before the first step.
        blend: share of the last weights in an average with the initial weights, which is tried at the end; 0: no
            mixture.
    """

    lr: float
    lr_head: float
    lr_proxies: float
    passes: float
    least_steps: int
    most_steps: int
    evaluations: int
    blend: float


STARTS = {
    "convolutional": Start(3e-4, 1e-3, 1e-2, 5, least_steps=180, most_steps=10_000, evaluations=3, blend=0.6),
    "transformer": Start(2e-5, 1e-3, 1e-2, 5, least_steps=180, most_steps=10_000, evaluations=3, blend=0.6),
    "scratch": Start(2e-3, 2e-3, 1e-2, 40, least_steps=1000, most_steps=20_000, evaluations=5, blend=0.0),
}
LOSSES = {"several levels": "HAPPIER", "one level": "NormSoftmax"}
MONITORS = {"several levels": "H-AP", "one level": "AP"}
BATCH_SIZE = 64
IMAGES_PER_CLASS = 4
WARMUP_STEPS = 20
FREEZE_BATCH_NORM_BELOW = 20_000  # batch norm is frozen if there are fewer training images
SIZE_SHARE = 4 / 7  # training size as a share of a convolutional network's own size: 128 of 224 px
TEST_FACTOR = 1.25  # ratio of test size to training size, if no split val can show which is best
MOST_TRIED = 5_000  # maximum number of images of val on which test sizes are compared
SCRATCH_SIZE = 48  # pixels
FASTER = 1.2  # bf16 is chosen if a step with it is faster by this factor

DERIVED = (
    *("backbone", "pretrained", "pooling", "freeze_batch_norm", "projection"),
    *("size", "resize", "test_size", "test_resize_mode", "interpolation"),
    *("loss", "monitor", "batch_size", "images_per_class", "steps_per_epoch", "epochs"),
    *("lr", "lr_head", "lr_proxies", "warmup_steps"),
    *("evaluate_on", "evaluate_every", "blend", "micro_batch_size", "amp"),
)
"""The fields that are derived from network, data and machine, unless the user sets them."""


def finetune_config() -> TrainConfig:
    """Return the config of a fine-tune before anything is derived."""
    return replace(with_fields(TrainConfig(), SHARED), recipe=FINETUNE, to_derive=DERIVED)

"""Datasets as the papers on Smooth-AP and PNP train on them: ResNet-50, batches of 384 with 4 images a class.

Source: ``src/main.py`` and ``src/netlib.py`` of Andrew-Brown1/Smooth_AP (iNaturalist, VehicleID) and README,
``parameters.py`` and ``architectures/resnet50.py`` of interestingzhuo/PNPloss (SOP): Adam at 1e-5 with weight decay
4e-4, rates multiplied by 0.3 at the epochs that stand below, batch norm frozen, no layer norm. The head moves at twice
the rate on iNaturalist and at the same elsewhere: the author's commands in issue 17 of Andrew-Brown1/Smooth_AP.
"""

from hgld.training.config import TrainConfig, with_fields
from hgld.training.recipes.recipe import Setting

_AP_LOSSES = with_fields(
    TrainConfig(),
    {
        "backbone": "torchvision:resnet50",
        "pooling": "avg",
        "layer_norm": False,
        "freeze_batch_norm": True,
        "dim": 512,
        "batch_size": 384,
        "images_per_class": 4,
        "optimizer": "adam",
        "lr": 1e-5,
        "lr_head": 1e-5,
        "weight_decay": 4e-4,
        "schedule": "step",
        "gamma": 0.3,
        "epochs": 400,
        "evaluate_every": 5,
        "amp": "bf16",
        "best_by": "R@1",
    },
)
_QUADRO = (
    "one Quadro RTX 8000 (Smooth-AP's author on iNaturalist: issue 12 of Andrew-Brown1/Smooth_AP); "
    "--chunk 96 on a smaller GPU"
)
_JOB = "jean-zay/submit_scripts/train_inaturalist_384.slurm of elias-ramzi/ROADMAP: Smooth-AP on two V100 of 32 GB"

SOP_384 = Setting(
    "sop",
    "Stanford Online Products in batches of 384",
    _QUADRO,
    with_fields(_AP_LOSSES, {"milestones": (120, 220, 250, 280), "metrics": ("R@1", "R@10", "R@100", "AP")}),
)
INAT_384 = Setting(
    "inat-base",
    "iNaturalist 2018 in batches of 384",
    _QUADRO,
    with_fields(
        _AP_LOSSES,
        {
            "lr_head": 2e-5,
            "milestones": (40, 70),
            "epochs": 90,
            "metrics": ("R@1", "R@4", "R@16", "R@32", "AP"),
        },
    ),
    hours=f"not confirmed; 20 is the limit of a job ({_JOB})",
)
VEHICLEID = Setting(
    "vehicleid",
    "PKU VehicleID in batches of 384; test holds the large list, which holds the small and medium ones",
    _QUADRO,
    with_fields(_AP_LOSSES, {"milestones": (120, 200, 220, 250, 280, 300, 300), "metrics": ("R@1", "R@5", "AP")}),
)

"""Settings: datasets as papers train on them; other options have the defaults of ``training/config.py``.

The sources are the authors' published configurations; each group below names its own. Options that the losses of a
dataset have in common stand here, those that a loss changes stand in ``table``.
"""

from dataclasses import replace
from typing import Any

from ..config import TrainConfig, with_fields
from .recipe import Setting

# HAPPIER's papers: `suprank/config` of elias-ramzi/SupRank (99041e8) and `happier/config` of elias-ramzi/HAPPIER, with
# the commands of their READMEs: `optimizer/{sop,inat,cub,dyml,dyml_product}.yaml`, `dataset/*.yaml`, `model/*.yaml`,
# `loss/*.yaml`. The backbone is frozen for the first five epochs (`warmup_step=5`), the head moves at twice its rate
# and the proxies, which are normalised and so indifferent to their length, at a rate of 10; on DyML they move as the
# head does. The weights are torchvision's IMAGENET1K_V1 (`models/get_backbone.py`).
_SUPRANK = "one GPU (commands in the README of elias-ramzi/SupRank); --micro-batch-size 64 where its memory is short"
_ROADMAP = "one GPU (commands in the README of elias-ramzi/ROADMAP); --micro-batch-size 64 where its memory is short"
_RANK_LOSSES = with_fields(
    TrainConfig(),
    {"backbone": "torchvision:resnet50", "pretrained": "IMAGENET1K_V1", "pooling": "avg", "layer_norm": True}
    | {"freeze_batch_norm": True, "dim": 512, "batch_size": 256, "images_per_class": 4}
    | {"optimizer": "adam", "lr": 1e-5, "lr_head": 2e-5, "lr_proxies": 10.0, "weight_decay": 4e-4}
    | {"schedule": "cosine", "frozen_epochs": 5, "epochs": 100, "amp": "bf16"},
)
_SOP = with_fields(
    _RANK_LOSSES,
    {"sampler": "hierarchical-pk", "super_classes": 2, "lr": 5e-5, "lr_head": 1e-4, "weight_decay": 1e-4}
    | {"metrics": ("R@1", "R@10", "R@100", "R@1000", "mAP@R", "AP", "H-AP", "NDCG", "ASI")},
)
_INAT = with_fields(
    _RANK_LOSSES, {"lr_floor": 1e-6, "metrics": ("R@1", "R@4", "R@16", "R@32", "mAP@R", "AP", "H-AP", "NDCG", "ASI")}
)
_CUB = with_fields(
    _RANK_LOSSES,
    {"pooling": "gem", "size": 256, "resize": 288, "lr": 1e-6, "lr_head": 2e-6, "epochs": 200}
    | {"metrics": ("R@1", "R@2", "R@4", "R@8", "mAP@R", "AP", "H-AP", "NDCG", "ASI")},
)
_INAT_FULL = "iNaturalist 2018 with the seven levels of its taxonomy"
SOP = Setting("sop", "SOP", "Stanford Online Products", _SUPRANK, _SOP)
INAT_BASE = Setting("inat-base", "iNat-base", "iNaturalist 2018 with species and super-category", _SUPRANK, _INAT)
INAT_FULL = Setting("inat-full", "iNat-full", _INAT_FULL, _SUPRANK, _INAT)
CUB = Setting("cub", "CUB", "CUB-200-2011 at 256 px", _ROADMAP, _CUB)
SOP_256, INAT_BASE_256 = (replace(setting, suffix=f"{setting.dataset}-256") for setting in (SOP, INAT_BASE))

_DYML = with_fields(
    _RANK_LOSSES,
    {"backbone": "torchvision:resnet34", "pretrained": "none", "freeze_batch_norm": False, "sync_batch_norm": True}
    | {"optimizer": "sgd", "nesterov": True, "lr": 0.1, "lr_head": 0.1, "lr_proxies": 0.1, "lr_floor": 1e-6}
    | {"weight_decay": 1e-4, "frozen_epochs": 0}
    | {"evaluate_on": ("protocol=dyml",)}
    | {"metrics": ("R@1", "R@10", "R@20", "AP", "ASI"), "monitor": "AP"},
)
_DYML_GPU = "one GPU (commands in the README of elias-ramzi/SupRank); batch norm learns, so no --micro-batch-size"
DYML_VEHICLE = Setting("dyml-vehicle", "DyML-Vehicle", "DyML-Vehicle, from scratch", _DYML_GPU, _DYML)
DYML_ANIMAL = Setting("dyml-animal", "DyML-Animal", "DyML-Animal, from scratch", _DYML_GPU, _DYML)
DYML_PRODUCT = Setting("dyml-product", "DyML-Product", "DyML-Product", _SUPRANK, _DYML).changed(
    pretrained="IMAGENET1K_V1",
    freeze_batch_norm=True,
    sync_batch_norm=False,
    frozen_epochs=5,
    lr_floor=1e-5,
    lr=0.01,
    lr_head=0.02,
    lr_proxies=0.02,
    epochs=20,
    evaluate_on=("protocol=dyml-product",),
)

# ROADMAP's first paper: the commands in the README of elias-ramzi/ROADMAP, which give its best rows: on SOP 128 images
# of 256 px, on iNaturalist batches of 384, no frozen epochs, layer norm on CUB alone, and DeiT under AdamW. The rates
# of its ResNet are not among them and are those of the later paper.
_README = "commands in the README of elias-ramzi/ROADMAP"
_JOBS = "of a job of 100 epochs (jean-zay/submit_scripts of elias-ramzi/ROADMAP)"
_FIRST: dict[str, Any] = {"batch_size": 128, "frozen_epochs": 0}
_TRANSFORMER = {"pooling": "token", "freeze_batch_norm": False, "layer_norm": False, "optimizer": "adamw"}
_DEIT = {"backbone": "timm:deit_small_patch16_224", "pretrained": "fb_in1k", "dim": 0, "weight_decay": 5e-4}
_DEIT |= {**_TRANSFORMER, **_FIRST}
_PLAIN_DEIT = "plain DeiT-S; the authors take the weights of the distilled one, without its distillation token"
_CUB_224 = CUB.changed(size=224, resize=256)
SOP_2021 = SOP.changed(hardware=f"one GPU ({_README})", **_FIRST, size=256, resize=288, layer_norm=False)
INAT_2021 = INAT_BASE.changed(
    hardware=f"three GPUs ({_README}); --micro-batch-size 96 on one",
    batch_size=384,
    frozen_epochs=0,
    layer_norm=False,
    epochs=90,
)
CUB_2021 = CUB.changed(hardware=f"one GPU ({_README})", **_FIRST, pooling="max")
SOP_DEIT_2021 = SOP.changed(
    hardware=f"one GPU ({_README})",
    hours=f"not confirmed; 20 is the limit {_JOBS}",
    deviates=_PLAIN_DEIT,
    **_DEIT | {"lr": 1e-5, "lr_head": 1e-5, "schedule": "step", "milestones": (25, 50), "gamma": 0.3, "epochs": 75},
)
INAT_DEIT_2021 = INAT_BASE.changed(
    hardware=f"one GPU ({_README})",
    hours=f"not confirmed; 30 is the limit {_JOBS}",
    deviates=_PLAIN_DEIT,
    **_DEIT | {"schedule": "step", "milestones": (30, 70), "gamma": 0.3, "lr_floor": 0.0},
)
CUB_DEIT_2021 = _CUB_224.changed(
    hardware=f"one GPU ({_README})", deviates=_PLAIN_DEIT, **_DEIT, schedule="constant", epochs=150
)

# The later paper's state-of-the-art setting (Table IV of arXiv:2309.08250): a memory of the whole training set from
# epoch 5 on, GeM and layer norm before the projection of a ResNet, 256 px on CUB. The transformers' rates are those of
# `optimizer/{sop,cub}_deit.yaml`, `inat_deit_sch.yaml`, `{inat,cub}_vit_base_512proj.yaml` of elias-ramzi/SupRank;
# their batches and epochs are not stated.
_MEMORY: dict[str, Any] = {"memory": -1}
_ASSUMED_DEIT = "batch and epochs of its transformers are not stated: those of the first paper's commands"
_VIT = {"backbone": "timm:vit_base_patch16_224", "pretrained": "augreg_in21k", "weight_decay": 5e-4, "epochs": 100}
_VIT |= {**_TRANSFORMER, **_MEMORY}
SOP_MEMORY, INAT_MEMORY = (setting.changed(pooling="gem", **_MEMORY) for setting in (SOP, INAT_BASE))
CUB_MEMORY = CUB.changed(**_MEMORY)
SOP_DEIT = SOP.changed(
    deviates=f"{_PLAIN_DEIT}; {_ASSUMED_DEIT}", **_DEIT | _MEMORY | {"lr": 1e-5, "lr_head": 1e-5, "epochs": 75}
)
INAT_DEIT = INAT_DEIT_2021.changed(deviates=_ASSUMED_DEIT, **_MEMORY)
CUB_DEIT = _CUB_224.changed(deviates=f"{_PLAIN_DEIT}; {_ASSUMED_DEIT}", **_DEIT | _MEMORY, epochs=150)
_ASSUMED = "batch and epochs of its transformers are not stated: those of its ResNet"
SOP_VIT = SOP.changed(deviates=_ASSUMED, **_VIT, lr=1e-5, lr_head=2e-5)
INAT_VIT, CUB_VIT = (setting.changed(deviates=_ASSUMED, **_VIT) for setting in (INAT_BASE, _CUB_224))

# Smooth-AP's and PNP's papers: `src/main.py` and `src/netlib.py` of Andrew-Brown1/Smooth_AP (iNaturalist, VehicleID)
# and README, `parameters.py` and `architectures/resnet50.py` of interestingzhuo/PNPloss (SOP): Adam at 1e-5 with weight
# decay 4e-4, rates multiplied by 0.3 at the milestones, batch norm frozen, no layer norm. The head moves at twice the
# rate on iNaturalist and at the same elsewhere: the author's commands in issue 17 of Andrew-Brown1/Smooth_AP. On SOP
# Smooth-AP's batches are hard: out of two super-classes, as FastAP's; PNP's are not (`--data_sampler class_random`).
# PNP's tables of variants have batches of 112, on iNaturalist of 224.
_QUADRO = (
    "one Quadro RTX 8000 (Smooth-AP's author on iNaturalist: issue 12 of Andrew-Brown1/Smooth_AP); "
    "--micro-batch-size 96 on a smaller GPU"
)
_JOB = "jean-zay/submit_scripts/train_inaturalist_384.slurm of elias-ramzi/ROADMAP: Smooth-AP on two V100 of 32 GB"
_AP_LOSSES = with_fields(
    TrainConfig(),
    {"backbone": "torchvision:resnet50", "pretrained": "IMAGENET1K_V1", "pooling": "avg", "layer_norm": False}
    | {"freeze_batch_norm": True, "dim": 512, "batch_size": 384, "images_per_class": 4}
    | {"optimizer": "adam", "lr": 1e-5, "lr_head": 1e-5, "weight_decay": 4e-4, "schedule": "step", "gamma": 0.3}
    | {"milestones": (120, 220, 250, 280), "epochs": 400, "evaluate_every": 5, "amp": "bf16"}
    | {"metrics": ("R@1", "R@10", "R@100", "R@1000", "AP"), "monitor": "R@1"},
)
_PNP_SOP = Setting("sop", "SOP", "Stanford Online Products", _QUADRO, _AP_LOSSES)
SOP_384 = _PNP_SOP.changed(sampler="hierarchical-pk", super_classes=2)
INAT_384 = Setting("inat-base", "iNaturalist", "iNaturalist 2018", _QUADRO, _AP_LOSSES).changed(
    hours=f"not confirmed; 20 is the limit of a job ({_JOB})",
    lr_head=2e-5,
    milestones=(40, 70),
    epochs=90,
    metrics=("R@1", "R@4", "R@16", "R@32", "AP"),
)
INAT_384_COMPARED = replace(INAT_384, suffix="inat-384")  # of losses that have a recipe on INAT_BASE, too
_VEHICLEID = "PKU VehicleID; on each list every image queries the others, as Smooth-AP and PNP take it"
VEHICLEID = Setting("vehicleid", "VehicleID", _VEHICLEID, _QUADRO, _AP_LOSSES).changed(
    milestones=(120, 200, 220, 250, 280, 300, 300),
    metrics=("R@1", "R@5", "AP"),
    evaluate_on=("protocol=vehicleid-leave-one-out",),
    monitor="R@1/large",
)
SOP_224 = SOP_384.changed(batch_size=224, suffix="sop-224")
INAT_224 = INAT_384.changed(batch_size=224, suffix="inat-base-224")
PNP_SOP, PNP_VEHICLEID = (setting.changed(batch_size=112) for setting in (_PNP_SOP, VEHICLEID))
PNP_SOP_384, PNP_VEHICLEID_384 = replace(_PNP_SOP, suffix="sop-384"), replace(VEHICLEID, suffix="vehicleid-384")
PNP_INAT = INAT_384.changed(batch_size=224)
# Its test of robustness (Tables 6 and 7): every three training classes are one.
SOP_MERGED, VEHICLEID_MERGED = (
    setting.changed(
        merge_classes=3,
        suffix=f"{setting.dataset}-merged",
        deviates="the batch is not stated: that of the tables of variants; which classes meet is drawn by the seed",
    )
    for setting in (PNP_SOP, PNP_VEHICLEID)
)

# Faces (Smooth-AP's Tables 4 and 5): networks that were trained on faces before are trained further. No library has
# their weights; the paper states neither rate nor length of this training.
_FACES = "VGGFace2 by build-shards manifest, a level `identity`; IJB-C is evaluated with its templates' frames averaged"
_FACES_ASSUMED = "rate and epochs of the training on faces are not stated; batches are those of Table 5's best row"
FACES = Setting(
    "vggface2",
    "VGGFace2",
    _FACES,
    "not confirmed; a GPU of 32 GB, or --micro-batch-size 64 on a smaller one",
    with_fields(
        _AP_LOSSES,
        {"backbone": "timm:legacy_seresnet50", "pretrained": "none", "dim": 256, "batch_size": 256}
        | {"milestones": (40, 70), "epochs": 90}
        | {"evaluate_on": ("protocol=faces",), "metrics": ("AP", "R@1"), "monitor": "AP"},
    ),
    deviates=(
        _FACES_ASSUMED,
        "the weights of SENet-50 on VGGFace2 are no library's: give their file by --pretrained, or it begins at random",
    ),
)
FACES_ARCFACE = Setting(
    "vggface2",
    "VGGFace2",
    _FACES,
    FACES.hardware,
    with_fields(FACES.config, {"backbone": "torchvision:resnet50", "dim": 512}),
    suffix="vggface2-arcface",
    deviates=(
        _FACES_ASSUMED,
        "ArcFace's ResNet-50 is another net; no library has its weights: without --pretrained FILE it begins at random",
    ),
)

# RS@k's paper: `src/main.py` (44b7011) and `src/netlib.py` of yash0307/RecallatK_surrogate: batches of 4,000 that pass
# the model in chunks, GeM and layer norm, Adam, one rate for backbone and head (the author in issue 5 there),
# multiplied by 0.3 at two epochs.
_LARGE = {
    "batch_size": 4000,
    "micro_batch_size": 200,
    "sampler": "pk",
    "pooling": "gem",
    "layer_norm": True,
    "frozen_epochs": 0,
}
_LARGE |= {"weight_decay": 4e-4, "schedule": "step", "gamma": 0.3}
_V100 = "one V100 of 32 GB, chunks of 200 (README of yash0307/RecallatK_surrogate)"
_90_EPOCHS = {"lr": 1e-4, "lr_head": 1e-4, "milestones": (40, 70), "epochs": 90}
SOP_4000 = SOP.changed(hardware=_V100, **_LARGE, lr=2e-4, lr_head=2e-4, milestones=(25, 50), epochs=55)
INAT_4000 = INAT_BASE.changed(hardware=_V100, **_LARGE, **_90_EPOCHS, lr_floor=0.0)
VEHICLEID_4000 = VEHICLEID.changed(hardware=_V100, **_LARGE, **_90_EPOCHS)

# XBM in the core paper (Table III): batches of 128 and the whole training set stored.
SOP_128, INAT_128, CUB_128 = (setting.changed(batch_size=128, **_MEMORY) for setting in (SOP, INAT_BASE, CUB))

# Proxies at the head's rate, as the authors' configurations of ProxyNCA++ and CSL have it.
SOP_SLOW, INAT_BASE_SLOW, INAT_FULL_SLOW, CUB_SLOW = (
    setting.changed(lr_proxies=setting.config.optimizer.lr_head) for setting in (SOP, INAT_BASE, INAT_FULL, CUB)
)

# Listwise AP: batch norm is frozen, because only then a batch may pass in chunks (section 3.3 of arXiv:1906.07589).
LANDMARKS_CLEAN = Setting(
    "landmarks-clean",
    "Landmarks-clean",
    "Landmarks-clean at 800 px; --evaluate-on val,ROXFORD:query/gallery for revisited Oxford beside it",
    "not confirmed; one GPU of any size: 4,096 images of 800 px pass it in chunks of 16",
    with_fields(
        TrainConfig(),
        {"backbone": "torchvision:resnet101", "pretrained": "IMAGENET1K_V1", "pooling": "gem", "gem_p": 3.0}
        | {"gem_learned": True, "dim": 2048, "layer_norm": False, "freeze_batch_norm": True}
        | {"size": 800, "resize": 256, "jitter": 0.3, "rotation": 10.0, "test_resize_mode": "original"}
        | {"batch_size": 4102, "images_per_class": 7, "coverage": "classes", "micro_batch_size": 16}
        | {"epochs": 20, "steps_per_epoch": 10, "amp": "bf16"}
        | {"optimizer": "adam", "lr": 1e-4, "lr_head": 1e-4, "weight_decay": 1e-6, "schedule": "linear"}
        | {"evaluate_on": ("val",), "evaluate_every": 5, "metrics": ("R@1", "R@10", "AP"), "monitor": "AP"},
    ),
    deviates=(
        "4,102 images, seven of each of the 586 classes, not 4,096: every class is in every batch and counts alike",
        "where a build has fewer classes: --batch-size seven times as many",
        "the paper jitters colours and rotates without stating by how much: 0.3, as MultiGrain, and 10 degrees",
    ),
)
# What it is compared with (Table 1): triplets and contrastive pairs, as many backward passes and updates as there.
_TUPLES: dict[str, Any] = {
    "coverage": "exact",
    "jitter": 0.0,
    "rotation": 0.0,
    "schedule": "constant",
    "epochs": 1,
}
_MINED = "hard negatives are mined in the batch, not in the training set; rates are those of the listwise loss"


def _tuples(suffix: str, batch_size: int, updates: int, k: int) -> Setting:
    return replace(LANDMARKS_CLEAN, deviates=(_MINED,)).changed(
        suffix=f"landmarks-clean{suffix}",
        batch_size=batch_size,
        images_per_class=k,
        steps_per_epoch=updates,
        **_TUPLES,
    )


LANDMARKS_64, LANDMARKS_512, LANDMARKS_1024 = (
    _tuples(f"-{n}", 3 * n, updates, 3) for n, updates in ((64, 8192), (512, 1536), (1024, 1024))
)
LANDMARKS_PAIRS = _tuples("", 35, 36_000, 5)

# H-GLDv2 in arXiv:2309.08250: batches of 256, about 55,000 steps, Adam at 1e-5. What it does not say is from
# `suprank/config` of elias-ramzi/SupRank: `model/resnet_101_LM.yaml` (2,048 dimensions, a PCA as the projection, no
# layer norm), proxies at the head's rate (`loss/*_LM.yaml`). `optimizer/gldv2.yaml` there has a rate of 1e-4 where the
# paper has 1e-5; it is a flag away.
H_GLDV2 = Setting(
    "h-gldv2",
    "H-GLDv2",
    "Google Landmarks v2 with hierarchical labels",
    "not confirmed; a node of GPUs, or --micro-batch-size 64 on one",
    with_fields(
        _RANK_LOSSES,
        {"backbone": "torchvision:resnet101", "pooling": "gem", "layer_norm": False, "dim": 2048, "projection": "pca"}
        | {"lr_head": 1e-5, "lr_proxies": 1e-5, "weight_decay": 1e-4, "frozen_epochs": 0}
        | {"epochs": 10, "steps_per_epoch": 5500, "evaluate_on": ("protocol=h-gldv2",), "evaluate_every": 5}
        | {"metrics": ("mAP@100", "R@1", "AP", "H-AP", "NDCG", "ASI")},
    ),
    deviates=("a rate of 1e-5, as the paper states; the released optimizer/gldv2.yaml has 1e-4",),
)

# MultiGrain: `scripts/train.py` of facebookresearch/multigrain. An epoch is twice as many views as ImageNet has images
# (`--epoch-len-factor 2`): 5,005 batches of 512 there.
IMAGENET = Setting(
    "imagenet",
    "ImageNet",
    "ImageNet-1k; or any classes without a hierarchy, by build-shards manifest; split val is evaluated",
    "several GPUs (README of facebookresearch/multigrain: only this step gains from them; how many is not confirmed)",
    with_fields(
        TrainConfig(),
        {"backbone": "torchvision:resnet50", "pretrained": "none", "layer_norm": False, "dim": 0}
        | {"pooling": "gem", "gem_p": 3.0, "gem_learned": False, "crop_min": 0.08, "jitter": 0.3, "lighting": 0.1}
        | {"batch_size": 510, "sampler": "repeated-augmentation", "repeats": 3, "steps_per_epoch": 5005}
        | {"optimizer": "sgd", "lr": 0.2, "lr_head": 0.2, "lr_proxies": 0.2, "lr_beta": 0.1}
        | {"weight_decay": 1e-4, "weight_decay_proxies": 1e-4, "decay_all": True}
        | {"schedule": "step", "milestones": (30, 60, 90), "epochs": 120, "amp": "bf16"}
        | {"evaluate_on": ("val",), "evaluate_every": 10, "metrics": ("top-1", "top-5"), "monitor": "top-1"},
    ),
    suffix="",
    deviates=("510 views a batch, the multiple of three next to the paper's 512",),
)
_AUTOAUGMENT = {"autoaugment": True, "jitter": 0.0, "lighting": 0.0}
IMAGENET_AA = IMAGENET.changed(suffix="aa", **_AUTOAUGMENT)
IMAGENET_UNIFORM = replace(IMAGENET, deviates=("as many steps as with repeated augmentation",)).changed(
    suffix="uniform", batch_size=512, sampler="shuffled", lr_beta=-1.0
)

# Networks off the shelf with their own classifiers (MultiGrain, tables 2, D.1 and E.1): nothing is trained.
_OFF_THE_SHELF = replace(IMAGENET_UNIFORM, hours="none: the run is written as it begins", deviates=()).changed(
    hardware="a GPU or a CPU",
    gem_p=1.0,
    classifier="pretrained",
    crop_min=0.16,
    jitter=0.0,
    lighting=0.0,
    steps_per_epoch=0,
    schedule="constant",
    milestones=(),
    epochs=0,
)
RESNET_50 = _OFF_THE_SHELF.changed(suffix="resnet50", pretrained="IMAGENET1K_V1")
SENET_154 = _OFF_THE_SHELF.changed(suffix="senet154", backbone="timm:legacy_senet154", pretrained="in1k", batch_size=64)
PNASNET_5 = _OFF_THE_SHELF.changed(
    suffix="pnasnet5", backbone="timm:pnasnet5large", pretrained="tf_in1k", size=331, resize=363, batch_size=64
)

# Small runs from scratch, for a laptop: a small residual net at 48 px. Net, views of images and length were chosen on
# validation classes (benchmarks/README.md).
_SMALL = with_fields(
    TrainConfig(),
    {"backbone": "small-resnet", "pretrained": "none", "pooling": "avg", "dim": 128}
    | {"size": 48, "resize": 48, "crop_min": 0.25, "jitter": 0.4, "erasing": 0.5, "workers": 1}
    | {"batch_size": 64, "images_per_class": 4}
    | {"lr": 2e-3, "lr_head": 2e-3, "lr_proxies": 1e-2, "epochs": 30, "evaluate_every": 6}
    | {"warmup_steps": 30},  # without, the first steps of Adam at this rate end in one vector for all images
)
_MINUTES = "4 minutes of one core; 2 with --amp bf16 where it has matrix units for that (benchmarks/README.md)"


def _small(suffix: str, short: str, title: str, levels: str) -> Setting:
    made = (
        f"hgld build-shards manifest --source labels.csv --images . --levels {levels} --test-classes 0.5 "
        "--val-classes 0.2 --out DIR"
    )
    chosen = "test is evaluated, and val beside it, on which the best checkpoint is chosen"
    return Setting("manifest", short, f"{title}; {made}; {chosen}", "two CPU cores", _SMALL, _MINUTES, suffix)


GROCERY = _small("grocery", "photographs of groceries", "the Grocery Store Dataset", "fine,coarse,top")
WASHINGTON = _small(
    "gldv2-washington",
    "landmarks of Washington state",
    "Google Landmarks v2 of Washington state, rows without `unclassified`",
    "fine,supercategory,hierarchical_label,natural_or_human_made",
)
OMNIGLOT = _small(
    "omniglot", "handwritten characters, never mirrored", "Omniglot's characters", "fine,alphabet,script_type"
).changed(flip=0.0, jitter=0.0, crop_min=0.5, erasing=0.0)

_VIEWS = {"sampler": "repeated-augmentation", "repeats": 2}
GROCERY_VIEWS, WASHINGTON_VIEWS = (at.changed(**_VIEWS) for at in (GROCERY, WASHINGTON))
OMNIGLOT_VIEWS = OMNIGLOT.changed(
    **_VIEWS, erasing=0.5, rotation=15.0
)  # characters want more where no label tells them

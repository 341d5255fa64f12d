"""The table of recipes: losses, and the settings that each is trained in, by family.

A recipe is named LOSS-SETTING. A new one is one line: another setting in a row, or a row for a loss of :data:`LOSSES`.
The rows that a paper prints for it are named in ``published``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hgld.losses.registry import options_of

from ..config import TrainConfig, with_fields
from ..config_checks import READERS
from . import settings as on
from .published import published_of
from .recipe import Recipe, Setting

_PAIR, _PROXY = ({"loss": "ROADMAP", "decomposability": second} for second in ("pair", "proxy"))

_ROD = {"loss": "RODRecall"}

LOSSES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "happier": (
        "HAPPIER on {}: H-AP's upper bound and a proxy loss on the finest level, lambda 0.1.",
        {"loss": "HAPPIER"},
    ),
    "happier-f": ("HAPPIER_F on {}: alpha {alpha:g} weighs the finest level more.", {"loss": "HAPPIER"}),
    "sup-ndcg": ("Sup-NDCG on {}: NDCG's upper bound alone.", {"loss": "SupNDCG"}),
    "rod-ndcg": ("ROD-NDCG on {}: NDCG's upper bound and a proxy loss.", {"loss": "RODNDCG"}),
    "sup-h-ap": ("Sup-H-AP alone on {}: HAPPIER without its proxy loss.", {"loss": "SupHAP"}),
    "sigmoid-h-ap": ("H-AP on {} by a sigmoid in place of the upper bound.", {"loss": "SmoothHAP"}),
    "weighted-ap": (
        "Weighted AP on {}: Sup-H-AP with the relevance under which H-AP is the weighted mean of the levels' APs.",
        {"loss": "SupHAP", "relevance": "weighted_ap"},
    ),
    "sup-ap": ("Sup-AP on {}: AP's upper bound alone.", {"loss": "SupAP"}),
    "roadmap-pair": ("ROADMAP on {} with the pair loss, lambda 0.1.", _PAIR),
    "roadmap-proxy": ("ROADMAP on {} with the proxy loss, as the later paper mostly reports it.", _PROXY),
    "roadmap-xbm": ("ROADMAP on {} with GeM and a memory of the whole training set from epoch 5 on.", _PROXY),
    "roadmap-deit": ("ROADMAP on {} with DeiT-S, its own 384 dimensions and a memory.", _PROXY),
    "roadmap-vit": ("ROADMAP on {} with ViT-B projected to 512 dimensions and a memory.", _PROXY),
    "roadmap-2021": ("ROADMAP on {} with the pair loss, as it was first published.", _PAIR),
    "roadmap-2021-deit": ("ROADMAP on {} with DeiT-S and the pair loss, as it was first published.", _PAIR),
    "smooth-recall": ("Smooth-R@k on {}: ranks by a sigmoid.", {"loss": "SmoothRecall"}),
    "smooth-recall-large": ("Smooth-R@k on {} in batches of 4,000, without SiMix.", {"loss": "SmoothRecall"}),
    "smooth-recall-simix": (
        "Smooth-R@k on {} in batches of 4,000 with SiMix.",
        {"loss": "SmoothRecall", "simix": True},
    ),
    "sup-recall": ("Sup-R@k on {}: ranks by their upper bound.", {"loss": "SupRecall"}),
    "sup-recall-simix": ("Sup-R@k on {} with SiMix.", {"loss": "SupRecall", "simix": True}),
    "rod-recall": (
        "ROD-R@k on {}: recall's upper bound and a proxy loss, lambda 0.1.",
        _ROD | {"decomposability": "proxy"},
    ),
    "rod-recall-pair": (
        "ROD-R@k on {}: recall's upper bound and the pair loss, lambda 0.1.",
        _ROD | {"decomposability": "pair"},
    ),
    "rod-recall-simix": ("ROD-R@k on {} with SiMix.", _ROD | {"simix": True}),
    "smooth-ap": ("Smooth-AP on {}.", {"loss": "SmoothAP"}),
    "softbin-ap": ("SoftBin-AP on {} with 20 bins.", {"loss": "SoftBinAP"}),
    "fast-ap": ("FastAP on {} with 20 bins.", {"loss": "FastAP"}),
    "blackbox-ap": ("Blackbox AP on {}, lambda 4 and margin 0.02.", {"loss": "BlackboxAP"}),
    "pnp-o": ("PNP-O on {}: the number of negatives before a positive.", {"loss": "PNP", "pnp": "O"}),
    "pnp-iu": ("PNP-I_u on {}: the slope grows without bound.", {"loss": "PNP", "pnp": "Iu"}),
    "pnp-ib": ("PNP-I_b on {}: the slope grows up to 1 / b.", {"loss": "PNP", "pnp": "Ib", "pnp_b": 4.0}),
    "pnp-ds": ("PNP-D_s on {}: the slope falls slowly.", {"loss": "PNP", "pnp": "Ds"}),
    "pnp-dq": (
        "PNP-D_q on {}: the slope falls quickly; the paper's best.",
        {"loss": "PNP", "pnp": "Dq", "alpha": 4.0},
    ),
    "norm-softmax": ("NormSoftmax on {}'s finest level.", {"loss": "NormSoftmax"}),
    "norm-softmax-sigma": ("NormSoftmax on {}, summed over the levels.", {"loss": "NormSoftmax", "sum_levels": True}),
    "proxy-nca": (
        "ProxyNCA++ on {}'s finest level, temperature 1/9.",
        {"loss": "ProxyNCApp", "proxy_temperature": 1 / 9},
    ),
    "proxy-nca-sigma": (
        "ProxyNCA++ on {}, summed over the levels.",
        {"loss": "ProxyNCApp", "proxy_temperature": 1 / 9, "sum_levels": True},
    ),
    "csl": ("Cross-scale learning on {}, scale 32 and the margins of its number of levels.", {"loss": "CSL"}),
    "triplet": ("Triplets with semi-hard negatives (SH) on {}'s finest level.", {"loss": "Triplet", "margin": 0.1}),
    "triplet-sigma": (
        "Triplets with semi-hard negatives (SH) on {}, summed over the levels.",
        {"loss": "Triplet", "margin": 0.1, "sum_levels": True},
    ),
    "xbm": (
        "Contrastive pairs on {} over a memory of the whole training set, batches of 128.",
        {"loss": "Contrastive", "contrastive": "cosine", "margin": 0.5},
    ),
    "contrastive": ("Contrastive pairs on {}.", {"loss": "Contrastive", "contrastive": "distance"}),
    "multigrain": (
        "MultiGrain: classification and retrieval alike, GeM with p = 3.",
        {"loss": "MultiGrain", "lambda_": 0.5},
    ),
    "multigrain-avg": (
        "MultiGrain with average pooling (p = 1).",
        {"loss": "MultiGrain", "lambda_": 0.5, "gem_p": 1.0},
    ),
    "multigrain-classes": (
        "MultiGrain's classification term alone, GeM with p = 3.",
        {"loss": "MultiGrain", "lambda_": 1.0},
    ),
    "multigrain-classes-avg": (
        "MultiGrain's classification term alone, with average pooling (p = 1).",
        {"loss": "MultiGrain", "lambda_": 1.0, "gem_p": 1.0},
    ),
    "off-the-shelf": (
        "A network as its library has it, with its own classifier, to be tested at any size and p; nothing is trained.",
        {"loss": "MultiGrain", "lambda_": 1.0},
    ),
    "small": ("HAPPIER from scratch on {}, 48 px.", {"loss": "HAPPIER"}),
    "small-views": (
        "Two views of an image are one, on {}, 48 px: a start without labels, for --init-from.",
        {"loss": "MultiGrain", "lambda_": 0.0},
    ),
}
"""Losses by the first part of a recipe's name: the recipe's line, and the fields that a setting changes for it."""


_HAPPIER_5 = "HAPPIER on {}: both terms weigh the same, as in the authors' command (loss HAPPIER_5)."
_MERGED = "{} on {{}}, every three training classes merged into one: a test of robustness."
_TRIPLETS = "Triplets with GeM on {}, as many updates as listwise AP is compared with."
_RELEASED: tuple[tuple[Callable[[str, TrainConfig], bool], str], ...] = (
    (
        lambda loss, config: loss != "small" and "rho" in options_of(config.loss.loss),
        "SupRank's step is continuous at delta, as the paper has it; the released code jumps there (`offset`)",
    ),
    (
        lambda loss, config: config.loss.memory != 0,
        "the memory is empty until the epoch from which it is read; the released code fills it from the first step",
    ),
    (lambda loss, config: loss == "xbm", "the losses of batch and memory are added; the released code averages them"),
    (lambda loss, config: loss == "happier-f", "lambda 0.1 as the paper states; the released configurations have 0.5"),
    (
        lambda loss, config: loss.startswith("rod-recall"),
        "lambda 0.1, the only one that the paper states; the released configurations weigh both terms alike",
    ),
)
"""Ways in which recipes differ from the authors' released code, and of which recipes each holds."""
_UNIFORM = "Cross-entropy alone in batches of different images, {}: MultiGrain's ResNet-50."
_ALL_POSITIVES = "an anchor has all its positives; the released code takes the nearest"
_WEIGHT_5 = "lambda is that of the authors' command; the paper states 0.1 alone"
_LISTWISE = "Listwise AP on {}: SoftBin-AP, 20 bins, every class in every batch of some 4,096, 200 steps."


@dataclass(frozen=True)
class Family:
    """Recipes of losses of one kind.

    Attributes:
        title: of the family.
        text: the papers, and the settings that are not as published.
        recipes: in the order of the papers' tables.
    """

    title: str
    text: str
    recipes: tuple[Recipe, ...]


def _row(loss: str, *settings: Setting, line: str = "", deviates: str = "", **fields: Any) -> tuple[Recipe, ...]:
    """Return the recipes of a loss in several settings; ``fields`` are changed in these settings alone."""
    usual, own = LOSSES[loss]
    recipes = []
    for setting in settings:
        suffix = setting.dataset if setting.suffix is None else setting.suffix
        name = f"{loss}-{suffix}" if suffix else loss
        told = (line or usual).format(setting.short, **fields)
        found = published_of(name, setting.dataset)
        changed = _with_floor(setting, {**own, **fields})
        config = with_fields(setting.config, changed)
        said = [*([deviates] if deviates else []), *(text for holds, text in _RELEASED if holds(loss, config))]
        recipes.append(Recipe(name, told, setting, changed, found, tuple(said)))
    return tuple(recipes)


def _with_floor(setting: Setting, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Let fast proxies end at 0.1, as the authors' configurations have it (``eta_min``), but for CSL."""
    config = with_fields(setting.config, fields)
    fast = config.optimizer.lr_proxies >= 10 and config.loss.loss != "CSL"
    return {**fields, "lr_floor_proxies": 0.1} if fast and READERS["lr_floor_proxies"].reads(config) else fields


FAMILIES = (
    Family(
        "Losses over the whole hierarchy: HAPPIER, ROD-NDCG and their parts",
        """
Ramzi et al.: "Hierarchical Average Precision Training for Pertinent Image Retrieval", ECCV 2022, arXiv:2207.04873, and
"Optimization of Rank Losses for Image Retrieval", arXiv:2309.08250, whose tables are the rows named here.
""",
        (
            *_row("happier", on.SOP, on.INAT_BASE, on.INAT_FULL, on.CUB, on.DYML_VEHICLE, on.DYML_PRODUCT),
            *_row("happier", on.DYML_ANIMAL, line=_HAPPIER_5, lambda_=0.5, deviates=_WEIGHT_5),
            *_row("happier-f", on.SOP, alpha=5.0),
            *_row("happier-f", on.INAT_BASE, on.INAT_FULL, alpha=3.0),
            *_row("sup-ndcg", on.SOP, on.INAT_BASE, on.INAT_FULL),
            *_row("rod-ndcg", on.SOP, on.INAT_BASE, on.INAT_FULL),
            *_row("rod-ndcg", on.DYML_VEHICLE, on.DYML_ANIMAL, on.DYML_PRODUCT),
            *_row("sup-h-ap", on.SOP, on.INAT_BASE, on.INAT_FULL),
            *_row("sigmoid-h-ap", on.SOP, on.INAT_BASE),
            *_row("weighted-ap", on.SOP, on.INAT_BASE),
        ),
    ),
    Family(
        "Average precision by its upper bound: Sup-AP, and ROADMAP with the pair and the proxy loss",
        """
Ramzi et al.: "Robust and Decomposable Average Precision for Image Retrieval", NeurIPS 2021, arXiv:2110.01445, and
arXiv:2309.08250. Recipes with ``2021`` in their names are of the first edition, by the commands in the README of
elias-ramzi/ROADMAP: on SOP 128 images of 256 px, on iNaturalist batches of 384, no frozen epochs, layer norm on CUB
alone, and DeiT under AdamW; the rates of its ResNet are not among them and are those of the later paper. All others are
of the later edition: Table II with both second terms, Table IV with GeM and a memory of the whole training set, which
``memory/inat_memory.yaml`` of elias-ramzi/SupRank cuts to 60,000 items on iNaturalist (``--memory 60000``).
""",
        (
            *_row("sup-ap", on.SOP, on.INAT_BASE, on.CUB),
            *_row("roadmap-pair", on.SOP, on.INAT_BASE),
            *_row("roadmap-proxy", on.SOP, on.INAT_BASE, on.CUB),
            *_row("roadmap-proxy", on.DYML_VEHICLE, on.DYML_ANIMAL, on.DYML_PRODUCT),
            *_row("roadmap-xbm", on.SOP_MEMORY, on.INAT_MEMORY, on.CUB_MEMORY),
            *_row("roadmap-2021", on.SOP_2021, on.INAT_2021, on.CUB_2021),
            *_row("roadmap-2021-deit", on.SOP_DEIT_2021, on.INAT_DEIT_2021, on.CUB_DEIT_2021),
            *_row("roadmap-deit", on.SOP_DEIT, on.INAT_DEIT, on.CUB_DEIT),
            *_row("roadmap-vit", on.SOP_VIT, on.INAT_VIT, on.CUB_VIT),
        ),
    ),
    Family(
        "Recall at k: by a sigmoid, by its upper bound, with a proxy loss, with virtual items (SiMix)",
        """
Patel, Tolias and Matas: "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", CVPR 2022, arXiv:2108.11179,
whose batches of 4,000 pass the model in chunks; Ramzi et al., arXiv:2309.08250. The second temperature is the paper's,
1; the released code has k itself. ROD-R@k has lambda 0.1, the only one that the paper states; ``loss/ROADRatk_*.yaml``
of elias-ramzi/SupRank name no weights, so that ``suprank/getter.py`` takes equal ones (``--lambda 0.5``).
""",
        (
            *_row("smooth-recall", on.SOP, on.INAT_BASE, on.CUB),
            *_row("sup-recall", on.SOP, on.INAT_BASE, on.CUB),
            *_row("rod-recall", on.SOP, on.INAT_BASE, on.CUB),
            *_row("rod-recall-pair", on.SOP, on.INAT_BASE),
            *_row("smooth-recall-large", on.SOP_4000, on.INAT_4000, on.VEHICLEID_4000),
            *_row("smooth-recall-simix", on.SOP_4000, on.INAT_4000, on.VEHICLEID_4000),
            *_row("sup-recall-simix", on.SOP, on.INAT_BASE),
            *_row("rod-recall-simix", on.SOP, on.INAT_BASE),
        ),
    ),
    Family(
        "Average precision by other ways: Smooth-AP, SoftBin-AP, FastAP, Blackbox AP and the five PNP losses",
        """
Brown et al.: "Smooth-AP", ECCV 2020, arXiv:2007.12163; Cakir et al.: "Deep Metric Learning to Rank" (FastAP), CVPR
2019; Rolinek et al.: "Optimizing Rank-Based Metrics With Blackbox Differentiation", CVPR 2020; Li et al.: "Rethinking
the Optimization of Average Precision" (PNP), AAAI 2022, arXiv:2102.04640, whose released command is D_q with alpha 4.
Recipes with a number at their end have batches of so many images; 256 is the setting of arXiv:2309.08250.
""",
        (
            *_row("smooth-ap", on.SOP_384, on.SOP_224, on.INAT_384, on.INAT_224, on.VEHICLEID, on.CUB),
            *_row("smooth-ap", on.SOP_256, on.INAT_BASE_256, on.INAT_FULL),
            *_row("smooth-ap", on.DYML_VEHICLE, on.DYML_ANIMAL, on.DYML_PRODUCT),
            *_row("softbin-ap", on.SOP, on.INAT_BASE, on.CUB),
            *_row("fast-ap", on.SOP, on.INAT_BASE, on.CUB, on.INAT_384_COMPARED, on.VEHICLEID),
            *_row("blackbox-ap", on.SOP, on.INAT_BASE, on.CUB, on.INAT_384_COMPARED, on.VEHICLEID),
            *_row("pnp-o", on.PNP_SOP, on.PNP_VEHICLEID, on.PNP_INAT),
            *_row("pnp-iu", on.PNP_SOP, on.PNP_VEHICLEID, on.PNP_INAT),
            *_row("pnp-ib", on.PNP_SOP, on.PNP_INAT),
            *_row("pnp-ib", on.PNP_VEHICLEID, pnp_b=1.0),
            *_row("pnp-ds", on.PNP_SOP, on.PNP_VEHICLEID, on.PNP_INAT),
            *_row("pnp-dq", on.PNP_SOP, on.PNP_VEHICLEID, on.PNP_INAT, on.PNP_SOP_384, on.PNP_VEHICLEID_384),
            *_row("pnp-dq", on.SOP_MERGED, on.VEHICLEID_MERGED, line=_MERGED.format("PNP-D_q")),
            *_row("pnp-iu", on.SOP_MERGED, on.VEHICLEID_MERGED, line=_MERGED.format("PNP-I_u")),
            *_row("smooth-ap", on.SOP_MERGED, on.VEHICLEID_MERGED, line=_MERGED.format("Smooth-AP")),
        ),
    ),
    Family(
        "Proxy and tuple losses: NormSoftmax, ProxyNCA++, CSL, triplets, pairs over a memory; sigma: summed over the "
        "levels",
        """
Zhai and Wu, "Classification is a Strong Baseline for Deep Metric Learning" (NormSoftmax), BMVC 2019, arXiv:1811.12649;
Teh et al., "ProxyNCA++", ECCV 2020, arXiv:2004.01113; Sun et al., "Dynamic Metric Learning" (CSL), CVPR 2021,
arXiv:2103.11781; Wang et al., "Cross-Batch Memory", CVPR 2020, arXiv:1912.06798. They are baselines of HAPPIER's
papers, in whose setting they stand here, with the options of ``suprank/config/loss`` of elias-ramzi/SupRank; the
triplets' margin of 0.05 in cosine is 0.1 in squared distance (there an anchor has its nearest positive, here all of
them). XBM's pairs are those of ``xbm.yaml`` and ``memory/*.yaml``, the margin a cosine; there the batch's and the
memory's losses are averaged, here they are added, and there the memory, read from the fifth epoch on, is filled from
the first step, here it is empty until it is read, after the fifth. CLCD, of Table VIII, has no recipe: none of these
papers describes it.
""",
        (
            *_row("norm-softmax", on.SOP, on.INAT_BASE, on.INAT_FULL),
            *_row("norm-softmax", on.CUB, lr_proxies=400.0),
            *_row("norm-softmax", on.DYML_VEHICLE, on.DYML_ANIMAL, on.DYML_PRODUCT),
            *_row("norm-softmax-sigma", on.SOP, on.INAT_BASE, on.INAT_FULL),
            *_row("norm-softmax-sigma", on.DYML_VEHICLE, on.DYML_ANIMAL, on.DYML_PRODUCT),
            *_row("proxy-nca", on.SOP_SLOW, on.INAT_BASE_SLOW, on.INAT_FULL_SLOW, on.CUB_SLOW),
            *_row("proxy-nca-sigma", on.SOP_SLOW, on.INAT_BASE_SLOW, on.INAT_FULL_SLOW),
            *_row("csl", on.SOP, on.INAT_BASE_SLOW, on.INAT_FULL_SLOW),
            *_row("csl", on.DYML_VEHICLE, on.DYML_ANIMAL, on.DYML_PRODUCT),
            *_row("triplet", on.SOP, on.INAT_BASE, on.INAT_FULL, on.CUB, deviates=_ALL_POSITIVES),
            *_row("triplet", on.DYML_VEHICLE, on.DYML_ANIMAL, on.DYML_PRODUCT, deviates=_ALL_POSITIVES),
            *_row("triplet-sigma", on.SOP, on.INAT_BASE, on.INAT_FULL, deviates=_ALL_POSITIVES),
            *_row("triplet-sigma", on.DYML_VEHICLE, on.DYML_ANIMAL, on.DYML_PRODUCT, deviates=_ALL_POSITIVES),
            *_row("xbm", on.SOP_128, on.INAT_128, on.CUB_128),
        ),
    ),
    Family(
        "MultiGrain: one embedding for classes and instances, views of an image as positives",
        """
Berman et al.: "MultiGrain: a unified image embedding for classes and instances", 2019, arXiv:1902.05509.
""",
        (
            *_row("multigrain", on.IMAGENET),
            *_row("multigrain-avg", on.IMAGENET),
            *_row("multigrain-classes", on.IMAGENET),
            *_row("multigrain-classes-avg", on.IMAGENET),
            *_row("multigrain", on.IMAGENET_AA, line="MultiGrain with AutoAugment, GeM with p = 3."),
            *_row("multigrain-avg", on.IMAGENET_AA, line="MultiGrain with AutoAugment and average pooling (p = 1)."),
            *_row("multigrain-classes", on.IMAGENET_UNIFORM, line=_UNIFORM.format("GeM with p = 3")),
            *_row("multigrain-classes-avg", on.IMAGENET_UNIFORM, line=_UNIFORM.format("average pooling")),
            *_row("off-the-shelf", on.RESNET_50, on.SENET_154, on.PNASNET_5),
        ),
    ),
    Family(
        "Landmarks: listwise AP on Landmarks-clean, and the losses that are compared on H-GLDv2",
        """
Revaud et al.: "Learning with Average Precision: Training Image Retrieval with a Listwise Loss", ICCV 2019,
arXiv:1906.07589; Ramzi et al., arXiv:2309.08250. The proxies of CSL move at 10 (``csl_gldv2_L3.yaml`` of
elias-ramzi/SupRank).
""",
        (
            *_row("softbin-ap", on.LANDMARKS_CLEAN, line=_LISTWISE),
            *_row("triplet", on.LANDMARKS_64, on.LANDMARKS_512, on.LANDMARKS_1024, line=_TRIPLETS),
            *_row("contrastive", on.LANDMARKS_PAIRS),
            *_row("happier", on.H_GLDV2),
            *_row("happier-f", on.H_GLDV2, alpha=3.0, deviates="alpha on H-GLDv2 is not stated: that of iNaturalist"),
            *_row("rod-ndcg", on.H_GLDV2),
            *_row("roadmap-proxy", on.H_GLDV2),
            *_row("rod-recall", on.H_GLDV2),
            *_row("smooth-ap", on.H_GLDV2),
            *_row("softbin-ap", on.H_GLDV2),
            *_row("smooth-recall", on.H_GLDV2),
            *_row("norm-softmax", on.H_GLDV2),
            *_row("norm-softmax-sigma", on.H_GLDV2),
            *_row("csl", on.H_GLDV2, lr_proxies=10.0),
        ),
    ),
    Family(
        "Faces: networks trained on VGGFace2, trained further by Smooth-AP, pairs and triplets",
        """
Brown et al.: "Smooth-AP", ECCV 2020, arXiv:2007.12163, Tables 4 and 5. Table 5's other rows are sweeps of the first of
these: ``--sweep tau=0.1,0.01,0.001``, ``--sweep images_per_class=4,8,16``, ``--sweep batch_size=64,128,256``.
""",
        (
            *_row("smooth-ap", on.FACES, on.FACES_ARCFACE),
            *_row("contrastive", on.FACES, on.FACES_ARCFACE),
            *_row("triplet", on.FACES, on.FACES_ARCFACE),
        ),
    ),
    Family(
        "Small runs on real images from scratch, for a laptop",
        """
A small residual net at 48 px, judged on classes it has not seen. Any other loss is a flag away: ``hgld train
small-grocery --loss NormSoftmax ...``. It is better from a start that reads no labels: ``hgld train small-views-grocery
--out start ...``, then ``hgld train small-grocery --init-from start ...``.
""",
        (
            *_row("small-views", on.GROCERY_VIEWS, on.WASHINGTON_VIEWS, on.OMNIGLOT_VIEWS),
            *_row("small", on.GROCERY, on.WASHINGTON, on.OMNIGLOT),
        ),
    ),
)
"""All recipes, by family."""

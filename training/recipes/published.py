"""Figures that papers report for the recipes, with the texts in which they were read; none from memory.

A figure stands here only if a text was read that states it: the authors' repository, the paper's abstract, or the copy
of Papers with Code, whose figures the authors or readers entered. Without one, a recipe says that its figures are not
confirmed and names the rows of the paper that hold them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

NOT_CONFIRMED = "not confirmed"


@dataclass(frozen=True)
class Published:
    """Published figures of a recipe.

    Attributes:
        rows: the paper's rows, and the metrics that they hold.
        figures: percent by metric; one of several sets or levels is named in brackets. Empty if no figure was read.
        source: the text in which the figures were read.
        remark: how the published run differs from the recipe, or what else its reader should know.
    """

    rows: str
    figures: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    remark: str = ""

    @property
    def brief(self) -> str:
        """The figures in one line."""
        return ", ".join(f"{metric} {percent}" for metric, percent in self.figures.items()) or NOT_CONFIRMED

    @property
    def lines(self) -> tuple[str, ...]:
        """The figures, their source, a remark, and the paper's rows that hold them."""
        found = (f"read in {self.source}",) if self.figures else ()
        remark = (self.remark,) if self.remark else ()
        return (self.brief, *found, *remark, f"rows: {self.rows}")


def published_of(name: str) -> Published | str:
    """Return the published figures of a recipe of this package, or a sentence if no paper has any."""
    if name in REACHED:
        measured = "benchmarks/quality.py, mean of 3 seeds"
        return f"none; 250 of its steps reached, on unseen classes, {REACHED[name]} ({measured})"
    rows = next(rows for patterns, rows in ROWS.items() if any(fnmatchcase(name, one) for one in patterns.split()))
    figures, source, remark = FIGURES.get(name, ({}, "", ""))
    return Published(rows, figures, source, remark)


_BOTH = "arXiv:2207.04873 and arXiv:2309.08250"
ROWS: Mapping[str, str] = {
    "*-h-gldv2": "the row of this loss in the table of H-GLDv2 in arXiv:2309.08250 (mAP@100, H-AP, ASI, NDCG)",
    "*-landmarks-clean": "the table of revisited Oxford and Paris in arXiv:1906.07589, after whitening (mAP)",
    "happier-f-*": f"HAPPIER_F on this dataset in {_BOTH} (H-AP, ASI, NDCG, fine R@1)",
    "happier-*": f"HAPPIER on this dataset in {_BOTH} (H-AP, ASI, NDCG, fine R@1)",
    "sup-ndcg-* rod-ndcg-*": "Sup-NDCG and ROD-NDCG on this dataset in arXiv:2309.08250 (H-AP, ASI, NDCG, fine R@1)",
    "sup-h-ap-* sigmoid-h-ap-* weighted-ap-*": (
        "ablation of H-AP, its surrogate and its relevance in arXiv:2207.04873 (H-AP, ASI, NDCG)"
    ),
    "sup-ap-*": ("the ablation of Sup-AP and the second term in arXiv:2110.01445 and arXiv:2309.08250 (mAP@R, R@1)"),
    "roadmap-pair-*": "ROADMAP with ResNet-50 on this dataset in arXiv:2110.01445 (R@k)",
    "roadmap-proxy-*": "ROADMAP with the proxy loss on this dataset in arXiv:2309.08250 (R@1, mAP@R)",
    "roadmap-xbm-*": "ROADMAP with a memory on this dataset in arXiv:2309.08250, state-of-the-art setting (R@1)",
    "roadmap-deit-*": "ROADMAP with DeiT-S on this dataset in arXiv:2110.01445 (R@k)",
    "roadmap-vit-*": "ROADMAP with ViT-B on this dataset in arXiv:2309.08250 (R@1)",
    "smooth-recall-large-* smooth-recall-simix-*": "RS@k with ResNet-50 on this dataset in arXiv:2108.11179 (R@k)",
    "smooth-recall-* sup-recall-* rod-recall-*": "R@k on this dataset in arXiv:2309.08250 (R@1, mAP@R)",
    "smooth-ap-sop smooth-ap-inat-base smooth-ap-vehicleid": "Smooth-AP on this dataset in arXiv:2007.12163 (R@k)",
    "fast-ap-inat-384 fast-ap-vehicleid blackbox-ap-inat-384 blackbox-ap-vehicleid": (
        "this loss among the baselines of arXiv:2007.12163 (R@k)"
    ),
    "smooth-ap-* softbin-ap-* fast-ap-* blackbox-ap-*": (
        "this loss among the AP losses compared in arXiv:2110.01445 and arXiv:2309.08250 (R@1, mAP@R)"
    ),
    "pnp-*": "this variant in arXiv:2102.04640 (R@k)",
    "norm-softmax-* proxy-nca-* csl-* triplet-* xbm-*": f"this loss among the baselines on this dataset in {_BOTH}",
    "multigrain*": "the table of pretrained networks in that README (top-1 of the classifier at 224 px)",
}
"""The papers' rows by shell patterns of recipe names; the first pattern that fits counts."""

_LISTED = "Papers with Code on arXiv:{}".format
_HAPPIER, _ROADMAP, _RECALL, _SMOOTH_AP = map(_LISTED, ("2207.04873", "2110.01445", "2108.11179", "2007.12163"))
_NCA = "abstract of arXiv:2004.01113"
_NCA_SETTING = "in its own setting: max pooling and its own rates; here it is HAPPIER's baseline"
_NSM = "README of azgo14/classification_metric_learning"
_NSM_SETTING = "in its own setting: 2,048 dimensions, batches of 75, 30 epochs; here it is HAPPIER's baseline"
_MULTIGRAIN = "README of facebookresearch/multigrain"
_INAT = "listed for iNaturalist, without saying whether base or full"
_F = "lambda 0.1 as in the paper; the released loss/HAPPIER_5_SOP.yaml, named HAPPIER_F, has 0.5"
_DEIT_B = "listed as DeiT-B; the released model has the 384 dimensions of DeiT-S"
_SIMIX = "listed without saying whether SiMix was on; its authors find it useful on small datasets most"
_R_4 = "R@4 is listed as R@5, but the authors' evaluation has k = 1, 4, 16, 32"
_RECALL_SOP = ({"R@1": 82.7}, _RECALL, _SIMIX)
_RECALL_INAT = ({"R@1": 71.8, "R@4": 84.7, "R@16": 91.9, "R@32": 94.3}, _RECALL, f"{_SIMIX}; {_R_4}")

FIGURES: Mapping[str, tuple[Mapping[str, float], str, str]] = {
    "happier-sop": ({"R@1": 81.0}, _HAPPIER, ""),
    "happier-inat-base": ({"R@1": 70.7}, _HAPPIER, _INAT),
    "happier-dyml-vehicle": ({"AP (mean of the levels)": 37.0}, _HAPPIER, ""),
    "happier-dyml-product": ({"AP (mean of the levels)": 38.0}, _HAPPIER, ""),
    "happier-dyml-animal": ({"AP (mean of the levels)": 43.8}, _HAPPIER, ""),
    "happier-f-sop": ({"R@1": 81.8}, _HAPPIER, _F),
    "happier-f-inat-base": ({"R@1": 71.0}, _HAPPIER, _INAT),
    "roadmap-pair-sop": ({"R@1": 83.1}, _ROADMAP, ""),
    "roadmap-pair-cub": ({"R@1": 68.5}, _ROADMAP, ""),
    "roadmap-deit-sop": ({"R@1": 86.0}, _ROADMAP, _DEIT_B),
    "roadmap-deit-inat-base": ({"R@1": 73.6}, _ROADMAP, ""),
    "roadmap-deit-cub": ({"R@1": 77.4}, _ROADMAP, _DEIT_B),
    "smooth-recall-large-sop": _RECALL_SOP,
    "smooth-recall-simix-sop": _RECALL_SOP,
    "smooth-recall-large-inat-base": _RECALL_INAT,
    "smooth-recall-simix-inat-base": _RECALL_INAT,
    "smooth-ap-sop": ({"R@1": 80.1}, _SMOOTH_AP, ""),
    "smooth-ap-inat-base": ({"R@1": 67.2, "R@4": 81.8, "R@16": 90.3, "R@32": 93.1}, _SMOOTH_AP, _R_4),
    "smooth-ap-vehicleid": (
        {"R@1 (small)": 94.9, "R@5 (small)": 97.6}
        | {"R@1 (medium)": 93.3, "R@5 (medium)": 96.4}
        | {"R@1 (large)": 91.9, "R@5 (large)": 96.2},
        _SMOOTH_AP,
        "",
    ),
    "norm-softmax-sop": ({"R@1": 79.55, "R@10": 91.54, "R@100": 96.66}, _NSM, _NSM_SETTING),
    "norm-softmax-cub": ({"R@1": 65.36, "R@2": 76.76, "R@4": 85.42, "R@8": 91.51}, _NSM, _NSM_SETTING),
    "proxy-nca-sop": ({"R@1": 81.4}, _NCA, _NCA_SETTING),
    "proxy-nca-cub": ({"R@1": 72.2}, _NCA, _NCA_SETTING),
    "xbm-sop": (
        {"R@1": 80.6},
        _LISTED("1912.06798"),
        "in its own setting; readers of its code reached about 75 (issue 12 of msight-tech/research-xbm)",
    ),
    "multigrain": ({"top-1": 77.4}, _MULTIGRAIN, ""),
    "multigrain-avg": ({"top-1": 77.0}, _MULTIGRAIN, ""),
    "multigrain-classes": ({"top-1": 76.9}, _MULTIGRAIN, ""),
    "multigrain-classes-avg": ({"top-1": 76.8}, _MULTIGRAIN, ""),
    "softbin-ap-landmarks-clean": (
        {"AP (ROxford medium)": 67.1, "AP (ROxford hard)": 42.3, "AP (RParis medium)": 80.3, "AP (RParis hard)": 60.9},
        "README of naver/deep-image-retrieval, Resnet101-AP-GeM",
        "at one resolution, whitened by a PCA of Landmarks-clean",
    ),
}
"""By recipe: the figures in percent, the text in which they were read, and a remark."""

REACHED: Mapping[str, str] = {
    "small-grocery": "R@1 67.4, H-AP 44.6, ASI 59.8",
    "small-gldv2-washington": "R@1 42.6, H-AP 26.2, ASI 61.0",
    "small-omniglot": "R@1 77.8, H-AP 53.8, ASI 54.2",
}
"""Measured figures of recipes that are from no paper, after some of their steps."""

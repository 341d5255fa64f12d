"""Small runs on real images from scratch, for a laptop: a small conv net at 48 px, judged on classes it has not seen.

Any other loss is a flag away: ``hgld train small-grocery --loss NormSoftmax ...``.
"""

from training.config import TrainConfig
from training.recipes.recipe import Setting, recipe
from training.recipes.settings import SMALL

_CPU = "two CPU cores"
_NONE = "nothing; benchmarks/quality.py measures what such runs reach"


def _manifest(title: str, levels: str, **fields: object) -> Setting:
    made = f"hgld build-shards manifest --source labels.csv --images . --levels {levels} --test-classes 0.5 --out DIR"
    return Setting("manifest", f"{title}; {made}", _CPU, SMALL).changed(**fields)


_GROCERY = _manifest("the Grocery Store Dataset", "fine,coarse,top")
_WASHINGTON = _manifest(
    "Google Landmarks v2 of Washington state, rows without `unclassified`",
    "fine,supercategory,hierarchical_label,natural_or_human_made",
)
_OMNIGLOT = _manifest("Omniglot's characters", "fine,alphabet,script_type", flip=0.0)


@recipe(_GROCERY, _NONE)
def small_grocery() -> TrainConfig:
    """HAPPIER from scratch on photographs of groceries, 48 px."""
    return _GROCERY.train(loss="HAPPIER")


@recipe(_WASHINGTON, _NONE)
def small_gldv2_washington() -> TrainConfig:
    """HAPPIER from scratch on landmarks of Washington state, 48 px."""
    return _WASHINGTON.train(loss="HAPPIER")


@recipe(_OMNIGLOT, _NONE)
def small_omniglot() -> TrainConfig:
    """HAPPIER from scratch on handwritten characters, 48 px, never mirrored."""
    return _OMNIGLOT.train(loss="HAPPIER")

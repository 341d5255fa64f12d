"""Training data of a model among the images of a report, as the report's settings state them."""

from collections.abc import Mapping
from typing import Any

TRAINED_ON = "trained_on"  # the setting
_TOLERATED = 0.01  # share of the images: real data has a few of them twice


def was_trained_on(facts: Mapping[str, Any]) -> bool:
    """Tell whether a model was trained on the images of some queries, beyond a few.

    Args:
        facts: ``images`` trained on ``of_images``, from the setting.
    """
    return facts["images"] > _TOLERATED * facts["of_images"]


def trained_on_text(settings: Mapping[str, Any]) -> str:
    """Return a sentence on what a model had seen of a report's queries; empty for nothing.

    >>> facts = {"images": 0, "of_images": 50, "classes": 9, "of_classes": 9, "as": "pets, train"}
    >>> trained_on_text({"trained_on": facts})
    'closed set: the run was trained on 9 of 9 classes.'
    """
    facts = settings.get(TRAINED_ON)
    if not facts:
        return ""
    if was_trained_on(facts):
        return f"TRAINED ON: {facts['images']:,} of {facts['of_images']:,} images of the queries, as {facts['as']}."
    also = f" and {facts['images']:,} of {facts['of_images']:,} images" if facts["images"] else ""
    return f"closed set: the run was trained on {facts['classes']:,} of {facts['of_classes']:,} classes{also}."

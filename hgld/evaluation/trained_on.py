"""Overlap of a model's training data with the images of a report, from the report's settings."""

from collections.abc import Mapping
from typing import Any

TRAINED_ON = "trained_on"  # key in a report's settings
_TOLERATED = 0.01  # tolerated share of training images, because real datasets hold a few images twice


def was_trained_on(facts: Mapping[str, Any]) -> bool:
    """Return whether a model was trained on more than a few of the query images.

    Args:
        facts: the report's setting ``trained_on``. ``images`` is the number of query images that the run was trained
            on, ``of_images`` the number of query images.
    """
    return facts["images"] > _TOLERATED * facts["of_images"]


def trained_on_text(settings: Mapping[str, Any]) -> str:
    """Return a sentence on the overlap of a model's training data with a report's queries; empty without overlap.

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

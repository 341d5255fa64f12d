"""Which encoders there are, and how one is named: ``lexical``, ``clip:MODEL/PRETRAINED``, ``sbert:PATH``.

The last two may be joined with the first: ``clip:MODEL/PRETRAINED+lexical``.

An encoder turns names into unit rows. Making one is cheap: model weights are read with the first name that is asked
for, so that a build whose embeddings are cached needs none.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hgld.errors import ConfigError
from pipelines.progress import Progress

KINDS = ("lexical", "clip:MODEL/PRETRAINED", "sbert:PATH")
JOINED = "+lexical"


class Encoder(Protocol):
    """Names as rows of one space.

    Attributes:
        name: the encoder as people know it; of a path only the last part.
        key: changes whenever the same name would get another row.
        templates: prompts with ``{}`` that a name is put into, averaged; empty: the name alone.
    """

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def templates(self) -> tuple[str, ...]: ...

    @property
    def dim(self) -> int:
        """D; may read the model."""
        ...

    def encode(self, names: Sequence[str], progress: Progress = ...) -> np.ndarray:
        """(N, D) float32 unit rows.

        Raises:
            MissingResourceError: the model cannot be had here.
        """
        ...


def make_encoder(
    spec: str,
    *,
    names: Sequence[str] = (),
    templates: Sequence[str] = (),
    device: str = "",
    batch_size: int = 256,
) -> Encoder:
    """The encoder that ``spec`` names.

    Args:
        spec: one of ``KINDS``, or one of the last two and ``+lexical``; PRETRAINED may be a tag of open_clip or a
            checkpoint's path.
        names: what ``lexical`` is fitted on; the others do not need them.
        templates: prompt templates with one ``{}``; empty: the encoder's own.
        device: ``cpu``, ``cuda``, ...; empty: a GPU when there is one.
        batch_size: names a forward pass.

    Raises:
        ConfigError: an unknown encoder, model or tag (with the nearest names), a template without ``{}``, a device
            that is not there, or templates for an encoder that takes none.
        MissingResourceError: a file or a package is not here.
    """
    if spec.endswith(JOINED):
        from pipelines.joined_encoder import JoinedEncoder

        first = make_encoder(spec.removesuffix(JOINED), templates=templates, device=device, batch_size=batch_size)
        return JoinedEncoder(first, make_encoder("lexical", names=names))
    kind, _, rest = spec.partition(":")
    _check_templates(templates)
    if batch_size < 1:
        raise ConfigError(f"--batch-size is {batch_size}; expected at least 1.")
    if spec == "lexical":
        from pipelines.lexical_encoder import LexicalEncoder

        if templates:
            raise ConfigError(
                "--encoder lexical reads names as they are; leave --templates out, or take clip: or sbert:."
            )
        return LexicalEncoder(names)
    if kind == "clip" and rest:
        from pipelines.clip_encoder import ClipEncoder

        return ClipEncoder(rest, templates=templates, device=device, batch_size=batch_size)
    if kind == "sbert" and rest:
        from pipelines.sbert_encoder import SbertEncoder

        return SbertEncoder(rest, templates=templates, device=device, batch_size=batch_size)
    raise ConfigError(
        f"--encoder is {spec!r}; expected one of {', '.join(KINDS)}, or one of the last two with {JOINED} behind it."
    )


def _check_templates(templates: Sequence[str]) -> None:
    for template in templates:
        if template.count("{}") != 1 or template.count("{") != 1 or template.count("}") != 1:
            raise ConfigError(
                f"template {template!r}: expected one {{}} where the name goes, as in 'a photo of a {{}}.'"
            )

"""Which encoders there are, and how one is named: ``lexical``, ``clip:MODEL/PRETRAINED``, ``sbert:PATH``.

The last two may be joined with the first: ``clip:MODEL/PRETRAINED+lexical``.

An encoder turns names into unit rows. Making one is cheap: model weights are read with the first name that is asked
for, so that a build whose embeddings are cached needs none.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hgld.errors import ConfigError, takes_extra
from hgld.pipelines.stage import Progress, silent

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
        first = make_encoder(spec.removesuffix(JOINED), templates=templates, device=device, batch_size=batch_size)
        return JoinedEncoder(first, make_encoder("lexical", names=names))
    kind, _, rest = spec.partition(":")
    _check_templates(templates)
    if batch_size < 1:
        raise ConfigError(f"--batch-size is {batch_size}; expected at least 1.")
    if spec == "lexical":
        from hgld.pipelines.hierarchy.encoders.lexical import LexicalEncoder

        if templates:
            raise ConfigError(
                "--encoder lexical reads names as they are; leave --templates out, or take clip: or sbert:."
            )
        return LexicalEncoder(names)
    if kind == "clip" and rest:
        with takes_extra("clip", f"--encoder {spec}", "Or take --encoder lexical, which needs no weights."):
            from hgld.pipelines.hierarchy.encoders.clip import ClipEncoder

        return ClipEncoder(rest, templates=templates, device=device, batch_size=batch_size)
    if kind == "sbert" and rest:
        from hgld.pipelines.hierarchy.encoders.sbert import SbertEncoder

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


# Two encoders side by side: what a model knows of meanings and what the lexical encoder knows of form.


class JoinedEncoder:
    """Rows of two encoders behind each other, each counting half of the squared length.

    So the cosine of two names is the mean of their cosines by either encoder.

    Args:
        parts: the encoders.

    Attributes:
        parts: the encoders, whose rows can be kept and made apart (:meth:`join`).
    """

    def __init__(self, *parts: Encoder) -> None:
        self.parts = parts

    @property
    def name(self) -> str:
        """The parts' names, joined by +."""
        return "+".join(part.name for part in self.parts)

    @property
    def key(self) -> str:
        """The parts' keys, joined by +."""
        return "+".join(part.key for part in self.parts)

    @property
    def templates(self) -> tuple[str, ...]:
        """The parts' templates."""
        return tuple(template for part in self.parts for template in part.templates)

    @property
    def dim(self) -> int:
        """The sum of the parts' dimensions; may read a model."""
        return sum(part.dim for part in self.parts)

    def encode(self, names: Sequence[str], progress: Progress = silent) -> np.ndarray:
        """(N, D) float32 unit rows; zero only where every part's row is."""
        return self.join([part.encode(names, progress) for part in self.parts])

    def join(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """Rows of the same names by each part, (N, D_i) each, as rows of the whole, (N, D) float32."""
        both = np.concatenate(rows, axis=1)
        lengths = np.linalg.norm(both, axis=1, keepdims=True)
        return np.divide(both, lengths, out=np.zeros_like(both), where=lengths > 0)

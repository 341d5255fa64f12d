"""The registry of encoders and the syntax of their names: ``lexical``, ``clip:MODEL/PRETRAINED``, ``sbert:PATH``.

The last two may be joined with the first: ``clip:MODEL/PRETRAINED+lexical``.

An encoder turns names into unit rows. Making one is cheap: model weights are read with the first name that is asked
for, so that a build whose embeddings are cached needs none. An encoder of hgld needs its class and a line of
:data:`ENCODERS`; one of another package its class and an entry point of the group ``hgld.encoders``
(:mod:`hgld.plugins`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from hgld.errors import ConfigError, optional_dependency
from hgld.plugins import Plugins

from ...stage import Progress, silent
from ..names.languages import EVERY, English


@dataclass(frozen=True)
class EncoderEntry:
    """An encoder of hgld.

    Attributes:
        form: its name on the command line; the text behind the colon is its class's first argument.
        place: module and class.
        extra: of hgld, which brings its packages.
        packages: distributions whose versions are part of a build's provenance.
        encodes_images: True if it encodes images too.
    """

    form: str
    place: str
    extra: str = ""
    packages: tuple[str, ...] = ()
    encodes_images: bool = False


_HERE = "hgld.pipelines.hierarchy.encoders"
ENCODERS: Mapping[str, EncoderEntry] = {
    "lexical": EncoderEntry("lexical", f"{_HERE}.lexical:LexicalEncoder"),
    "clip": EncoderEntry(
        "clip:MODEL/PRETRAINED", f"{_HERE}.clip:ClipEncoder", "", ("open_clip_torch", "torch"), encodes_images=True
    ),
    "sbert": EncoderEntry("sbert:PATH", f"{_HERE}.sbert:SbertEncoder", "sbert", ("sentence-transformers", "torch")),
}
"""The encoders of hgld."""

PLUGINS = Plugins("hgld.encoders", "encoder", ENCODERS)
JOINED = "+lexical"
_WAY_OUT = "Or take --encoder lexical, which needs no weights."


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
        """Dimension D; may read the model."""
        ...

    def encode(self, names: Sequence[str], progress: Progress = ...) -> np.ndarray:
        """Return (N, D) float32 unit rows.

        Raises:
            MissingResourceError: the model cannot be had here.
        """
        ...


def entry_of(spec: str) -> EncoderEntry | None:
    """Return hgld's encoder that a spec names; None for one of another package."""
    return ENCODERS.get(spec.partition(":")[0])


def encoder_forms() -> str:
    """Return the forms of encoders' names, for messages."""
    return ", ".join([*(entry.form for entry in ENCODERS.values()), *PLUGINS.names()])


def is_fitted_on_names(spec: str) -> bool:
    """Tell whether an encoder, or the second of two, asks for the names that it is to encode."""
    return spec.endswith(JOINED) or "names" in inspect.signature(_class_of(spec)).parameters


def make_encoder(
    spec: str,
    *,
    names: Sequence[str] = (),
    templates: Sequence[str] = (),
    device: str = "",
    batch_size: int = 256,
    lexicon: bool = True,
    english: English = EVERY,
) -> Encoder:
    """Return the encoder that ``spec`` names.

    Args:
        spec: the name of an encoder, with ``:`` and its argument where it takes one, and perhaps ``+lexical``.
        names: the names that ``lexical`` is fitted on; an encoder gets only the options that it asks for.
        templates: prompt templates with one ``{}``; empty: the encoder's own.
        device: ``cpu``, ``cuda``, ...; empty: a GPU when there is one.
        batch_size: names a forward pass.
        lexicon: whether ``lexical`` knows hgld's nouns for places, which say nothing about names of other things.
        english: which names ``lexical`` divides by the rules of English.

    Raises:
        ConfigError: an unknown encoder, model or tag (with the nearest names), a template without ``{}``, a device
            that is not available, or templates for an encoder that takes none.
        MissingResourceError: a file or a package is missing.
    """
    if spec.endswith(JOINED):
        first = make_encoder(spec.removesuffix(JOINED), templates=templates, device=device, batch_size=batch_size)
        return JoinedEncoder(first, make_encoder("lexical", names=names, lexicon=lexicon, english=english))
    _check_templates(templates)
    if batch_size < 1:
        raise ConfigError(f"--batch-size is {batch_size}; expected at least 1.")
    make = _class_of(spec)
    own = {"names": names, "lexicon": lexicon, "english": english}
    given = {**own, "templates": templates, "device": device, "batch_size": batch_size}
    asked = inspect.signature(make).parameters
    if templates and "templates" not in asked:
        raise ConfigError(f"--encoder {spec} reads names as they are; leave --templates out, or take clip: or sbert:.")
    _, colon, rest = spec.partition(":")
    return make(*([rest] if colon else []), **{name: value for name, value in given.items() if name in asked})


def _class_of(spec: str) -> Callable[..., Any]:
    kind, _, rest = spec.partition(":")
    entry = entry_of(spec)
    if entry is None and kind in PLUGINS.names():
        return PLUGINS.load(kind)
    if entry is None or (":" in entry.form) != bool(rest) or (spec.endswith(":")):
        raise ConfigError(
            f"--encoder is {spec!r}; expected one of {encoder_forms()}; any but lexical may be followed by {JOINED}."
        )
    PLUGINS.refuse_namesakes(kind)
    module, _, name = entry.place.partition(":")
    with optional_dependency(entry.extra, f"--encoder {spec}", _WAY_OUT):
        return getattr(import_module(module), name)


def _check_templates(templates: Sequence[str]) -> None:
    for template in templates:
        if template.count("{}") != 1 or template.count("{") != 1 or template.count("}") != 1:
            raise ConfigError(
                f"template {template!r}: expected one {{}} where the name goes, as in 'a photo of a {{}}.'"
            )


# -- two encoders joined: a model's knowledge of meanings and the lexical encoder's of form -------------------------


class JoinedEncoder:
    """An encoder whose rows are those of several encoders side by side, each with an equal share of the squared length.

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
        """Sum of the parts' dimensions; may read a model."""
        return sum(part.dim for part in self.parts)

    def encode(self, names: Sequence[str], progress: Progress = silent) -> np.ndarray:
        """Return (N, D) float32 unit rows; zero only where every part's row is."""
        return self.join([part.encode(names, progress) for part in self.parts])

    def join(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """Join the rows of the same names by each part, (N, D_i) each, to rows of the whole, (N, D) float32."""
        both = np.concatenate(rows, axis=1)
        lengths = np.linalg.norm(both, axis=1, keepdims=True)
        return np.divide(both, lengths, out=np.zeros_like(both), where=lengths > 0)

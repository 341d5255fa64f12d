"""The registry of encoders and the syntax of their names: ``lexical``, ``clip:MODEL/PRETRAINED``, ``sbert:PATH``.

An encoder turns names into unit rows. It reads its weights when it encodes the first name, so a build with cached
embeddings needs no weights. An encoder of hgld needs a class and a line in :data:`ENCODERS`. An encoder of another
package needs a class and an entry point of the group ``hgld.encoders`` (:mod:`hgld.plugins`).

For ``--classes``, ``auto`` is the best encoder whose weights are already on this machine (:func:`local_encoder`).
"""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hgld.errors import ConfigError, optional_dependency
from hgld.plugins import Plugins

from ...stage import Progress
from ..names.languages import EVERY, English


@dataclass(frozen=True)
class EncoderEntry:
    """An encoder of hgld.

    Attributes:
        form: form of the encoder's name on the command line; the class gets the text after the colon as the first
            argument.
        place: module in this folder, and the encoder's class.
        extra: extra of hgld that installs the encoder's packages.
        packages: names of the packages whose versions a build's provenance records.
    """

    form: str
    place: str
    extra: str = ""
    packages: tuple[str, ...] = ()


ENCODERS: Mapping[str, EncoderEntry] = {
    "lexical": EncoderEntry("lexical", "lexical:LexicalEncoder"),
    "clip": EncoderEntry("clip:MODEL/PRETRAINED", "pretrained:ClipEncoder", packages=("open_clip_torch", "torch")),
    "sbert": EncoderEntry("sbert:PATH", "pretrained:SbertEncoder", "sbert", ("sentence-transformers", "torch")),
}
"""The encoders of hgld."""

PLUGINS = Plugins("hgld.encoders", "encoder", ENCODERS)
HINT = "Or use --encoder lexical, which needs no weights."


class Encoder(Protocol):
    """Protocol for encoders, which turn names into rows of one space.

    Attributes:
        name: readable name of the encoder, with only the last part of a path.
        key: text that changes if the same name gets another row.
        templates: prompts with ``{}`` for the name, whose rows are averaged; empty: only the name.
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
            MissingResourceError: the model is not available on this machine.
        """
        ...


def is_fitted_on_names(spec: str) -> bool:
    """Tell whether an encoder has to be fitted on the names that it will encode."""
    return "names" in inspect.signature(_class_of(spec)).parameters


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
        spec: the name of an encoder, with ``:`` and an argument if the encoder takes one.
        names: the names on which ``lexical`` is fitted. An encoder gets only the options that its class has.
        templates: prompt templates with one ``{}``; empty: the encoder's own templates.
        device: ``cpu``, ``cuda``, ...; empty: a GPU if there is one.
        batch_size: number of names per forward pass.
        lexicon: whether ``lexical`` uses hgld's nouns for places, which suit only names of places.
        english: function that tells which names ``lexical`` divides by English grammar.

    Raises:
        ConfigError: the encoder, model or tag is unknown (the error names the nearest), a template has no ``{}``, the
            device is not available, or the encoder takes no templates.
        MissingResourceError: a file or a package is missing.
    """
    for template in templates:
        if template.count("{}") != 1 or template.count("{") != 1 or template.count("}") != 1:
            raise ConfigError(
                f"template {template!r}: expected one {{}} where the name goes, as in 'a photo of a {{}}.'"
            )
    make = _class_of(spec)
    given = {"names": names, "lexicon": lexicon, "english": english}
    given |= {"templates": templates, "device": device, "batch_size": batch_size}
    asked = inspect.signature(make).parameters
    if templates and "templates" not in asked:
        raise ConfigError(
            f"--encoder {spec} does not use templates. Omit --templates, or choose an encoder clip: or sbert:."
        )
    _, colon, rest = spec.partition(":")
    return make(*([rest] if colon else []), **{name: value for name, value in given.items() if name in asked})


def _class_of(spec: str) -> Callable[..., Any]:
    kind, _, rest = spec.partition(":")
    entry = ENCODERS.get(kind)
    if entry is None and kind in PLUGINS.names():
        return PLUGINS.load(kind)
    if entry is None or (":" in entry.form) != bool(rest) or spec.endswith(":"):
        forms = ", ".join([*(entry.form for entry in ENCODERS.values()), *PLUGINS.names()])
        raise ConfigError(f"--encoder is {spec!r}; expected one of {forms}.")
    PLUGINS.refuse_namesakes(kind)
    module, _, name = entry.place.partition(":")
    with optional_dependency(entry.extra, f"--encoder {spec}", HINT):
        return getattr(import_module(f".{module}", __package__), name)


# -- encoders that are already on this machine, without any download --------------------------------------------------

VARIABLE = "HGLD_SENTENCE_ENCODER"
_SENTENCE_FILES = ("model.safetensors", "pytorch_model.bin")
PREFERRED = (  # order: best published average of sentence-transformers first, multilingual models last
    "all-mpnet-base-v2",
    "all-MiniLM-L12-v2",
    "all-MiniLM-L6-v2",
    "paraphrase-multilingual-mpnet-base-v2",
    "paraphrase-multilingual-MiniLM-L12-v2",
)


def local_encoder() -> tuple[str, str]:
    """Return the best encoder on this machine, and the reason for the choice.

    hgld takes the first of three that is available: the model in the folder that ``HGLD_SENTENCE_ENCODER`` names, the
    first model of :data:`PREFERRED` in Hugging Face's cache, or ``lexical``.
    """
    from huggingface_hub import try_to_load_from_cache  # imported here: it is slow to import, and few builds need it

    named = os.environ.get(VARIABLE, "")
    found = [(named, f"{VARIABLE} names it")] if named else []
    for model in PREFERRED:
        files = (try_to_load_from_cache(f"sentence-transformers/{model}", name) for name in _SENTENCE_FILES)
        folder = next((Path(file).parent for file in files if isinstance(file, str)), None)
        if folder is not None and (folder / "modules.json").is_file():
            found.append((str(folder), f"{model} is in Hugging Face's cache"))
    if not found:
        return "lexical", f"no sentence encoder is on this machine; {VARIABLE} may name a folder"
    if find_spec("sentence_transformers") is None:
        return "lexical", f"{found[0][0]} is here, but sentence-transformers is not installed"
    return f"sbert:{found[0][0]}", found[0][1]

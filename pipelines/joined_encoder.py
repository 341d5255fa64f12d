"""Two encoders side by side: what a model knows of meanings and what the lexical encoder knows of form."""

from collections.abc import Sequence

import numpy as np

from pipelines.encoders import Encoder
from pipelines.progress import Progress, silent


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

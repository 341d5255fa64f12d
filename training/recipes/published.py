"""What a paper reports for a recipe: the figures as they were read, and where; nothing from memory.

A figure stands here only where a text was read that states it: the authors' repository, the paper's abstract, or the
copy of Papers with Code, whose figures the authors or readers entered. Where none was, a recipe says that its figures
are not confirmed and names the rows in which they stand.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

NOT_CONFIRMED = "not confirmed"


@dataclass(frozen=True)
class Published:
    """Published figures of a recipe.

    Attributes:
        rows: the paper's rows, and the metrics that these hold.
        figures: percent by metric; what is measured on one of several sets or levels says so in brackets. Empty where
            no figure was read.
        source: the text in which the figures were read.
        remark: how the published run differs from the recipe, or what else its reader should know.
    """

    rows: str
    figures: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    remark: str = ""

    def read(self, source: str, figures: Mapping[str, float], remark: str = "") -> "Published":
        """The same rows with figures that were read in a source."""
        return replace(self, source=source, figures=figures, remark=remark)

    @property
    def brief(self) -> str:
        """The figures in one line."""
        return ", ".join(f"{metric} {percent}" for metric, percent in self.figures.items()) or NOT_CONFIRMED

    @property
    def lines(self) -> tuple[str, ...]:
        """The figures, where they were read, a remark, and the rows in which they and the others stand."""
        found = (f"read in {self.source}",) if self.figures else ()
        remark = (self.remark,) if self.remark else ()
        return (self.brief, *found, *remark, f"rows: {self.rows}")


def papers_with_code(paper: str) -> str:
    """Source of figures that Papers with Code lists for a paper, by its number at arXiv."""
    return f"Papers with Code on arXiv:{paper}"

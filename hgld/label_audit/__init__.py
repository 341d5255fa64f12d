"""Audit of labels: probably wrong labels, wrong classes of the hierarchy, and copies across splits.

This module has the options of an audit. It imports nothing slow, because the help of ``hgld audit`` reads the options.
"""

from dataclasses import dataclass

from hgld.evaluation.options import Progress
from hgld.settings import setting


def silent(task: str, done: int, total: int | None) -> None:
    """Report no progress."""


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Options of an audit.

    Attributes:
        probability: minimum probability of a listed finding.
        progress: function that is called with a task name, the number of finished units and the total.
    """

    probability: float = setting(0.5, "Minimum probability at which a finding is listed.", above=0, most=1, common=True)
    progress: Progress = silent

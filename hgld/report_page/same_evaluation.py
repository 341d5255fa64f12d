"""Whether embeddings are those that a kept report was made from."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hgld.errors import InputError
from hgld.evaluator import evaluate, labels_fingerprint
from hgld.report import RetrievalReport

if TYPE_CHECKING:
    from hgld.report_page.runs import Ranked

_CHECKED = 64  # queries that are ranked again
_MOST_DIFFER = 0.1


def check_same_evaluation(ranked: "Ranked", report: RetrievalReport, files: Sequence[Path]) -> None:
    """Refuse embeddings or labels that were written since the report: the page would contradict itself.

    Args:
        ranked: what the files hold.
        report: of the evaluation.
        files: of the report, the embeddings and the labels, then those of a gallery, for messages.

    Raises:
        InputError: they do not belong together.
    """
    way_out = (
        f"{files[0].name} is of another evaluation. Evaluate again (a run that is evaluating writes its report last), "
        "or move the embeddings away: the page is then made without them."
    )
    settings, query, gallery = report.settings, ranked.query, ranked.other_side
    expected = (settings.get("queries"), settings.get("gallery"))
    found = (len(query.labels), len(gallery.labels))
    if found != expected:
        raise InputError(
            f"{files[1]}: {found[0]} queries and {found[1]} gallery items; the report is of {expected[0]} and "
            f"{expected[1]}. {way_out}"
        )
    if len(report.per_query) not in (0, found[0]):
        raise InputError(
            f"{files[0]}: values of {len(report.per_query)} queries lie beside it; it is of {found[0]}. Evaluate again."
        )
    if settings.get("labels_sha256") != labels_fingerprint(query.labels, gallery.labels):
        tables = " or ".join(str(file) for file in files[2::2])
        raise InputError(f"{tables}: other labels, or in another order, than those that were evaluated. {way_out}")
    differ, checked, metric = _reranked(ranked, report)
    if differ > _MOST_DIFFER * checked:
        raise InputError(
            f"{files[1]}: ranked again, {differ} of {checked} queries have another {metric} than in the report. "
            f"{way_out}"
        )


def _reranked(ranked: "Ranked", report: RetrievalReport) -> tuple[int, int, str]:
    """How many of some queries have another value of a metric than in the report, of how many, and of which metric.

    Another device rounds scores differently, so a few may; embeddings of another model change nearly all.
    """
    if report.per_query.is_empty() or not report.values:
        return 0, 0, ""
    settings, levels = report.settings, report.settings["levels"]
    metric = next(name for name in [f"AP/{levels[0]}", *report.values] if name in report.values)
    query, gallery = ranked.query, ranked.other_side
    some = np.unique(np.linspace(0, len(query.labels) - 1, _CHECKED).astype(np.int64))
    again = evaluate(
        np.asarray(query.embeddings[some]),
        query.labels[some],
        np.asarray(gallery.embeddings),
        gallery.labels,
        levels=levels,
        metrics=[metric],
        alpha=settings.get("alpha", 1.0),
        count_query=bool(settings.get("count_query", False)),
        relevance=settings.get("relevance", "population"),
        weights=settings.get("weights"),
        self_index=some if ranked.gallery is None else None,
        normalize=bool(settings.get("normalized", True)),
    )
    then, now = report.per_query[metric].to_numpy()[some], again.per_query[metric].to_numpy()
    return int((np.abs(then - now) > 0.01).sum()), len(some), metric

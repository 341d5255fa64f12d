"""Reports that were kept, read for the page: what it goes by is checked here, and everything else is only shown."""

import math
from pathlib import Path
from typing import Any

from hgld.errors import ConfigError, SchemaError
from hgld.metrics import Metric
from hgld.report import RetrievalReport


def read_report(path: Path) -> RetrievalReport:
    """A report that :meth:`hgld.report.RetrievalReport.save_json` wrote.

    Raises:
        SchemaError: the file cannot be read, or a setting or metric in it is none that a page can show.
    """
    report = RetrievalReport.load_json(path)
    for setting, (check, expected) in _SETTINGS.items():
        if setting in report.settings and not check(report.settings[setting]):
            raise SchemaError(
                f"{path}: {setting} is {report.settings[setting]!r}; expected {expected}. The file was changed or "
                "damaged: evaluate again."
            )
    try:
        for metric in report.values:
            Metric.parse(metric)
    except ConfigError as error:
        raise SchemaError(f"{path}: {error}") from error
    return report


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_weights(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(map(_is_number, value)))


_SETTINGS = {
    "levels": (_is_names, "a list of different names, finest first"),
    "alpha": (_is_number, "a number"),
    "weights": (_is_weights, "null or a list of numbers"),
}

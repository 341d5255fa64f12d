"""JSON objects from files that may be anything."""

import json
from pathlib import Path
from typing import Any

from hgld.errors import InputError

MOST_BYTES = 1 << 20


def read_json_object(path: Path) -> dict[str, Any]:
    """The object of a JSON file of a run, of at most 1 MiB.

    Raises:
        InputError: it cannot be read, is too large, or holds something else.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} has {path.stat().st_size} bytes; expected at most {MOST_BYTES}.")
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:  # brackets within brackets, thousands deep
        raise InputError(f"{path}: not JSON ({error}).") from error
    if not isinstance(data, dict):
        raise InputError(f"{path}: holds {type(data).__name__}; expected a JSON object.")
    return data

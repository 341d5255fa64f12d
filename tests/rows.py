"""Tests of tables: one test checks all rows and reports every failing row, which saves pytest's time for each row."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import pytest


def each_row(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator like ``pytest.mark.parametrize``, but with one test for all rows.

    Each row has its own folder ``tmp_path`` and its own changes by ``monkeypatch``.
    """

    rows = [*rows]
    assert rows

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        columns = (names,) if isinstance(names, str) else names
        signature = inspect.signature(test)

        @functools.wraps(test)
        def check(**fixtures: Any) -> None:
            errors = []
            for number, row in enumerate(rows):
                given = fixtures | dict(zip(columns, (row,) if isinstance(names, str) else row, strict=True))
                try:
                    with ExitStack() as stack:
                        if "tmp_path" in given:
                            given["tmp_path"] /= str(number)
                            given["tmp_path"].mkdir()
                        if "monkeypatch" in given:
                            given["monkeypatch"] = stack.enter_context(given["monkeypatch"].context())
                        test(**given)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # the other rows follow
                    error.add_note(f"in row {number}: {row!r}"[:400])
                    errors.append(error)
            if errors:
                raise errors[0] if len(errors) == 1 else BaseExceptionGroup(f"{len(errors)} rows fail", errors)

        fixtures = [parameter for parameter in signature.parameters.values() if parameter.name not in columns]
        vars(check)["__signature__"] = signature.replace(parameters=fixtures)
        return check

    return decorate


def refused(
    call: Callable[..., object], rows: Iterable[Any], error: Any = None, words: str = ""
) -> Callable[..., None]:
    """Return a test of refusals: the last value of each row is a part or a pattern of the expected error message.

    Args:
        call: function that is called with the other values of a row, and must raise an error. Its keyword-only
            arguments without defaults are fixtures.
        rows: values of the calls; a value that is not a tuple is the only argument.
        error: expected type of all errors; None: the value before the last one of each row.
        words: expected part of all messages, instead of the last value of each row.
    """

    def check(row: Any, **fixtures: Any) -> None:
        arguments = list(row) if isinstance(row, tuple) else [row]
        expected = words or arguments.pop()
        assert expected
        with pytest.raises(error or arguments.pop()) as caught:
            call(*arguments, **fixtures)
        assert expected in str(caught.value) or re.search(expected, str(caught.value))

    signature, fixtures = inspect.signature(check), []
    if inspect.isfunction(call):
        fixtures = [one for one in inspect.signature(call).parameters.values() if one.kind is one.KEYWORD_ONLY]
    row = signature.parameters["row"]
    vars(check)["__signature__"] = signature.replace(parameters=[row, *(f for f in fixtures if f.default is f.empty)])
    return each_row("row", rows)(check)

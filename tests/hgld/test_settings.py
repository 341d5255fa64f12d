"""Config fields parse texts into their types, check the types of values, and check the bounds of numbers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from hgld.errors import ConfigError
from hgld.settings import bound_problems, options_of, setting
from tests.rows import each_row, refused


@dataclass(frozen=True)
class Config:
    count: int = setting(2, "A number.", unit="pixels", least=1, most=9)
    share: float = setting(0.5, "A share.", above=0, most=1)
    kind: Literal["a", "b"] = setting("a", "A kind.")
    loss: str = setting("x", "A name.", choices=("x", "y"))
    names: tuple[str, ...] = setting((), "Names.")
    lines: tuple[str, ...] = setting((), "Lines.", repeated=True, commas=False)
    numbers: tuple[int, ...] = setting((1,), "Numbers.")
    folder: Path | None = setting(None, "A folder.", key=False)
    on: bool = setting(False, "A switch.")


@each_row(
    ("name", "text", "value"),
    [
        ("count", "3", 3),
        ("share", "1e-3", 0.001),
        ("kind", "b", "b"),
        ("loss", "y", "y"),
        ("names", "a, b,c", ("a", "b", "c")),
        ("names", "", ()),
        ("lines", "a, b", ("a, b",)),
        ("numbers", "1,20", (1, 20)),
        ("folder", "some/where", Path("some/where")),
        ("on", "True", True),
    ],
)
def test_texts_are_parsed_into_the_fields_type(name, text, value):
    option = options_of(Config)[name]
    assert option.parse(text) == value
    assert option.check(value) == value


test_values_that_do_not_parse_are_refused = refused(
    lambda name, text: options_of(Config)[name].parse(text),
    [
        ("count", "3.5", "count: '3.5'; expected a whole number"),
        ("share", "nan", "share is 'nan'; expected a finite number"),
        ("kind", "c", "kind is 'c'; expected one of 'a', 'b'"),
        ("loss", "z", "loss is 'z'; expected one of 'x', 'y'"),
        ("names", "a,,b", "names: 'a,,b'; expected values separated by commas, none of them empty"),
        ("numbers", "1,x", "numbers: 'x'; expected a whole number"),
        ("on", "yes", "on: 'yes'; expected true or false"),
    ],
    ConfigError,
)


@each_row(
    ("name", "value"),
    [("count", True), ("count", None), ("share", "1"), ("kind", 1), ("names", "a"), ("numbers", [1.5]), ("on", 1)],
)
def test_values_of_the_wrong_type_are_refused(name, value):
    with pytest.raises(ConfigError, match=rf"^{name} is "):
        options_of(Config)[name].check(value)
    assert options_of(Config)["folder"].check(None) is None
    assert isinstance(options_of(Config)["share"].check(1), float)
    assert options_of(Config)["names"].check(["a"]) == ("a",)


def test_numbers_out_of_bounds_are_reported():
    assert not list(bound_problems(Config(count=1, share=1.0)))
    assert list(bound_problems(Config(count=0, share=0.0))) == [
        ("count", "is 0; expected 1 or more."),
        ("share", "is 0.0; expected more than 0."),
    ]
    assert list(bound_problems(Config(count=10))) == [("count", "is 10; expected 9 at most.")]

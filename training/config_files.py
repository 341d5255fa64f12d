"""Configs as files and as flags: read, changed by name, written."""

import dataclasses
import difflib
import json
import math
import typing
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal

from hgld.errors import ConfigError, SchemaError
from training.config import SCHEMA_VERSION, SECTIONS, TrainConfig
from training.json_files import read_json_object

CONFIG = "config.json"
_TOLD = ("recipe", "init_from")  # text beside the sections
_PLACES = {field.name: section for section, config in SECTIONS.items() for field in dataclasses.fields(config)}
_TYPES = {name: hint for config in SECTIONS.values() for name, hint in typing.get_type_hints(config).items()}


def with_fields(config: TrainConfig, fields: Mapping[str, Any]) -> TrainConfig:
    """A config with some fields changed, by their names alone: ``with_fields(config, {"tau": 0.05})``.

    Raises:
        ConfigError: no field of that name (the nearest is named), or a value of another type.
    """
    changes: dict[str, dict[str, Any]] = {}
    for name, value in fields.items():
        if name not in _PLACES:
            raise ConfigError(f"there is no field {name!r}. {_nearest(name, _PLACES)}")
        changes.setdefault(_PLACES[name].lower(), {})[name] = _checked(name, value)
    sections = {section: dataclasses.replace(getattr(config, section), **given) for section, given in changes.items()}
    return dataclasses.replace(config, **sections)


def flat(config: TrainConfig) -> dict[str, Any]:
    """All fields of a config by their names."""
    return {name: getattr(getattr(config, section.lower()), name) for name, section in _PLACES.items()}


def parse_field(name: str, text: str) -> Any:
    """The value of a field from text, as a flag or a sweep gives it; tuples are separated by commas.

    Raises:
        ConfigError: no such field, or text that is not of its type.
    """
    if name not in _PLACES:
        raise ConfigError(f"there is no field {name!r}. {_nearest(name, _PLACES)}")
    hint = _TYPES[name]
    if typing.get_origin(hint) is tuple:
        member = typing.get_args(hint)[0]
        return _checked(name, tuple(_parse_one(name, member, part) for part in text.split(",") if part))
    return _checked(name, _parse_one(name, hint, text))


def _parse_one(name: str, hint: Any, text: str) -> Any:
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name}: {text!r}; expected true or false.")
        return text.lower() == "true"
    if typing.get_origin(hint) is Literal or hint is str:
        return text
    try:
        return hint(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {text!r}; expected a number ({hint.__name__}).") from error


def save_config(config: TrainConfig, path: Path) -> None:
    """Write a config whole, so that it can be run again."""
    sections = {section.lower(): dataclasses.asdict(getattr(config, section.lower())) for section in SECTIONS}
    told = {name: getattr(config, name) for name in _TOLD}
    data = {"schema_version": SCHEMA_VERSION, **told, **sections}
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_config(path: Path) -> TrainConfig:
    """Read what :func:`save_config` wrote; fields that are left out have their defaults.

    Raises:
        InputError: the file cannot be read or is not such a file.
        SchemaError: another schema version.
        ConfigError: unknown sections or fields (the nearest is named), or values of another type.
    """
    data = read_json_object(path)
    if data.get("schema_version") != SCHEMA_VERSION:
        raise SchemaError(
            f"{path}: schema version is {data.get('schema_version')!r}; this hgld reads version {SCHEMA_VERSION}."
        )
    told = {name: data.get(name, "") for name in _TOLD}
    for name, text in told.items():
        if not isinstance(text, str) or "\0" in text:
            raise ConfigError(f"{path}: {name} is {text!r}; expected text.")
    sections = [section.lower() for section in SECTIONS]
    fields: dict[str, Any] = {}
    for key, given in data.items():
        if key in ("schema_version", *_TOLD):
            continue
        if key not in sections or not isinstance(given, dict):
            raise ConfigError(f"{path}: there is no section {key!r}. {_nearest(key, sections)}")
        for name, value in given.items():
            if _PLACES.get(name, "").lower() != key:
                own = [n for n, section in _PLACES.items() if section.lower() == key]
                raise ConfigError(f"{path}: section {key!r} has no field {name!r}. {_nearest(name, own)}")
            fields[name] = tuple(value) if isinstance(value, list) else value
    try:
        return dataclasses.replace(with_fields(TrainConfig(), fields), **told)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _checked(name: str, value: Any) -> Any:
    """The value, if it is of the field's type; whole numbers pass for real ones."""
    hint = _TYPES[name]
    if typing.get_origin(hint) is tuple:
        member = typing.get_args(hint)[0]
        if not isinstance(value, tuple | list) or not all(_is_of(v, member) for v in value):
            raise ConfigError(f"{name} is {value!r}; expected a list of {_called(member)}.")
        return tuple(member(v) for v in value)
    if not _is_of(value, hint):
        raise ConfigError(f"{name} is {value!r}; expected {_called(hint)}.")
    return float(value) if hint is float else value


def _is_of(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is Literal:
        return value in typing.get_args(hint)
    if typing.get_origin(hint) is UnionType:
        return any(_is_of(value, member) for member in typing.get_args(hint))
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    if hint is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, hint)


def _called(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(v) for v in typing.get_args(hint))
    return {int: "a whole number", float: "a finite number", str: "text", bool: "true or false"}[hint]


def _nearest(name: str, names: Any) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(names)}."

"""Typed access to a Hugging Face config: every error names the field, its value and what is expected."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Part:
    """A table of a config under its dotted name, empty for the config itself."""

    name: str
    data: Mapping[str, Any]

    def label(self, key: str) -> str:
        """The dotted name of one of the table's fields."""
        return f"{self.name}.{key}" if self.name else key

    def get(self, key: str) -> Any:
        """A field's value. None where it is missing or null, which mean the same in these files."""
        return self.data.get(key)

    def part(self, key: str) -> Part | None:
        """A nested table, None where there is none. Raises `ConfigError` for anything but a table."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(key, "expected a table")
        return Part(self.label(key), value)

    def text(self, key: str) -> str | None:
        """A string field."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(key, "expected a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A field that is a list of strings, empty where it is missing."""
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "expected a list of strings")
        return tuple(value)

    def integer(self, key: str, minimum: int) -> int | None:
        """A whole number. Booleans are none."""
        value = self.get(key)
        if value is None:
            return None
        if type(value) is not int or value < minimum:
            raise self.error(key, f"expected a whole number, at least {minimum}")
        return value

    def square(self, key: str) -> int | None:
        """A size as a whole number or as a list of two equal ones."""
        value = self.get(key)
        if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
            value = value[0]
        if value is None:
            return None
        if type(value) is not int or value < 1:
            raise self.error(key, "expected a whole number, at least 1, or two equal ones")
        return value

    def positive(self, key: str) -> float | None:
        """A finite number above 0."""
        value = self.get(key)
        if value is None:
            return None
        if type(value) not in (int, float) or not (value > 0 and math.isfinite(value)):
            raise self.error(key, "expected a number above 0")
        return float(value)

    def error(self, key: str, expected: str) -> ConfigError:
        """What to raise about a field."""
        value = json.dumps(self.get(key), default=str)
        shown = value if len(value) <= 80 else value[:76] + " ..."
        return ConfigError(f"{self.label(key)} = {shown}: {expected}")


@dataclass(frozen=True, slots=True)
class Found:
    """A whole number and the dotted name of the field that states it."""

    label: str
    value: int


def one_integer(parts: Iterable[Part], keys: Iterable[str], minimum: int) -> Found | None:
    """The value of a field that has several names or places.

    None where no part states it. Raises `ConfigError` where two of them disagree.
    """
    names = tuple(keys)
    found: Found | None = None
    for part in parts:
        for key in names:
            value = part.integer(key, minimum)
            if value is None:
                continue
            if found is not None and found.value != value:
                raise ConfigError(
                    f"{found.label} = {found.value} and {part.label(key)} = {value} mean the same thing; "
                    "make them agree or remove one"
                )
            found = found or Found(part.label(key), value)
    return found

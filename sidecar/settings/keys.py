"""The flat list of keys: what the schema's sections say about each `section.name`."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from sidecar.settings.schema import Section, Settings
from sidecar.settings.types import Expect

PAIRS: Final[Mapping[str, str]] = {
    "ingress.bind": "ingress.connect",
    "ingress.connect": "ingress.bind",
    "egress.bind": "egress.connect",
    "egress.connect": "egress.bind",
}
"""Keys of which one is set and the other is not."""

UNSET: Final = "-"


@dataclass(frozen=True, slots=True)
class Key:
    """One configuration key.

    `section` is empty for a key at the top. `doc` is one line. `expects` completes "expected ...".
    `text` says that only strings are values, so that `2024` on a command line is one too.
    """

    section: str
    name: str
    doc: str
    default: Any
    expects: str
    text: bool

    @property
    def dotted(self) -> str:
        """`section.name`, as on a command line."""
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def variable(self) -> str:
        """The environment variable that sets the key."""
        return "SIDECAR_" + self.dotted.replace(".", "__").upper()

    def render(self, value: Any) -> str:
        """The value as TOML, `-` where there is none."""
        field = _field(self.section, self.name)
        expect = _expect(field)
        if value is None:
            return UNSET
        if expect is not None and expect.render is not None:
            return expect.render(value)
        return to_toml(value)


@cache
def sections() -> Mapping[str, type[Section]]:
    """The sections by name, in the order of the file."""
    return {
        name: field.annotation
        for name, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }


@cache
def keys() -> Mapping[str, Key]:
    """All keys by dotted name, in the order of the file."""
    found = [_key("", name) for name in Settings.model_fields if name not in sections()]
    for section, cls in sections().items():
        found += [_key(section, name) for name in cls.model_fields]
    return {key.dotted: key for key in found}


def nearest(unknown: str) -> Key:
    """The known key that is closest to an unknown one, by its whole name or by its last part."""
    leaf = unknown.rpartition(".")[2]

    def closeness(key: Key) -> tuple[float, float]:
        whole = difflib.SequenceMatcher(None, unknown, key.dotted).ratio()
        part = difflib.SequenceMatcher(None, leaf, key.name).ratio()
        return max(whole, 0.9 * part), whole

    return max(keys().values(), key=closeness)


def to_toml(value: Any) -> str:
    """A plain value in TOML's spelling, on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str() if "\\" in value and "'" not in value and value.isprintable():
            return f"'{value}'"
        case str():
            return _quoted(value)
        case list() | tuple():
            return "[" + ", ".join(to_toml(item) for item in value) + "]"
        case dict():
            inner = ", ".join(f"{_bare(name)} = {to_toml(item)}" for name, item in value.items())
            return "{" + inner + "}"
        case float() if value.is_integer() and abs(value) < 2**53:
            return str(int(value))
        case _:
            return str(value)


def _bare(name: str) -> str:
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else _quoted(name)


def _quoted(text: str) -> str:
    """JSON's escapes are TOML's, but for DEL, which TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _field(section: str, name: str) -> FieldInfo:
    cls = sections()[section] if section else Settings
    return cls.model_fields[name]


def _key(section: str, name: str) -> Key:
    field = _field(section, name)
    expect = _expect(field)
    if expect is not None:
        phrase = expect.phrase
    else:
        choices = [f'"{choice}"' for choice in get_args(field.annotation)]
        phrase = " or ".join([", ".join(choices[:-1]), choices[-1]])
    return Key(section, name, field.description or "", field.default, phrase, _is_text(field.annotation))


def _expect(field: FieldInfo) -> Expect | None:
    """The metadata of a field's type. That of an optional type sits inside the union."""
    for item in field.metadata:
        if isinstance(item, Expect):
            return item
    return _nested_expect(field.annotation)


def _nested_expect(annotation: Any) -> Expect | None:
    for item in getattr(annotation, "__metadata__", ()):
        if isinstance(item, Expect):
            return item
    for inner in get_args(annotation):
        found = _nested_expect(inner)
        if found is not None:
            return found
    return None


def _is_text(annotation: Any) -> bool:
    if hasattr(annotation, "__metadata__"):
        return _is_text(annotation.__origin__)
    if get_origin(annotation) is Literal:
        return all(isinstance(choice, str) for choice in get_args(annotation))
    inner = [item for item in get_args(annotation) if item is not type(None)]
    if inner and get_origin(annotation) not in (tuple, Mapping):
        return all(_is_text(item) for item in inner)
    return annotation is str

"""The value types of the settings: what each accepts, and how it is written down again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

_UNITS: Final = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
_OCTAL: Final = re.compile(r"(?:0o)?[0-7]{3,4}")
_YEAR_S: Final = 31_536_000
_Z85_KEY: Final = r"^[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}$"


@dataclass(frozen=True, slots=True)
class Expect:
    """Metadata of a value type: the phrase for error messages, and how to write a value as TOML."""

    phrase: str
    render: Callable[[Any], str] | None = None


def parse_size(value: Any) -> Any:
    """Bytes from `"256 MiB"` and the like; anything else is left for the type check that follows."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        return value
    size = Fraction(match[1]) * unit
    return size.numerator if size.denominator == 1 else value


def render_size(value: int) -> str:
    """A size as TOML: in the largest binary unit that divides it, else, and below 1 MiB, in bytes."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB")):
        if value and value % unit == 0:
            return f'"{value // unit} {name}"'
    return str(value)


def parse_mode(value: Any) -> Any:
    """A file mode from its usual octal spelling, `"0600"`; TOML's `0o600` is a number already."""
    if isinstance(value, str) and _OCTAL.fullmatch(value):
        return int(value, 8)
    return value


def _to_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _check_pattern(value: Any) -> Any:
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(str(error)) from None
    return value


def _check_host_port(value: Any) -> Any:
    if isinstance(value, str):
        host, _, port = value.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if not host or (":" in host and not bracketed):
            raise ValueError("no host")
        if not (port.isascii() and port.isdigit() and int(port) <= 65535):
            raise ValueError("no port")
    return value


def _check_plain(value: Any) -> Any:
    """Only what a handshake message can carry: TOML's dates and times have no form there."""
    match value:
        case dict():
            for item in value.values():
                _check_plain(item)
        case list():
            for item in value:
                _check_plain(item)
        case bool() | int() | float() | str():
            pass
        case _:
            raise ValueError("not a plain value")
    return value


Text = Annotated[str, Field(min_length=1), Expect("a non-empty string")]
Address = Annotated[str, Field(min_length=1), Expect('an address such as "ipc:///run/x.sock"')]
Flag = Annotated[bool, Expect("true or false")]
Count = Annotated[int, Field(ge=1), Expect("a whole number, at least 1")]
Natural = Annotated[int, Field(ge=0), Expect("a whole number, at least 0")]
Depth = Annotated[int, Field(ge=8, le=512), Expect("a whole number from 8 to 512")]
Messages = Annotated[
    int,
    Field(ge=1, le=2**31 - 1),
    Expect("a number of messages, at least 1 (0 would take away the bound on memory)"),
]
Length = Annotated[int, Field(ge=3), Expect("a number of tokens, at least 3")]
Seconds = Annotated[float, Field(ge=0, le=_YEAR_S, allow_inf_nan=False), Expect("a number of seconds from 0 to a year")]
PositiveSeconds = Annotated[
    float, Field(gt=0, le=_YEAR_S, allow_inf_nan=False), Expect("a number of seconds above 0, up to a year")
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(ge=0, le=2**63 - 1),
    Expect('a number of bytes, or a size such as "256 MiB"', render_size),
]
PositiveSize = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(ge=1, le=2**63 - 1),
    Expect('a number of bytes above 0, or a size such as "256 MiB"', render_size),
]
FileMode = Annotated[
    int,
    BeforeValidator(parse_mode),
    Field(ge=0, le=0o777),
    Expect('an octal file mode such as 0o600 or "0600"', lambda mode: f"0o{mode:03o}"),
]
Device = Annotated[
    str,
    Field(pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$"),
    Expect('"auto", "cpu", "cuda" or "cuda:1"'),
]
HostPort = Annotated[
    str,
    BeforeValidator(_check_host_port),
    Expect('"host:port", such as "127.0.0.1:9464" or "[::1]:9464"'),
]
Pattern = Annotated[str, BeforeValidator(_check_pattern), Expect("a regular expression")]
Names = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(_to_tuple),
    Expect('a list of names, such as ["AbortReq"]'),
]
TokenIds = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=2**31)], ...],
    BeforeValidator(_to_tuple),
    Field(min_length=1),
    Expect("a non-empty list of token ids, such as [163605]"),
]
CurveKey = Annotated[
    str,
    Field(pattern=_Z85_KEY),
    Expect("a CURVE public key: 40 characters of Z85, as `sidecar keygen` prints it"),
]
CurveKeys = Annotated[
    tuple[Annotated[str, Field(pattern=_Z85_KEY)], ...],
    BeforeValidator(_to_tuple),
    Expect("a list of CURVE public keys: each 40 characters of Z85"),
]
PlainTable = Annotated[
    Mapping[str, Any],
    BeforeValidator(_check_plain),
    Expect('"auto" or a table such as {mrope_positions = false}'),
]

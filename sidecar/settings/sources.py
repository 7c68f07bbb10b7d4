"""Where values come from: a TOML file, the environment, `--set`. Each yields entries and problems."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sidecar.settings.keys import Key, keys, nearest, sections, to_toml

ENV_PREFIX: Final = "SIDECAR_"
_SHOWN: Final = 80
_SERVICE_LINK: Final = re.compile(r"SIDECAR_(SERVICE_HOST|SERVICE_PORT.*|PORT(_.*)?)")
_SERVICE_LINKS: Final = (
    "a Kubernetes Service named sidecar puts it into every pod of its namespace: "
    "set enableServiceLinks: false in the pod's specification"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One value for one known key."""

    key: Key
    value: Any
    origin: str


@dataclass(slots=True)
class Source:
    """What one source says: values for known keys, and what is wrong with the rest of it."""

    entries: list[Entry]
    problems: list[str]


def show(value: Any) -> str:
    """A value as an error message quotes it: in TOML's spelling, shortened."""
    text = to_toml(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 4] + " ..."


def from_file(path: Path) -> Source:
    """The entries of a TOML file."""
    origin = f"file {path}"
    source = Source([], [])
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        source.problems.append(f"{origin}: there is no such file; name an existing one with --config")
        return source
    except UnicodeDecodeError as error:
        source.problems.append(f"{origin}: byte {error.start} is not UTF-8; save the file as UTF-8")
        return source
    except OSError as error:
        source.problems.append(f"{origin}: cannot be read: {error.strerror}; check its type and its permissions")
        return source
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        source.problems.append(f"{origin}, {_where(str(error), text)}")
        return source
    for dotted, value in _flatten(document, source, origin):
        _add(source, dotted, value, origin, "")
    return source


def from_environment(env: Mapping[str, str]) -> Source:
    """The entries of all variables named `SIDECAR_SECTION__KEY`."""
    source = Source([], [])
    for variable in sorted(env):
        if not variable.startswith(ENV_PREFIX):
            continue
        origin = f"environment {variable}"
        dotted = variable[len(ENV_PREFIX) :].lower().replace("__", ".")
        if dotted in keys() and keys()[dotted].variable == variable:
            _add(source, dotted, parse_value(env[variable], keys()[dotted]), origin, "")
        else:
            remedy = _SERVICE_LINKS if _SERVICE_LINK.fullmatch(variable) else "rename the variable or unset it"
            source.problems.append(
                f"{variable} = {show(env[variable])} (environment): unknown key; "
                f"the nearest known one is {nearest(dotted).variable}; {remedy}"
            )
    return source


def from_sets(sets: Sequence[str]) -> Source:
    """The entries of `section.key=value` arguments. The last one for a key counts."""
    source = Source([], [])
    for argument in sets:
        dotted, equals, text = argument.partition("=")
        dotted = dotted.strip()
        if not equals or not dotted:
            source.problems.append(f"--set {show(argument)}: expected section.key=value, such as --set ingress.hwm=64")
            continue
        key = keys().get(dotted)
        value = parse_value(text, key) if key is not None else text
        _add(source, dotted, value, "--set", "--set ")
    return source


def parse_value(text: str, key: Key) -> Any:
    """A value off a command line or from the environment: TOML where it parses, else the text itself."""
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    if document.keys() != {"value"}:
        return text
    value = document["value"]
    return text if key.text and not isinstance(value, str) else value


def _add(source: Source, dotted: str, value: Any, origin: str, prefix: str) -> None:
    key = keys().get(dotted)
    if key is not None:
        source.entries.append(Entry(key, value, origin))
        return
    if dotted in sections():
        found = f"{prefix}{dotted} = {show(value)} ({origin}): a section, not a key"
        source.problems.append(f"{found}; set one of its keys: {_names_in(dotted)}")
        return
    section = dotted.rpartition(".")[0]
    known = f" (the keys of {section}: {_names_in(section)})" if section in sections() else ""
    source.problems.append(
        f"{prefix}{dotted} = {show(value)} ({origin}): unknown key; "
        f"the nearest known one is {nearest(dotted).dotted}{known}; rename or remove it"
    )


def _flatten(document: Mapping[str, Any], source: Source, origin: str) -> Iterator[tuple[str, Any]]:
    """Dotted names and values of a document. A table is opened unless it is the value of a key."""
    for name, value in document.items():
        if not isinstance(value, dict) or name in keys():
            yield name, value
        elif not value and name not in sections():
            source.problems.append(
                f"{name} ({origin}): unknown section; the known ones are {', '.join(sections())}; remove it"
            )
        else:
            for inner, item in value.items():
                yield f"{name}.{inner}", item


def _names_in(section: str) -> str:
    return ", ".join(key.name for key in keys().values() if key.section == section)


def _where(message: str, text: str) -> str:
    """`line L, column C: what is wrong` from the parser's message."""
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", message, re.DOTALL)
    if match is None:
        return f"not TOML: {message}"
    lines = text.split("\n")
    line, column = match[2] or len(lines), match[3] or len(lines[-1]) + 1
    return f"line {line}, column {column}: not TOML: {match[1]}; strings need quotes, tables [brackets]"

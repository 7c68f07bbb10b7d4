"""From sources to `Settings`: precedence, pairs, validation, and one error for all that is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sidecar.errors import ConfigError
from sidecar.settings.checks import cross_check
from sidecar.settings.keys import PAIRS, keys
from sidecar.settings.schema import Settings
from sidecar.settings.sources import Entry, from_environment, from_file, from_sets, show


class SettingsError(ConfigError):
    """Everything that is wrong with a configuration: one line a problem, in `problems`."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        if len(self.problems) == 1:
            text = self.problems[0]
        else:
            text = f"{len(self.problems)} errors in the configuration:\n" + "\n".join(
                f"  - {problem}" for problem in self.problems
            )
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Validated settings and, for every dotted key, where its value came from."""

    settings: Settings
    origins: Mapping[str, str]

    def value(self, dotted: str) -> Any:
        """The value of a key by its dotted name."""
        section, _, name = dotted.rpartition(".")
        return getattr(getattr(self.settings, section) if section else self.settings, name)


def load(file: Path | None, env: Mapping[str, str], sets: Sequence[str]) -> Loaded:
    """Read the configuration: defaults, then the file, then the environment, then `--set`.

    Raises `SettingsError` (a `ConfigError`) that names every problem of every source at once.
    """
    sources = [from_environment(env), from_sets(sets)]
    if file is not None:
        sources.insert(0, from_file(file))
    problems = [problem for source in sources for problem in source.problems]
    chosen: dict[str, Entry] = {}
    for source in sources:
        problems += _layer(chosen, source.entries)
    _follow(chosen)

    settings, bad, found = _validate(chosen)
    problems += found
    problems += [problem.text for problem in cross_check(settings) if not bad.intersection(problem.keys)]
    if problems:
        raise SettingsError(problems)
    origins = {dotted: chosen[dotted].origin if dotted in chosen else "default" for dotted in keys()}
    return Loaded(settings, origins)


def _layer(chosen: dict[str, Entry], entries: Iterable[Entry]) -> list[str]:
    """Put one source's entries over those of the weaker sources. Returns what contradicts itself.

    A source that names one of a pair overrides both; naming both in one source is a contradiction.
    """
    layer = {entry.key.dotted: entry for entry in entries}
    problems = []
    for dotted, entry in layer.items():
        other = PAIRS.get(dotted)
        if other is None:
            continue
        chosen.pop(other, None)
        if other in layer and dotted < other:
            problems.append(
                f"{dotted} = {show(entry.value)} and {other} = {show(layer[other].value)} ({entry.origin}): "
                "a socket either binds or connects; remove one of the two"
            )
    contradicted = {dotted for dotted in layer if PAIRS.get(dotted) in layer}
    chosen.update({dotted: entry for dotted, entry in layer.items() if dotted not in contradicted})
    return problems


def _follow(chosen: dict[str, Entry]) -> None:
    """Fill keys whose default is another key's value. Relay mode has one framing, whatever is set."""
    mode = chosen.get("mode")
    if mode is not None and mode.value == "relay":
        for dotted in ("ingress.framing", "egress.framing"):
            if dotted not in chosen or chosen[dotted].value == "native":
                chosen[dotted] = Entry(keys()[dotted], "typed", "relay mode")
    for dotted, leader in Settings.FOLLOWS.items():
        if dotted not in chosen and leader in chosen:
            chosen[dotted] = Entry(keys()[dotted], chosen[leader].value, f"default, as {leader}")


def _validate(chosen: Mapping[str, Entry]) -> tuple[Settings, set[str], list[str]]:
    """Settings from the entries that are valid, the keys of the others, and what is wrong with them."""
    try:
        return Settings.model_validate(_nest(chosen.values())), set(), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    bad: dict[str, str] = {}
    for detail in details:
        dotted = ".".join(str(part) for part in detail["loc"][: 1 if detail["loc"][0] in keys() else 2])
        if dotted in bad:
            continue
        entry = chosen[dotted]
        reason = f" ({detail['ctx']['error']})" if detail["type"] == "value_error" and "ctx" in detail else ""
        bad[dotted] = (
            f"{dotted} = {show(entry.value)} ({entry.origin}): expected {entry.key.expects}{reason}; "
            f"correct it or remove it (default: {entry.key.render(entry.key.default)})"
        )
    valid = {dotted: entry for dotted, entry in chosen.items() if dotted not in bad}
    followers = [dotted for dotted, leader in Settings.FOLLOWS.items() if leader in bad and dotted in bad]
    problems = [text for dotted, text in bad.items() if dotted not in followers]
    return Settings.model_validate(_nest(valid.values())), set(bad), problems


def _nest(entries: Iterable[Entry]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for entry in entries:
        table = document.setdefault(entry.key.section, {}) if entry.key.section else document
        table[entry.key.name] = entry.value
    return document

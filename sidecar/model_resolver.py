"""Where a model's config comes from: a folder, a file, the hub, and transformers in a child process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sidecar.errors import ConfigError

TIMEOUT_S: Final = 120
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_BESIDE_THE_PACKAGE: Final = Path(__file__).resolve().parent.parent
_CHILD: Final = Path(__file__).with_name("model_child.py")


@dataclass(frozen=True, slots=True)
class Found:
    """A model's config as it is stored. `label` names it in messages, `source` for a tokenizer."""

    label: str
    source: str
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What transformers makes of a config: empty, with the reason, where it cannot read it."""

    config: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


def find(path: str) -> Found:
    """The config at `path`: a folder with `config.json`, a JSON file, or a hub id.

    A relative path is looked up in the working directory, then beside the package, where the
    configs that come with it are. Raises `ConfigError`.
    """
    for base in ("", _BESIDE_THE_PACKAGE):
        # os.path answers False where pathlib raises: names that are too long, or hold a zero byte.
        place = os.path.join(base, os.path.expanduser(path))
        if os.path.isdir(place):
            file = os.path.join(place, "config.json")
            if not os.path.isfile(file):
                raise ConfigError(f"model.path = {json.dumps(path)}: the folder {place} has no config.json")
            return Found(file, place, _read(Path(file)))
        if os.path.isfile(place):
            return Found(place, os.path.dirname(place), _read(Path(place)))
    if not _HUB_ID.fullmatch(path):
        raise ConfigError(
            f"model.path = {json.dumps(path)}: there is no such folder or file, and it is no hub id "
            "(owner/name); set it to a folder with a config.json"
        )
    reply = _ask({"action": "download", "path": path})
    if "config" not in reply:
        raise ConfigError(
            f"model.path = {json.dumps(path)}: there is no such folder, and the hub does not give its "
            f"config.json: {reply['problem']}; set it to a folder with a config.json"
        )
    return Found(f"{path} (hub)", path, reply["config"])


def complete(found: Found, trust_remote_code: bool) -> Answer:
    """The config as transformers' own class reads it, with the defaults of that class filled in."""
    reply = _ask(
        {
            "action": "complete",
            "path": found.source,
            "config": found.config,
            "trust_remote_code": trust_remote_code and "auto_map" in found.config,
        }
    )
    return Answer(reply.get("config", {}), reply.get("problem", ""))


def encode(source: str, text: str, trust_remote_code: bool) -> list[int] | None:
    """The ids of a text by the model's own tokenizer, without special tokens; None if it cannot be loaded."""
    reply = _ask({"action": "encode", "path": source, "text": text, "trust_remote_code": trust_remote_code})
    ids = reply.get("ids")
    return ids if isinstance(ids, list) else None


def _read(file: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}; check its permissions") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not JSON: {error}; replace it with the checkpoint's file") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{file}: expected a JSON object, found {type(config).__name__}")
    return config


def _ask(question: Mapping[str, Any]) -> dict[str, Any]:
    """One question to one child process; `problem` in the reply says why there is no answer."""
    environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    try:
        child = subprocess.run(
            [sys.executable, "-P", _CHILD],
            input=json.dumps(question).encode(),
            capture_output=True,
            timeout=TIMEOUT_S,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"no answer within {TIMEOUT_S} s"}
    try:
        reply: dict[str, Any] = json.loads(child.stdout)
    except ValueError:
        lines = child.stderr.decode(errors="replace").strip().splitlines()
        return {"problem": lines[-1] if lines else f"the child process ended with status {child.returncode}"}
    return reply

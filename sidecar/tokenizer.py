"""The model's tokenizer, for the few models whose placeholders are text. Nothing else is tokenized here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sidecar import model_resolver
from sidecar.materialize.placeholders import FORMS, NATIVE_MODEL_TYPES, Encoder, Form
from sidecar.model import ModelSpec

_FILE = "tokenizer.json"


class FileEncoder:
    """A tokenizer.json, read by the tokenizers library in this process."""

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer: Any = Tokenizer.from_file(str(file))

    def encode(self, text: str) -> Sequence[int]:
        """See `Encoder.encode`."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def token_id(self, token: str) -> int | None:
        """See `Encoder.token_id`."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found


class TableEncoder:
    """A tokenizer that only knows the texts that a child process was asked for."""

    def __init__(self, table: dict[str, list[int]]) -> None:
        self._table = table

    def encode(self, text: str) -> Sequence[int]:
        """See `Encoder.encode`. Raises `KeyError` for any other text."""
        return self._table[text]

    def token_id(self, token: str) -> int | None:
        """See `Encoder.token_id`."""
        ids = self._table.get(token, [])
        return ids[0] if len(ids) == 1 else None


def load_encoder(spec: ModelSpec, kind: str, *, trust_remote_code: bool = False) -> Encoder | None:
    """The tokenizer of a model that needs one for a kind of engine; None if it needs none or has none.

    A tokenizer.json is read here. A tokenizer that is code runs in a child process, once, for the one
    text that is encoded at start, and only if `trust_remote_code` allows it.
    """
    if spec.model_type not in NATIVE_MODEL_TYPES or (spec.image_placeholder_ids and FORMS[kind] is Form.NATIVE):
        return None
    if FORMS[kind] is Form.SINGLE or not spec.source:
        return None
    file = Path(spec.source) / _FILE
    if file.is_file():
        return FileEncoder(file)
    text = spec.image_placeholder
    if FORMS[kind] is not Form.NATIVE or not text:
        return None
    ids = model_resolver.encode(spec.source, text, trust_remote_code)
    return TableEncoder({text: ids}) if ids is not None else None

"""Rules about the prompt: its ids, and its length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sidecar.errors import Reason, Rejection
from sidecar.model import ModelSpec
from sidecar.wire.ids import MAX_TOKEN_ID, NO_IDS, IdList, IdRun, prove_ids

RESERVED_TOKENS: Final = 2
"""The scheduler takes prompts of at most max_model_len - 2 ids."""


def vocabulary_limit(spec: ModelSpec) -> int:
    """The first id that a prompt may not hold."""
    return min(spec.vocab_size or MAX_TOKEN_ID, MAX_TOKEN_ID)


def check_ids(
    ids: IdList | None,
    unpadded: IdList | None,
    spec: ModelSpec,
    *,
    runs: Sequence[IdRun] = (),
    placeholders: frozenset[int] = NO_IDS,
    name: str = "input_ids",
) -> bool:
    """`token_ids_invalid`: an id that is no integer in [0, 2^31), or in the unpadded ids one past the vocabulary.

    `runs` are the media's spans in the unpadded ids, where they have been located. Returns whether the
    unpadded ids are also free of `placeholders` outside of them: one look at the ids answers both.
    """
    vocabulary = vocabulary_limit(spec)
    free = True
    if ids is not None:
        if unpadded is not None:
            prove_ids(ids, MAX_TOKEN_ID, name)
        else:
            free = prove_ids(ids, vocabulary, name, runs, placeholders)
    if unpadded is not None:
        free = prove_ids(unpadded, vocabulary, "input_ids_unpadded", runs, placeholders)
    return free


def check_length(ids: IdList | None, max_model_len: int | None, *, name: str = "input_ids") -> IdList:
    """`prompt_empty` and `prompt_too_long`; returns the prompt, which is there."""
    if ids is None or ids.n == 0:
        what = "nil" if ids is None else "empty"
        raise Rejection(Reason.PROMPT_EMPTY, f"{name} is {what}; the scheduler needs at least one id")
    if max_model_len is not None and ids.n > max_model_len - RESERVED_TOKENS:
        raise Rejection(
            Reason.PROMPT_TOO_LONG,
            f"the prompt has {ids.n} ids; the engine takes at most {max_model_len - RESERVED_TOKENS} "
            f"(max_model_len {max_model_len} less {RESERVED_TOKENS})",
        )
    return ids

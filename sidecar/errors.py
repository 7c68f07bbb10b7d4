"""The errors of the project and the closed set of reasons for which a request is refused."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a request was refused. The values are label values of `sidecar_rejected_total`."""

    MALFORMED_REQUEST = "malformed_request"
    MALFORMED_MULTIMODAL = "malformed_multimodal"
    MALFORMED_TENSOR = "malformed_tensor"
    TOO_LARGE = "too_large"
    TOKEN_IDS_INVALID = "token_ids_invalid"
    PROMPT_EMPTY = "prompt_empty"
    PROMPT_TOO_LONG = "prompt_too_long"
    SAMPLING_INVALID = "sampling_invalid"
    N_UNSUPPORTED = "n_unsupported"
    LOGPROBS_UNSUPPORTED = "logprobs_unsupported"
    TEXT_ONLY_MODEL = "text_only_model"
    TEXT_REQUEST = "text_request"
    OFFSETS_INVALID = "offsets_invalid"
    PLACEHOLDER_MISMATCH = "placeholder_mismatch"
    GRID_INVALID = "grid_invalid"
    GRID_MISMATCH = "grid_mismatch"
    METADATA_INVALID = "metadata_invalid"
    FEATURE_MISSING = "feature_missing"
    FEATURE_INVALID = "feature_invalid"
    MODALITY_UNSUPPORTED = "modality_unsupported"
    HASH_MISSING = "hash_missing"
    HASH_CONFLICT = "hash_conflict"
    PAD_VALUE_INVALID = "pad_value_invalid"
    SHM_INVALID = "shm_invalid"
    MROPE_INVALID = "mrope_invalid"
    MROPE_UNSUPPORTED = "mrope_unsupported"
    EXPANSION_MISMATCH = "expansion_mismatch"
    DUPLICATE_RID = "duplicate_rid"


class Rejection(Exception):  # noqa: N818 - the field's word for it; it is an answer, not a fault
    """A request must not reach the engine.

    `reason` is for counters, `message` is for the operator and the client: it names the item, the
    numbers found and what was expected. It never holds prompt content.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class SidecarError(Exception):
    """An error that ends a command. `exit_code` is the process's exit status."""

    exit_code = 1


class ConfigError(SidecarError):
    """A configuration that cannot be used. The message names the key and the remedy."""

    exit_code = 3


class UsageError(SidecarError):
    """A command line or an input file that cannot be used."""

    exit_code = 3


class TransportError(SidecarError):
    """A socket that cannot be opened, or a peer that did not take what it was sent."""

    exit_code = 4

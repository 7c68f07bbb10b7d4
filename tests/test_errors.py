"""The closed set of reasons, and what an error says."""

from __future__ import annotations

from sidecar.errors import ConfigError, Reason, Rejection, SidecarError, TransportError, UsageError

REASONS = """
malformed_request malformed_multimodal malformed_tensor too_large token_ids_invalid prompt_empty prompt_too_long
sampling_invalid n_unsupported logprobs_unsupported text_only_model text_request offsets_invalid placeholder_mismatch
grid_invalid grid_mismatch metadata_invalid feature_missing feature_invalid modality_unsupported hash_missing
hash_conflict pad_value_invalid shm_invalid mrope_invalid mrope_unsupported expansion_mismatch duplicate_rid
"""


def test_reasons_are_label_values() -> None:
    assert [reason.value for reason in Reason] == REASONS.split()
    assert all(reason.name.lower() == reason.value for reason in Reason)


def test_a_rejection_says_why() -> None:
    rejection = Rejection(Reason.TOO_LARGE, "the message has 9 bytes")
    assert (rejection.reason, rejection.message) == (Reason.TOO_LARGE, "the message has 9 bytes")
    assert str(rejection) == "too_large: the message has 9 bytes"


def test_exit_codes() -> None:
    assert [kind.exit_code for kind in (SidecarError, ConfigError, UsageError, TransportError)] == [1, 3, 3, 4]

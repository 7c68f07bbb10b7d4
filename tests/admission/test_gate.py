"""The media gate, as its table has it."""

from __future__ import annotations

import pytest

from sidecar.admission.gate import Gate, check_gate
from sidecar.errors import Reason, Rejection
from sidecar.model import ModelSpec
from tests.build import QWEN, TEXT, policy

ROLES = ("colocated", "prefill", "decode")


@pytest.mark.parametrize("spec", [QWEN, TEXT])
@pytest.mark.parametrize("role", ROLES)
def test_text(spec: ModelSpec, role: str) -> None:
    for language_only in (False, True):
        rules = policy(role=role, language_model_only=language_only)
        assert check_gate(False, spec, rules) is Gate.TEXT
        with pytest.raises(Rejection, match=r"admission\.text_requests") as caught:
            check_gate(False, spec, policy(role=role, language_model_only=language_only, text_requests="reject"))
        assert caught.value.reason is Reason.TEXT_REQUEST


@pytest.mark.parametrize("role", ROLES)
def test_media_for_a_text_only_model(role: str) -> None:
    for language_only in (False, True):
        with pytest.raises(
            Rejection, match=r"^text_only_model: multimodal_inputs were provided for a text-only model$"
        ):
            check_gate(True, TEXT, policy(role=role, language_model_only=language_only))


@pytest.mark.parametrize("role", ROLES)
def test_media(role: str) -> None:
    assert check_gate(True, QWEN, policy(role=role, text_requests="reject")) is Gate.MATERIALIZE
    rules = policy(role=role, language_model_only=True)
    if role == "decode":
        assert check_gate(True, QWEN, rules) is Gate.STRIP
        return
    with pytest.raises(Rejection, match="language_model_only") as caught:
        check_gate(True, QWEN, rules)
    assert caught.value.reason is Reason.TEXT_ONLY_MODEL

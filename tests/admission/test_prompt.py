"""The prompt: its ids against the vocabulary, its length against the model."""

from __future__ import annotations

import dataclasses

import msgpack
import pytest

from sidecar.admission.prompt import check_ids, check_length
from sidecar.errors import Reason, Rejection
from sidecar.wire.ids import IdList, find_ids, locate
from tests.build import BARE, TEXT


def listed(*ids: object) -> IdList:
    packed = msgpack.packb(list(ids))
    found = find_ids(packed, 0, len(packed))
    assert found is not None
    return found


def test_ids_below_the_vocabulary() -> None:
    assert check_ids(listed(0, 151935), None, TEXT)
    with pytest.raises(
        Rejection, match=r"input_ids\[1\] is 151936; .* below 151936, the size of the vocabulary"
    ) as caught:
        check_ids(listed(0, 151936), None, TEXT)
    assert caught.value.reason is Reason.TOKEN_IDS_INVALID


def test_without_a_vocabulary_ids_end_at_two_to_the_31() -> None:
    assert check_ids(listed(2**31 - 1), None, BARE)
    with pytest.raises(Rejection, match=r"input_ids\[0\] is 2147483648; .* below 2\^31"):
        check_ids(listed(2**31), None, BARE)
    with pytest.raises(Rejection, match=r"below 2\^31"):
        check_ids(listed(2**31), None, dataclasses.replace(TEXT, vocab_size=2**40))


def test_padded_ids_may_pass_the_vocabulary_and_unpadded_ones_may_not() -> None:
    assert check_ids(listed(2**31 - 1), listed(5), TEXT)
    with pytest.raises(Rejection, match=r"input_ids\[0\] is 2147483648"):
        check_ids(listed(2**31), listed(5), TEXT)
    with pytest.raises(Rejection, match=r"input_ids_unpadded\[0\] is 151936"):
        check_ids(listed(5), listed(151936), TEXT)


def test_one_look_answers_whether_a_placeholder_stands_outside_the_spans() -> None:
    ids = listed(1, 7, 7, 2, 7)
    runs = locate(ids, [(1, 2)])
    assert not check_ids(ids, None, TEXT, runs=runs, placeholders=frozenset({7}))
    assert check_ids(ids, None, TEXT, runs=runs, placeholders=frozenset({8}))
    assert check_ids(ids, None, TEXT, runs=locate(ids, [(1, 2), (4, 4)]), placeholders=frozenset({7}))
    with pytest.raises(Rejection, match=r"input_ids\[4\] is 999999"):
        check_ids(listed(1, 7, 7, 2, 999999), None, TEXT, runs=runs, placeholders=frozenset({7}))
    with pytest.raises(Rejection, match=r"input_ids\[1\] is 999999"):
        check_ids(bad := listed(1, 999999, 999999, 2), None, TEXT, runs=locate(bad, [(1, 2)]))


@pytest.mark.parametrize("ids", [None, listed()])
def test_an_empty_prompt(ids: IdList | None) -> None:
    with pytest.raises(Rejection, match="nil" if ids is None else "empty") as caught:
        check_length(ids, None)
    assert caught.value.reason is Reason.PROMPT_EMPTY


def test_the_longest_prompt() -> None:
    assert check_length(listed(*range(62)), 64).n == 62
    assert check_length(listed(*range(63)), None).n == 63
    with pytest.raises(Rejection, match="has 63 ids; the engine takes at most 62") as caught:
        check_length(listed(*range(63)), 64)
    assert caught.value.reason is Reason.PROMPT_TOO_LONG

"""Hashes and pad values of items: what must be hashed, what cannot be, what contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.admission.content import check_pad_values, check_recomputed, needs_hash
from sidecar.errors import Reason, Rejection
from tests.build import item, views

SHM = {"shm_name": "psm_1", "shape": [1], "dtype": "uint8"}
ROOM = {"bootstrap_room": 1, "bootstrap_host": "h", "bootstrap_port": 2}


@pytest.mark.parametrize(
    ("entry", "trusted", "distrusted"),
    [
        (item(), True, True),
        (item(hash=0), False, True),
        (item(pad=1_000_000), False, True),
        (item(hash=1, shm=SHM), False, None),
        (item(pad=1_000_001, shm=SHM), False, None),
        (item(shm=SHM), None, None),
        (item(hash=1, handshake=ROOM), False, False),
        (item(handshake=ROOM), None, None),
    ],
)
def test_what_is_hashed(entry: Any, trusted: bool | None, distrusted: bool | None) -> None:
    (view,) = views(entry)
    for trust, expected in ((True, trusted), (False, distrusted)):
        if expected is not None:
            assert needs_hash(view, trust_client_hash=trust) is expected
            continue
        with pytest.raises(Rejection) as caught:
            needs_hash(view, trust_client_hash=trust)
        assert caught.value.reason is Reason.HASH_MISSING
        assert ("in shared memory" in caught.value.message) is (view.shm is not None)


@pytest.mark.parametrize(
    ("modality", "good", "bad"),
    [
        (1, (1_000_000, 716_494_548), (0, 999_999, 716_494_549, 2**31, -1, 2**64 - 1)),
        (2, (716_494_549, 1_431_989_097), (1_000_000, 716_494_548, 1_431_989_098)),
        (3, (1_431_989_098, 2_147_483_646), (1_431_989_097, 2_147_483_647)),
    ],
)
def test_pads_lie_in_their_modalitys_interval(modality: int, good: tuple[int, ...], bad: tuple[int, ...]) -> None:
    check_pad_values(views(item(), *(item(modality, pad=pad) for pad in good)))
    for pad in bad:
        with pytest.raises(
            Rejection, match=rf"item 1: the pad_value {pad} does not lie in \[{good[0]}, {good[1] + 1}\)"
        ) as caught:
            check_pad_values(views(item(), item(modality, pad=pad)))
        assert caught.value.reason is Reason.PAD_VALUE_INVALID


def test_a_recomputed_hash() -> None:
    check_recomputed(views(item(hash=5))[0], 5)
    check_recomputed(views(item())[0], 5)
    with pytest.raises(Rejection, match="item 0: the hash 5 came with it, its content hashes to 6") as caught:
        check_recomputed(views(item(hash=5))[0], 6)
    assert caught.value.reason is Reason.HASH_CONFLICT

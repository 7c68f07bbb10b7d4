"""Features in shared memory: looked at by name through a probe, never attached."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.admission.policy import Policy
from sidecar.admission.shm import SegmentMemory, check_segments, check_still_ours, may_touch, orphans
from sidecar.errors import Reason, Rejection
from tests.build import item, policy, views
from tests.hostile import Segments

SHM = {"shm_name": "psm_1", "shape": [16, 24], "dtype": "float32"}
PATTERN = Policy().shared_memory_pattern


def check(
    shm: dict[str, Any], sizes: dict[str, int], memory: SegmentMemory | None = None, now: float = 0.0, **rules: Any
) -> Any:
    probe = Segments(sizes)
    found = check_segments(views(item(hash=1, shm=shm)), policy(**rules), probe, memory or SegmentMemory(), now)
    assert probe.unlinked == []
    return found


def refused(shm: dict[str, Any], sizes: dict[str, int], memory: SegmentMemory | None = None, **rules: Any) -> str:
    with pytest.raises(Rejection) as caught:
        check(shm, sizes, memory, **rules)
    assert caught.value.reason is Reason.SHM_INVALID
    assert caught.value.message.startswith("item 0: segment ")
    return caught.value.message


def test_a_segment_of_the_right_size() -> None:
    assert check(SHM, {"psm_1": 1536}) == {"psm_1": (hash("psm_1"),)}
    assert check({**SHM, "dtype": "bfloat16"}, {"psm_1": 768})
    assert check_segments(views(item()), policy(), Segments({}), SegmentMemory(), 0.0) == {}


@pytest.mark.parametrize("size", [0, 1535, 1537, 4096])
def test_a_segment_of_another_size(size: int) -> None:
    message = refused(SHM, {"psm_1": size})
    assert f"holds {size} bytes; float32 [16, 24] takes 1536" in message


def test_a_segment_that_is_not_there() -> None:
    assert "there is no such segment" in refused(SHM, {})


@pytest.mark.parametrize(
    "name",
    [
        "",
        "sem.x",
        "xpsm_1",
        "/psm_1",
        "psm_/../../etc/passwd",
        "psm_1/..",
        "psm_a b",
        "psm_a\n",
        "psm_\0",
        "PSM_1",
        "psm_é",
    ],
)
def test_names_that_must_not_be_touched(name: str) -> None:
    assert not may_touch(name, PATTERN)
    assert "admission.shared_memory_pattern" in refused({**SHM, "shm_name": name}, {name: 1536})


@pytest.mark.parametrize("name", ["psm_1", "psm", "smg-abc", "tokenspeed.x_1", "psm_..."])
def test_names_that_may(name: str) -> None:
    assert may_touch(name, PATTERN)
    assert check({**SHM, "shm_name": name}, {name: 1536})


def test_a_handle_is_forwarded_once() -> None:
    memory = SegmentMemory()
    memory.forwarded("psm_1", (hash("psm_1"),), 0.0)
    assert "forwarded with an earlier request" in refused(SHM, {"psm_1": 1536}, memory)
    assert check(SHM, {"psm_1": 1536}, memory, now=600.0)
    memory.forwarded("psm_1", (7,), 0.0)
    assert check(SHM, {"psm_1": 1536}, memory), "a new segment under an old name is a new one"
    assert len(memory) == 1


def test_policies() -> None:
    assert "not accepted" in refused(SHM, {"psm_1": 1536}, shared_memory="refuse")
    assert check({**SHM, "shm_name": "anything/at all"}, {}, shared_memory="forward") == {"anything/at all": ()}


def test_what_is_taken_between_the_look_and_the_sending() -> None:
    rules, probe, memory = policy(), Segments({"psm_1": 1536}), SegmentMemory()
    segments = {"psm_1": (hash("psm_1"),)}
    check_still_ours(segments, rules, probe, memory, 0.0)
    memory.forwarded("psm_1", (hash("psm_1"),), 0.0)
    with pytest.raises(Rejection, match="forwarded with another request while"):
        check_still_ours(segments, rules, probe, memory, 1.0)
    with pytest.raises(Rejection, match="is gone while") as caught:
        check_still_ours({"psm_2": (1,)}, rules, probe, memory, 1.0)
    assert caught.value.reason is Reason.SHM_INVALID
    check_still_ours({"psm_2": ()}, policy(shared_memory="forward"), probe, memory, 1.0)


def test_orphans() -> None:
    memory = SegmentMemory()
    memory.forwarded("psm_live", (1,), 0.0)
    names = ["psm_1", "psm_1", "psm_live", "sem.other", "../x", "smg_2"]
    assert orphans(names, policy(), memory, 1.0) == ["psm_1", "smg_2"]
    assert orphans(names, policy(), memory, 600.0) == ["psm_1", "psm_live", "smg_2"]
    assert orphans(names, policy(unlink_refused=False), memory, 1.0) == []

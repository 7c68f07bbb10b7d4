"""The requests of the demo, what must become of each, and whether it did. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Final

import numpy as np

from sidecar.inspection.page import Page, read_page
from sidecar.inspection.verdict import compare, positions_of
from sidecar.recording import Direction, Reader, Record
from sidecar.replay.decode import MessageKind, decode_request
from sidecar.wire.tokenspeed import Item, Request

POSITION_FIELDS: Final = frozenset(
    f"multimodal_inputs.{name}" for name in ("mrope_positions", "mrope_position_delta", "mrope_position_delta_scalar")
)


@dataclass(frozen=True, slots=True)
class Case:
    """One request.

    `expect` is `identical`, `positions`, `materialized`, `refused REASON` or `dropped`. `answer` is what
    the gateway itself makes of the same prompt, None where there is nothing to compare.
    """

    model: str
    title: str
    expect: str
    record: Record
    answer: Record | None

    @property
    def arrives(self) -> bool:
        """Whether anything reaches the scheduler."""
        return self.expect != "dropped"


@dataclass(slots=True)
class Finding:
    """What came in, what was done, and what is not as it must be."""

    came: str
    done: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def model_folder(name: str) -> Traversable:
    """The folder with the config of one of the demo's models."""
    return resources.files("sidecar.demo").joinpath("models", name)


def load_cases() -> list[Case]:
    """The bundled requests in the order of sending."""
    with resources.as_file(resources.files("sidecar.demo").joinpath("requests.rec")) as path, Reader(path) as reader:
        records = list(reader)
    answers = {str(r.metadata["answer_to"]): r for r in records if r.direction is Direction.EGRESS}
    return [
        Case(
            str(record.metadata["model"]),
            str(record.metadata["title"]),
            str(record.metadata["expect"]),
            record,
            answers.get(str(record.metadata["title"])),
        )
        for record in records
        if record.direction is Direction.INGRESS
    ]


def judge(case: Case, arrived: Record | None) -> Finding:
    """Compare what reached the scheduler, None if nothing did, with what must."""
    came = read_page(case.record)
    finding = Finding(_came(case, came))
    if not case.arrives or arrived is None:
        if case.arrives:
            finding.faults.append("nothing reached the scheduler")
        elif arrived is not None:
            finding.faults.append("it reached the scheduler")
        finding.done.append("dropped: no rid, nobody to answer; counted")
        return finding
    left = read_page(arrived)
    expect, _, reason = case.expect.partition(" ")
    if expect == "refused":
        finding.done.extend(_refused(left, arrived, reason, finding.faults))
        return finding
    unchanged = _same_frames(case.record, arrived)
    if expect == "identical":
        finding.done.extend(_media(left, came))
        finding.done.append("forwarded byte for byte")
        if not unchanged:
            finding.faults.append("it was to leave byte for byte")
        return finding
    changed = {change.path for change in compare(came, left)}
    finding.done.extend(_media(left, came))
    if expect == "materialized":
        finding.done.append(_substituted(arrived))
        finding.faults.extend(_check_materialized(case, came, arrived))
    elif changed != POSITION_FIELDS:
        finding.faults.append(f"changed {sorted(changed)}; only the positions were to change")
    finding.done.extend(_positions(case, arrived, finding.faults))
    return finding


def _came(case: Case, page: Page) -> str:
    ids = page.field("input_ids")
    parts = [page.title] if page.title != "generate request" else []
    if page.problems:
        broken = "that are no message" if page.kind is MessageKind.UNREADABLE else "that cannot be read to their end"
        return f"{page.nbytes:,} bytes {broken}"
    if ids is not None and not page.items:
        parts.append(f"text, {ids.text.partition(':')[0]}")
    for item in page.items:
        modality, feature, offsets = item.child("modality"), item.child("feature"), item.child("offsets")
        assert modality is not None
        assert offsets is not None
        tokens = sum(end - start + 1 for start, end in offsets.value)
        shape = feature.value["shape"] if feature is not None and isinstance(feature.value, dict) else None
        lacks = [name for name in ("hash", "pad_value") if (found := item.child(name)) is None or found.default]
        without = f", without {' and '.join(lacks).replace('pad_value', 'pad value')}" if lacks else ""
        parts.append(f"{modality.text.partition('(')[2].rstrip(')')} {shape}, {tokens} tokens{without}")
    return "; ".join(parts)


def _same_frames(one: Record, other: Record) -> bool:
    return [bytes(frame) for frame in one.frames] == [bytes(frame) for frame in other.frames]


def _refused(page: Page, arrived: Record, reason: str, faults: list[str]) -> Iterator[str]:
    error = decode_request(arrived.frames, arrived.framing).validation_error
    yield f"refused, {reason}: {error}"
    ids = page.field("input_ids")
    if error is None:
        faults.append("it was to be refused")
    if ids is None or ids.value != [] or page.items or len(page.frames) > 2:
        faults.append("a refused request must leave without a prompt and without media")


def _media(left: Page, came: Page) -> Iterator[str]:
    for item, before in zip(left.items, came.items, strict=False):
        digest, pad, had = item.child("hash"), item.child("pad_value"), before.child("hash")
        assert digest is not None
        assert pad is not None
        whose = "hashed" if had is None or had.default else "hash"
        yield f"{whose} {digest.value:016x}, pad {pad.text}"


def _substituted(arrived: Record) -> str:
    request = decode_request(arrived.frames, arrived.framing)
    pairs = zip(request[Request.INPUT_IDS], request[Request.INPUT_IDS_UNPADDED], strict=True)
    return f"{sum(padded != plain for padded, plain in pairs)} ids substituted"


def _check_materialized(case: Case, came: Page, arrived: Record) -> Iterator[str]:
    """Ids against what came and, where the hash is the gateway's, against its own padded prompt."""
    before = decode_request(case.record.frames, case.record.framing)
    after = decode_request(arrived.frames, arrived.framing)
    if after[Request.INPUT_IDS_UNPADDED] != before[Request.INPUT_IDS]:
        yield "input_ids_unpadded is not the prompt as it came"
    prompt = list(before[Request.INPUT_IDS])
    for item in after.items:
        for start, end in item[Item.OFFSETS]:
            prompt[start : end + 1] = [item[Item.PAD_VALUE]] * (end - start + 1)
    if after[Request.INPUT_IDS] != prompt:
        yield "input_ids does not hold the pad values in the spans, and the prompt elsewhere"
    assert case.answer is not None
    answer = decode_request(case.answer.frames, case.answer.framing)
    had = came.items[0].child("hash")
    if had is not None and not had.default and after[Request.INPUT_IDS] != answer[Request.INPUT_IDS]:
        yield "the padded prompt is not the gateway's"


def _positions(case: Case, arrived: Record, faults: list[str]) -> Iterator[str]:
    assert case.answer is not None
    wanted, wanted_delta = positions_of(case.answer)
    positions, delta = positions_of(arrived)
    if wanted is None and positions is None:
        return
    if wanted is None or positions is None:
        faults.append("positions were to be filled" if positions is None else "no positions were to be filled")
        return
    same = np.array_equal(positions, wanted) and positions.dtype == wanted.dtype and delta == wanted_delta
    agrees = ", as the gateway's" if same else ""
    yield f"positions {positions.dtype.name} {list(positions.shape)}, delta {delta}{agrees}"
    if not same:
        faults.append(f"the positions are not the gateway's (its delta is {wanted_delta})")


def identity(metrics: Mapping[str, float]) -> tuple[int, Mapping[str, int], int]:
    """(requests received, requests by outcome, requests in flight) out of a scrape.

    Accounting holds if the first is the sum of the others.
    """
    received = sum(
        metrics.get(f'sidecar_messages_received_total{{kind="{kind}"}}', 0) for kind in ("generate", "unreadable")
    )
    outcomes: dict[str, int] = {}
    for series, value in metrics.items():
        name, _, labels = series.partition("{")
        if name == "sidecar_requests_total" and value:
            outcome = labels.partition('outcome="')[2].partition('"')[0]
            outcomes[outcome] = outcomes.get(outcome, 0) + int(value)
    return int(received), outcomes, int(metrics.get("sidecar_inflight_requests", 0))


def parse_metrics(text: str) -> dict[str, float]:
    """A scrape in Prometheus' text format as series → value."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}


def expected_outcomes(cases: Sequence[Case]) -> dict[str, int]:
    """How the sidecar must count these requests; aborts are no requests."""
    counts: dict[str, int] = {}
    for case in cases:
        if read_page(case.record).title == "abort":
            continue
        outcome = {"refused": "rejected", "dropped": "dropped"}.get(case.expect.partition(" ")[0], "forwarded")
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts


def summary(counts: Mapping[str, Any]) -> str:
    """`7 forwarded + 1 rejected + 1 dropped`."""
    return " + ".join(f"{count} {name}" for name, count in counts.items()) or "0"

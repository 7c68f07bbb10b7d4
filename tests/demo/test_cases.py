"""The demo's requests through the pure core: each is judged as it must be, and faults are found."""

from __future__ import annotations

import dataclasses
from importlib.resources import as_file

import msgpack
import pytest

from sidecar import pipeline
from sidecar.context import Context
from sidecar.demo.cases import (
    Case,
    expected_outcomes,
    identity,
    judge,
    load_cases,
    model_folder,
    parse_metrics,
    summary,
)
from sidecar.model import load_model
from sidecar.recording import Framing, Record
from sidecar.settings import load

CASES = load_cases()


def context_for(name: str) -> Context:
    with as_file(model_folder(name)) as folder:
        spec = load_model(str(folder))
    return Context.from_settings(load(None, {}, ["ingress.framing=typed"]).settings, spec)


def run_case(case: Case, context: Context | None = None) -> Record | None:
    outcome = pipeline.run(case.record.frames, context or context_for(case.model))
    if not outcome.messages:
        return None
    return Record(outcome.messages[0], framing=Framing.TYPED)


def by_title(title: str) -> Case:
    return next(case for case in CASES if case.title == title)


def change(record: Record, field: int, value: object) -> Record:
    fields = msgpack.unpackb(record.frames[1], strict_map_key=False)
    fields[field] = value
    return dataclasses.replace(record, frames=[record.frames[0], msgpack.packb(fields), *record.frames[2:]])


@pytest.mark.parametrize("case", CASES, ids=[f"{case.model}: {case.title}" for case in CASES])
def test_every_case_is_as_it_must_be(case: Case) -> None:
    finding = judge(case, run_case(case))
    assert finding.faults == []
    assert finding.came
    assert finding.done


def test_the_cases_of_a_model_do_not_disturb_each_other() -> None:
    contexts = {name: context_for(name) for name in {case.model for case in CASES}}
    for case in CASES:
        assert judge(case, run_case(case, contexts[case.model])).faults == []


def test_the_unmaterialized_request_becomes_what_the_gateway_makes_of_it() -> None:
    case = by_title("one image, unmaterialized")
    arrived = run_case(case)
    assert arrived is not None
    assert case.answer is not None
    mine, gateway = (msgpack.unpackb(r.frames[1], strict_map_key=False) for r in (arrived, case.answer))
    assert mine[2:] == gateway[2:]


def faults_of(title: str, arrived: Record | None) -> list[str]:
    return judge(by_title(title), arrived).faults


def good(title: str) -> Record:
    arrived = run_case(by_title(title))
    assert arrived is not None
    return arrived


def test_a_request_that_vanished_is_a_fault() -> None:
    assert faults_of("one image", None) == ["nothing reached the scheduler"]


def test_a_changed_byte_is_a_fault() -> None:
    assert faults_of("one image", change(good("one image"), 3, "text")) == ["it was to leave byte for byte"]


def test_a_request_that_was_to_be_refused_and_was_not_is_a_fault() -> None:
    case = by_title("image for a text model")
    assert "it was to be refused" in judge(case, case.record).faults


def test_positions_that_are_not_filled_are_a_fault() -> None:
    case = by_title("one image, no positions")
    assert "positions were to be filled" in judge(case, case.record).faults


def test_wrong_positions_are_a_fault() -> None:
    one, two = by_title("one image, no positions"), by_title("two images, no positions")
    swapped = dataclasses.replace(one, answer=two.answer)
    (fault,) = judge(swapped, run_case(one)).faults
    assert fault.startswith("the positions are not the gateway's")


def test_a_field_that_was_not_to_change_is_a_fault() -> None:
    arrived = change(good("one image, no positions"), 10, True)
    (fault,) = faults_of("one image, no positions", arrived)
    assert "stream" in fault


def test_wrong_pads_are_faults() -> None:
    arrived = good("one image, unmaterialized")
    ids = msgpack.unpackb(arrived.frames[1], strict_map_key=False)[4]
    faults = faults_of("one image, unmaterialized", change(arrived, 4, [7, *ids[1:]]))
    assert "the padded prompt is not the gateway's" in faults
    assert "input_ids does not hold the pad values in the spans, and the prompt elsewhere" in faults


def test_accounting_out_of_a_scrape() -> None:
    metrics = parse_metrics(
        "# HELP sidecar_requests_total x\n"
        'sidecar_messages_received_total{kind="generate"} 5.0\n'
        'sidecar_messages_received_total{kind="unreadable"} 1.0\n'
        'sidecar_messages_received_total{kind="abort"} 3.0\n'
        'sidecar_requests_total{dialect="tokenspeed",outcome="forwarded"} 2.0\n'
        'sidecar_requests_total{dialect="preprocessed",outcome="forwarded"} 1.0\n'
        'sidecar_requests_total{dialect="tokenspeed",outcome="rejected"} 1.0\n'
        'sidecar_requests_total{dialect="tokenspeed",outcome="spilled"} 0.0\n'
        "sidecar_inflight_requests 2.0\n"
    )
    assert identity(metrics) == (6, {"forwarded": 3, "rejected": 1}, 2)


def test_what_the_bundled_requests_must_be_counted_as() -> None:
    kimi = [case for case in CASES if case.model == "kimi_k25"]
    assert expected_outcomes(kimi) == {"forwarded": 5, "rejected": 1, "dropped": 1}
    assert summary(expected_outcomes(kimi)) == "5 forwarded + 1 rejected + 1 dropped"


DERIVED = [
    ("one image, unmaterialized", "one image"),
    ("one image, unhashed", "one image, no positions"),
]


@pytest.mark.parametrize(("title", "original"), DERIVED)
def test_a_derived_request_differs_from_the_recorded_one_only_in_what_it_says(title: str, original: str) -> None:
    made, real = (msgpack.unpackb(by_title(name).record.frames[1], strict_map_key=False) for name in (title, original))
    assert made[4] == real[21]
    assert made[21] is None
    assert [made[i] for i in range(2, len(made)) if i not in (4, 21, 22)] == [
        real[i] for i in range(2, len(real)) if i not in (4, 21, 22)
    ]
    (item,), (was,) = made[22][0], real[22][0]
    assert item[2] is None
    assert item[3:] == was[3:]
    assert made[22][1:] == real[22][1:]

"""The state that the status page and the probes show."""

from __future__ import annotations

import json

import pytest

from sidecar.errors import Reason
from sidecar.observability.metrics import Metrics
from sidecar.observability.status import Health, RecentRefusals, Status
from sidecar.settings import describe, load


@pytest.mark.parametrize(
    ("health", "live", "ready"),
    [
        (Health(), (200, "live", []), (200, "ready", [])),
        (Health(ready=False, reasons=("no engine",)), (200, "live", []), (503, "not ready", ["no engine"])),
        (
            Health(live=False, ready=True, reasons=("stuck",)),
            (503, "not live", ["stuck"]),
            (503, "not ready", ["stuck"]),
        ),
    ],
)
def test_probes_say_in_the_body_why_they_fail(health, live, ready):
    status = Status(Metrics(), lambda: health)
    for answer, expected in ((status.probe(ready=False), live), (status.probe(ready=True), ready)):
        code, body = answer
        assert (code, body["status"], body["reasons"]) == expected


def test_the_snapshot_is_plain_json_with_the_numbers_counted():
    metrics = Metrics()
    metrics.received["generate"] += 5
    metrics.requests["tokenspeed", "forwarded"] += 2
    metrics.requests["preprocessed", "forwarded"] += 1
    metrics.rejected[Reason.SHM_INVALID] += 2
    metrics.stages["hash"].observe(0.02)
    metrics.engine_connected = lambda: True
    metrics.inflight_bytes = lambda: 77
    shown = json.loads(json.dumps(Status(metrics, Health).snapshot()))
    assert shown["received"]["generate"] == 5
    assert shown["outcomes"]["forwarded"] == 3
    assert shown["rejected"] == {"shm_invalid": 2}
    assert sum(shown["stages"]["hash"]["counts"]) == 1
    assert len(shown["stages"]["hash"]["counts"]) == len(shown["stages"]["hash"]["bounds"]) + 1
    assert shown["engine"]["connected"] is True
    assert shown["inflight"]["bytes"] == 77
    assert shown["health"] == {"live": True, "ready": True, "reasons": []}


def test_refusals_are_few_newest_first_and_redacted():
    recent = RecentRefusals(3)
    for number in range(10):
        recent.add(f"{number}-secret-looking-rid", Reason.TOO_LARGE, "x" * 5000)
    recent.add(None, Reason.MALFORMED_REQUEST, "no rid")
    shown = Status(Metrics(), Health, refusals=recent).snapshot()["refusals"]
    assert [entry["rid"] for entry in shown] == ["", "9-secret…", "8-secret…"]
    assert shown[0]["reason"] == "malformed_request"
    assert len(shown[1]["message"]) == 301


def test_the_configuration_is_complete_and_its_secrets_are_not_shown(tmp_path):
    key = tmp_path / "curve.key"
    rows = describe(load(None, {}, [f"security.secret_key_file={key}", "ingress.hwm=64"]))
    shown = Status(Metrics(), Health, configuration=rows, facts={"model": "m"}).configuration()
    values = {row["key"]: row["value"] for row in shown["configuration"]}
    assert len(values) == len(rows)
    assert values["ingress.hwm"] == "64"
    assert values["security.secret_key_file"] == "(set)"
    assert str(key) not in json.dumps(shown)
    assert shown["facts"] == {"model": "m"}

"""Pages as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sidecar.inspection.page import Page
from sidecar.inspection.values import Node
from sidecar.inspection.verdict import Verdict
from sidecar.recording import Record


def document(number: int, record: Record, page: Page, verdict: Verdict | None, *, positions: bool) -> dict[str, Any]:
    """One message as a JSON object. `positions` adds the M-RoPE positions in full."""
    return {
        "number": number,
        "direction": record.direction.value,
        "framing": record.framing.value,
        "wall_ns": record.wall_ns or None,
        "metadata": dict(record.metadata),
        "kind": page.kind.value,
        "title": page.title,
        "tag": page.tag or None,
        "rids": list(page.rids),
        "frames": [{"role": role, "nbytes": nbytes} for role, nbytes in page.frames],
        "fields": _nodes(page.fields),
        "prompt": page.prompt,
        "spans": [
            {"start": s.start, "end": s.end, "item": s.item, "modality": s.modality, "content": s.content}
            for s in page.spans
        ],
        "notes": list(page.notes),
        "problems": list(page.problems),
        "verdict": _verdict(verdict, positions=positions) if verdict is not None else None,
    }


def _nodes(nodes: Sequence[Node]) -> list[dict[str, Any]]:
    rows = []
    for node in nodes:
        row: dict[str, Any] = {"name": node.name, "start": node.start, "end": node.end}
        if node.index is not None:
            row["index"] = node.index
        if node.children:
            row["fields"] = _nodes(node.children)
        else:
            row["value"] = node.value if node.value is not None or node.text == "nil" else node.text
        rows.append(row)
    return rows


def _verdict(verdict: Verdict, *, positions: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "action": verdict.action,
        "summary": verdict.summary,
        "reason": verdict.reason or None,
        "why": list(verdict.why),
        "facts": list(verdict.facts),
        "changes": [{"path": c.path, "before": c.before, "after": c.after} for c in verdict.changes],
        "delta": verdict.delta,
    }
    if positions and verdict.positions is not None:
        found["positions"] = verdict.positions.tolist()
    return found

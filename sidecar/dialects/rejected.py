"""A refused request as it leaves: decodable by the engine whatever was wrong with it, and marked."""

from __future__ import annotations

from typing import Final

from sidecar.admission.sampling import DEFAULTS, well_formed
from sidecar.wire.framing import Framing, join_add
from sidecar.wire.msgpack import EMPTY_ARRAY, Buffer, pack_array_header, pack_str
from sidecar.wire.request import default_field, field_is_well_formed
from sidecar.wire.salvage import readable_fields
from sidecar.wire.tokenspeed import GENERATE_TAG, Request

_KEPT: Final = (
    Request.HTTP_WORKER_IPC,
    Request.STREAM,
    Request.BOOTSTRAP_HOST,
    Request.BOOTSTRAP_PORT,
    Request.BOOTSTRAP_ROOM,
)
"""What the engine needs to end a request: where its answer goes, and whom else it must tell."""


def rejected_request(payload: Buffer, rid: str, error: str, framing: Framing) -> list[Buffer]:
    """The frames of a refused request.

    The prompt is empty, media and aux frames are gone, `validation_error` is `error`. The rid, the
    fields that say where the answer goes, and the sampling params are kept where they are well-formed;
    the engine decodes them even for a request that it will not run.
    """
    found = {
        field: payload[start:end] for field, (start, end) in readable_fields(payload, Request.BOOTSTRAP_ROOM).items()
    }
    fields = [pack_str(GENERATE_TAG), pack_str(rid)]
    for field in map(Request, range(Request.HTTP_WORKER_IPC, Request.VALIDATION_ERROR)):
        span = found.get(field)
        if field == Request.INPUT_IDS:
            fields.append(EMPTY_ARRAY)
        elif field == Request.SAMPLING_PARAMS:
            fields.append(bytes(span) if span is not None and well_formed(span) else DEFAULTS)
        elif field in _KEPT and span is not None and field_is_well_formed(field, span):
            fields.append(bytes(span))
        else:
            fields.append(default_field(field))
    fields.append(pack_str(error))
    return join_add(framing, pack_array_header(len(fields)) + b"".join(fields), ())

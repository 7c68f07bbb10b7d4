"""What the process says about itself at start: model, sockets, device, limits."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sidecar import __version__

if TYPE_CHECKING:
    from sidecar.model import ModelSpec
    from sidecar.observability.logs import Format
    from sidecar.settings import Settings


def banner(settings: Settings, model: ModelSpec, device: str) -> dict[str, str]:
    """The rows of the banner, by name. `device` is the one that M-RoPE is filled on, as resolved."""
    rows = {
        "sidecar": f"{__version__}, {settings.mode}",
        "model": f"{settings.model.path} ({', '.join((model.model_type, *model.architectures))})",
        "family": _family(model),
        "placeholders": _placeholders(settings, model),
        "engine": _engine(settings),
    }
    if settings.mode == "relay":
        rows["frontend"] = f"dials {settings.relay.frontend_handshake}"
        rows["scheduler"] = f"handshake on {settings.relay.engine_handshake}, sockets in {settings.relay.socket_dir}"
    else:
        for name, side in (("ingress", settings.ingress), ("egress", settings.egress)):
            verb = "binds" if side.bind is not None else "connects to"
            rows[name] = f"{verb} {side.address}, {side.framing} framing, high-water mark {side.hwm}"
    rows["device"] = f"{device} (materialize.device = {settings.materialize.device})"
    limits = settings.limits
    rows["limits"] = (
        f"{_size(limits.inflight_bytes)} and {limits.inflight_requests} requests in flight; "
        f"{_size(limits.message_bytes)}, {limits.frames} frames and {limits.items} items a message"
    )
    rows["admin"] = f"http://{settings.admin.bind}/"
    return rows


def announce(logger: logging.Logger, rows: dict[str, str], style: Format) -> None:
    """Log the banner: a line a row for people, one entry with a field a row for machines."""
    if style == "json":
        logger.info("starting", extra={"banner": rows})
        return
    width = max(map(len, rows))
    for name, text in rows.items():
        logger.info("%-*s  %s", width, name, text)


def _family(model: ModelSpec) -> str:
    if model.mrope_family is not None:
        return f"M-RoPE as {model.mrope_family}, spatial merge size {model.spatial_merge_size}"
    if model.mrope_unknown:
        return f"M-RoPE of {model.model_type} is not known: requests with media are refused"
    return "no M-RoPE" if model.multimodal else "text only"


def _placeholders(settings: Settings, model: ModelSpec) -> str:
    ids = {"image": model.image_token_id, "video": model.video_token_id, "audio": model.audio_token_id}
    known = [f"{name} {token_id}" for name, token_id in ids.items() if token_id is not None]
    native = settings.model.image_placeholder_ids
    if native:
        known.append(f"native image {' '.join(map(str, native))}")
    return ", ".join(known) or "none"


def _engine(settings: Settings) -> str:
    engine = settings.engine
    length = f"at most {engine.max_model_len} tokens" if engine.max_model_len else "no length limit known"
    media = ", without media encoders" if engine.language_model_only else ""
    return f"{engine.kind}, {engine.role}, {length}{media}"


def _size(count: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count} bytes"

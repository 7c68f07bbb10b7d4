"""The configuration as text: rows for `print-config`, and the commented file of all defaults."""

from __future__ import annotations

import textwrap
from typing import Any, Final, NamedTuple

from sidecar.settings.keys import Key, keys, sections
from sidecar.settings.loading import Loaded
from sidecar.settings.schema import Settings

_WIDTH: Final = 100

_EXAMPLES: Final[dict[str, str]] = {
    "ingress.connect": '"ipc:///tmp/frontend.sock"',
    "egress.connect": '"ipc:///tmp/scheduler.sock"',
    "relay.frontend_handshake": '"ipc:///tmp/worker"',
    "relay.engine_handshake": '"tcp://127.0.0.1:30001"',
    "model.image_placeholder_ids": "[163602]",
    "engine.max_model_len": "32768",
    "shutdown.spill_dir": '"/var/lib/sidecar/spill"',
    "quarantine.dir": '"/var/lib/sidecar/quarantine"',
    "security.secret_key_file": '"/etc/sidecar/curve.key"',
    "security.ingress_server_key": '"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"',
    "security.egress_server_key": '"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"',
}
"""What a key without a default could look like."""

_HEADER: Final = """\
# Every key of the sidecar's configuration, with its default and what it means.
#
# A value comes from, strongest first: --set section.key=value, the environment
# (SIDECAR_SECTION__KEY), a file like this one, the default. Sizes are bytes or strings such as
# "256 MiB". A line that starts with "#" and holds a key shows a key that has no value by default.
"""


class Row(NamedTuple):
    """A key as `print-config` shows it. `value` is TOML, `-` where there is none."""

    key: str
    value: str
    origin: str
    doc: str


def describe(loaded: Loaded) -> list[Row]:
    """One row a key, in the order of the file."""
    return [
        Row(dotted, key.render(loaded.value(dotted)), loaded.origins[dotted], key.doc) for dotted, key in keys().items()
    ]


def render_toml() -> str:
    """The text of `config/sidecar.toml`: every key, its default and a line of explanation."""
    lines = [_HEADER]
    lines += [line for key in keys().values() if not key.section for line in _block(key)]
    for name, cls in sections().items():
        lines += ["", f"[{name}]"]
        if cls.__doc__:
            lines += _comment(cls.__doc__.partition("\n")[0])
        for key in keys().values():
            if key.section == name:
                lines += ["", *_block(key)]
    return "\n".join(lines) + "\n"


def _block(key: Key) -> list[str]:
    lines = _comment(key.doc)
    if key.dotted in Settings.FOLLOWS or key.default is None:
        return [*lines, f"#{key.name} = {_EXAMPLES.get(key.dotted) or key.render(key.default)}"]
    return [*lines, *_assignment(key, key.default)]


def _assignment(key: Key, value: Any) -> list[str]:
    text = f"{key.name} = {key.render(value)}"
    if len(text) <= _WIDTH or not isinstance(value, tuple):
        return [text]
    return [f"{key.name} = [", *(f'    "{item}",' for item in value), "]"]


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)

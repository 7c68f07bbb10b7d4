"""Configuration: one frozen `Settings`, read from defaults, a TOML file, the environment and `--set`."""

from sidecar.settings.loading import Loaded, SettingsError, load
from sidecar.settings.rendering import Row, describe, render_toml
from sidecar.settings.schema import (
    Admin,
    Admission,
    Egress,
    Engine,
    Framing,
    Ingress,
    Limits,
    Log,
    Materialize,
    Mode,
    Model,
    Quarantine,
    Relay,
    Security,
    Settings,
    Shutdown,
)

__all__ = [
    "Admin",
    "Admission",
    "Egress",
    "Engine",
    "Framing",
    "Ingress",
    "Limits",
    "Loaded",
    "Log",
    "Materialize",
    "Mode",
    "Model",
    "Quarantine",
    "Relay",
    "Row",
    "Security",
    "Settings",
    "SettingsError",
    "Shutdown",
    "describe",
    "load",
    "render_toml",
]

"""The modules in C, where they were compiled; each has a twin in Python that gives the same answers."""

from __future__ import annotations

import importlib
import os
from types import ModuleType


def compiled(name: str) -> ModuleType | None:
    """A module in C; None where there was no compiler, or where the environment sets `PURE_PYTHON`."""
    if os.environ.get("PURE_PYTHON"):
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None

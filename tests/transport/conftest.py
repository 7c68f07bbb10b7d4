"""Fixtures: both event loops."""

from tests.service.loops import run

__all__ = ["run"]

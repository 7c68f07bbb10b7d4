"""The service around the pure core: lifecycle, ordering, back-pressure, drain."""

from sidecar.service.lifecycle import Service

__all__ = ["Service"]

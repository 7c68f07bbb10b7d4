"""Checks with other programs: Prometheus, Chromium, schemas of Kubernetes, container tools.

They are no part of `make test`: their files are called `check_*.py`, and `make test-ops` runs them.
"""

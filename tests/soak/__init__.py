"""Load and fault tests with real processes, run by `make soak`: minutes, and numbers at the end.

`SOAK_SCALE` (default 1) shrinks counts and durations.
"""

"""Bounds on what a setting may ask for. Importing this file loads no torch."""

from __future__ import annotations

from methods.common.errors import ArgumentError

MOST_ROWS = 4096
"""Of one target forward: ten times the largest tree that was ever published, and little enough to be counted."""


def within(argument: str, value: float, low: float, high: float) -> None:
    """Refuse a value outside ``[low, high]``; NaN is.

    Raises:
        ArgumentError: naming the argument.
    """
    if not low <= value <= high:
        raise ArgumentError(f"{argument}={value} must lie in [{low}, {high}]")


def check_sampling(temperature: float, top_p: float, top_k: int) -> None:
    """Refuse settings of the sampling that mean nothing.

    Raises:
        ArgumentError: naming the one that is out of range; NaN is.
    """
    if not 0.0 <= temperature <= 100.0:
        raise ArgumentError(f"temperature={temperature} must lie in [0, 100]; 0 is greedy")
    if not 0.0 < top_p <= 1.0:
        raise ArgumentError(f"top_p={top_p} must lie in (0, 1]; 1 switches it off")
    if top_k < 0:
        raise ArgumentError(f"top_k={top_k} must be 0 (off) or more")

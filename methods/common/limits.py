"""Bounds on what a setting may ask for. Importing this file loads no torch."""

from __future__ import annotations

MOST_ROWS = 4096
"""Of one target forward: ten times the largest tree that was ever published, and little enough to be counted."""

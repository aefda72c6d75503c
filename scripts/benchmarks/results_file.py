"""Where a measurement of our own code is written: results/bench, which git ignores, or where ``--results`` says.

What the docs quote is kept apart, in results/reference/bench: a rerun leaves it as it is.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from methods.common.atomic_write import write_atomically


def add_option(parser: argparse.ArgumentParser, default: str = "results/bench") -> None:
    """Let a command line name the folder."""
    parser.add_argument("--results", type=Path, default=Path(default), help="the folder to write to")


def write(report: Mapping[str, Any], folder: Path, name: str) -> Path:
    """Write a report as JSON, whole or not at all; returns the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    write_atomically(path, json.dumps(report, indent=1) + "\n")
    return path

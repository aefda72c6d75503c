"""Everything on one page: records, tables and figures -> results/report.html. No network, no server, no torch.

Names, prompts and outputs are text of strangers. Jinja escapes what becomes HTML, what the scripts read is JSON that
cannot close its element, figures are images, whose scripts never run, and the page's policy lets no script or style
act but the ones below, known by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, UndefinedError
from markupsafe import Markup

from bench.records.store import DamagedRecordError
from bench.report.page import cells as page_records
from bench.report.page import sheets
from methods.common.atomic_write import write_atomically

_HTML = Path(__file__).resolve().parent / "html"
_SCRIPTS = ("sort.js", "tree.js", "viewer.js")


def write(results: Path) -> Path:
    """Write ``report.html`` into the results folder from what lies there, and return its path.

    Raises:
        DamagedRecordError: if a record there cannot be read.
    """
    path = results / "report.html"
    results.mkdir(parents=True, exist_ok=True)
    write_atomically(path, render(results))
    return path


def render(results: Path) -> str:
    """The page: the same bytes for the same files."""
    env = Environment(loader=FileSystemLoader(_HTML), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    style = (_HTML / "page.css").read_text(encoding="utf-8")
    scripts = [(_HTML / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    cells = page_records.recorded_cells(results)
    template = env.get_template("page.html.jinja")
    facts = {
        "policy": _policy(style, scripts),
        "style": Markup(style),  # noqa: S704 our own file
        "scripts": [Markup(script) for script in scripts],  # noqa: S704 our own files
        "sheets": sheets.table_sheets(results),
        "figures": _figures(results),
        "cells": cells,
        "sessions": page_records.sessions(cells),
        "traces": page_records.traces(cells),
    }
    try:
        return template.render(facts)
    except UndefinedError as error:  # a results folder may come from a stranger
        raise DamagedRecordError(f"{results} holds a cell of another form ({error}); move it away") from None


def _policy(style: str, scripts: Sequence[str]) -> str:
    hashes = " ".join(_hash(script) for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _figures(results: Path) -> list[tuple[str, str]]:
    """Name and data URI of each figure drawn so far."""
    return [
        (path.stem, f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}")
        for path in sorted((results / "figures").glob("*.svg"))
        if not path.is_symlink()  # what a stranger's link points to is not for this page
    ]

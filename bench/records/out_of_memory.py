"""Methods that ran out of memory on a question, as blocks record it: ``failed``, beside the runs of the others.

The method has no run in that block, so it is left out of both arms: its speedup is over vanilla's runs of the same
blocks. The next run tries again what is still lacking.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Where = tuple[str, int]
"""A question's id and the repeat."""


def recorded(blocks: Sequence[dict[str, Any]]) -> dict[Where, set[str]]:
    """The ids of the methods that had no memory for a question and have not got through it since."""
    found: dict[Where, set[str]] = {}
    for block in blocks:
        here = found.setdefault((block["question_id"], block["repeat"]), set())
        here |= {one["method_id"] for one in block.get("failed", ())}
    for block in blocks:
        found[block["question_id"], block["repeat"]] -= {run["method_id"] for run in block["runs"]}
    return {where: idents for where, idents in found.items() if idents}

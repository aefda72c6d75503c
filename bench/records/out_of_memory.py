"""Methods that ran out of memory on a question, as blocks record it: ``failed``, beside the runs of the others.

The method has no run in that block, so it is left out of both arms: its speedup is over vanilla's runs of the same
blocks. The next run tries again what is still lacking.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.records.block import Block, Where


def recorded(blocks: Sequence[Block]) -> dict[Where, set[str]]:
    """The ids of the methods that had no memory for a question and have not got through it since."""
    found: dict[Where, set[str]] = {}
    for block in blocks:
        here = found.setdefault(block.where, set())
        here |= {one.method_id for one in block.failed}
    for block in blocks:
        found[block.where] -= block.method_ids
    return {where: idents for where, idents in found.items() if idents}

"""The losslessness verdict of a method in a cell, from what the audit recorded. No model needed.

A turn is *identical* if it has vanilla's very tokens; a *near-tie* if it differs, but every token is within rounding
of what the target itself would have chosen there; a *violation* if some token is not. One violation makes the cell a
hole: that number is of another method than the one named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.plan.cells import VANILLA
from bench.records.block import Block

NEAR_TIE = {"float64": 1e-9, "float32": 2e-3, "bfloat16": 0.75, "float16": 0.10}
"""The largest gap, in logits, that two kernels' roundings explain, by dtype. Measured: see docs/metrics.md."""


@dataclass(frozen=True)
class Verdict:
    """Turns by outcome; ``unchecked`` ones differ from vanilla and no audit was recorded.

    ``by_law`` ones come from a rejection rule at T>0: such a method draws for itself, so its tokens differ from
    vanilla's, and its losslessness is a matter of law, which the tests of the distribution establish.
    """

    identical: int
    near_tie: int
    violations: int
    unchecked: int
    largest_gap: float
    by_law: int = 0

    @property
    def turns(self) -> int:
        return self.identical + self.near_tie + self.violations + self.unchecked + self.by_law

    @property
    def ok(self) -> bool:
        return self.violations == 0

    def __str__(self) -> str:
        parts = [f"identical {self.identical}/{self.turns}"]
        parts += [f"near-tie {self.near_tie}"] * bool(self.near_tie)
        parts += [f"own draws {self.by_law}"] * bool(self.by_law)
        parts += [f"not audited {self.unchecked}"] * bool(self.unchecked)
        parts += [f"VIOLATION {self.violations}"] * bool(self.violations)
        return ", ".join(parts)


def judge(blocks: Iterable[Block], method_id: str, dtype: str) -> Verdict:
    """Judge every turn of a method against vanilla's turn of the same block and against its own audit."""
    bound = NEAR_TIE[dtype]
    identical = near_tie = violations = unchecked = by_law = 0
    largest = 0.0
    for block in blocks:
        if method_id not in block.method_ids:
            continue
        for turn, vanilla in zip(block.turns_of(method_id), block.turns_of(VANILLA), strict=True):
            worst = max((gap for _, gap in turn.gaps or ()), default=0.0)
            largest = max(largest, worst)
            if worst > bound:
                violations += 1
            elif turn.output_ids == vanilla.output_ids:
                identical += 1
            elif turn.keyed is False:
                by_law += 1
            elif turn.gaps is not None:
                near_tie += 1
            else:
                unchecked += 1
    return Verdict(identical, near_tie, violations, unchecked, largest, by_law)

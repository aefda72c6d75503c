"""Which records may stand behind a number: whole cells, lossless methods, one kind of machine. The rest are holes.

Tables and figures alike start here, so nothing is drawn from a record that a table would refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import hardware
from bench.lossless import Verdict, judge
from bench.plan import VANILLA, Cell, lacking
from bench.records import DamagedRecordError, Store
from methods.errors import ConfigError


class MixedHardwareError(ConfigError):
    """Cells of one table were measured on different machines."""


@dataclass(frozen=True)
class Measured:
    """A whole cell: the blocks that hold what was asked for, and the methods that passed their audit, by label."""

    cell: Cell
    blocks: list[dict[str, Any]]
    verdicts: dict[str, Verdict]

    @property
    def method_ids(self) -> dict[str, str]:
        return {label: {VANILLA: VANILLA, **self.cell.method_ids}[label] for label in self.verdicts}


@dataclass(frozen=True)
class Evidence:
    """What was asked for and may be used, why the rest may not, and the machine behind it."""

    cells: list[Cell]
    measured: list[Measured]
    holes: list[str]
    machine: str


def gather(cells: Sequence[Cell], results: Path) -> Evidence:
    """Read the cells' records. A cell that is missing, incomplete, failed or not lossless is a hole, never an average.

    Raises:
        MixedHardwareError: if the records come from different kinds of machine.
    """
    measured: list[Measured] = []
    holes: list[str] = []
    machines: set[str] = set()
    for cell in cells:
        if cell.idle:
            holes.append(f"{cell.name}: no weights for {', '.join(cell.without_weights)}")
            continue
        store = Store(cell.folder(results))
        recorded = store.blocks()
        work = lacking(cell, recorded)  # whatever a DONE mark says: the numbers are made of these
        if work:
            failed = store.failed()
            reason = failed["error"] if failed else f"{len(work)} of {len(cell.questions)} questions to run"
            holes.append(f"{cell.name}: {reason}")
            continue
        blocks = _asked_for(cell, recorded)
        if twice := _twice(blocks):
            holes.append(f"{cell.name}: {twice}; remove the later line, or move the folder away and run again")
            continue
        machines |= _machines(store, blocks)
        verdicts, failures = _judged(cell, blocks)
        holes += failures
        measured.append(Measured(cell, blocks, verdicts))
    if len(machines) > 1:
        kinds = "; ".join(sorted(machines))
        raise MixedHardwareError(f"records of different machines cannot share a table ({kinds}); give results=FOLDER")
    return Evidence(list(cells), measured, holes, next(iter(machines), "no records"))


def _asked_for(cell: Cell, blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks with one of the cell's methods: those made for others hold other vanilla runs, perhaps elsewhere."""
    wanted = set(cell.method_ids.values())
    return [block for block in blocks if not wanted or wanted & {run["method_id"] for run in block["runs"]}]


def _twice(blocks: list[dict[str, Any]]) -> str | None:
    """Which question was measured twice, if one was: it would weigh double. Vanilla goes along with every method."""
    seen: set[tuple[str, int, str]] = set()
    for block in blocks:
        for ident in {run["method_id"] for run in block["runs"]} - {VANILLA} or {VANILLA}:
            key = (block["question_id"], block["repeat"], ident)
            if key in seen:
                return f"question {block['question_id']} was recorded twice"
            seen.add(key)
    return None


def _machines(store: Store, blocks: list[dict[str, Any]]) -> set[str]:
    """What the blocks were measured on. A session that wrote none of them measured nothing here, wherever it ran.

    Raises:
        DamagedRecordError: if the file that says so is gone.
    """
    sessions = store.sessions()
    for name in {block["session"] for block in blocks}:
        if name not in sessions:
            raise DamagedRecordError(
                f"{store.folder / 'sessions' / name}.json is missing, which says where blocks were measured; bring it "
                f"back, or move the folder away and run again"
            )
    return {hardware.kind(sessions[name]["hardware"]) for name in {block["session"] for block in blocks}}


def _judged(cell: Cell, blocks: list[dict[str, Any]]) -> tuple[dict[str, Verdict], list[str]]:
    """The verdicts of the methods that passed, and a line for each that did not. A baseline that fails takes all."""
    passed: dict[str, Verdict] = {}
    failures = []
    for label, ident in {VANILLA: VANILLA, **cell.method_ids}.items():
        found = judge(blocks, ident, cell.model.dtype)
        if found.ok:
            passed[label] = found
            continue
        failures.append(f"{cell.name} {label}: not lossless ({found}, largest gap {found.largest_gap:.3g})")
        if label == VANILLA:
            return {}, [f"{failures[0]}; every speedup of this cell is relative to it"]
    return passed, failures

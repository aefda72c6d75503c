"""Which records may stand behind a number: whole cells, lossless methods, one kind of machine. The rest are holes.

Tables and figures alike start here, so nothing is drawn from a record that a table would refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.plan.cells import VANILLA, Cell, MissingBlock, lacking
from bench.records import hardware, out_of_memory, provenance
from bench.records.block import Block
from bench.records.store import DamagedRecordError, Store
from bench.report.lossless import Verdict, judge
from methods.common.errors import ConfigError


class MixedHardwareError(ConfigError):
    """Cells of one table were measured on different machines."""


@dataclass(frozen=True)
class AdmissibleCell:
    """A whole cell: the blocks that hold what was asked for, and the methods that passed their audit, by label.

    ``out_of_memory`` are the questions a method had no memory for: its rows are marked, and leave them out.
    """

    cell: Cell
    blocks: list[Block]
    verdicts: dict[str, Verdict]
    out_of_memory: dict[str, list[str]] = field(default_factory=dict)

    @property
    def method_ids(self) -> dict[str, str]:
        return {label: {VANILLA: VANILLA, **self.cell.method_ids}[label] for label in self.verdicts}


@dataclass(frozen=True)
class Evidence:
    """What was asked for and may be used, why the rest may not, and the machine behind it."""

    cells: list[Cell]
    measured: list[AdmissibleCell]
    holes: list[str]
    machine: str


def gather(cells: Sequence[Cell], results: Path) -> Evidence:
    """Read the cells' records. A cell that is missing, incomplete, failed or not lossless is a hole, never an average.

    Raises:
        MixedHardwareError: if the records come from different kinds of machine.
    """
    measured: list[AdmissibleCell] = []
    holes: list[str] = []
    machines: set[str] = set()
    codes: set[str] = set()
    for cell in cells:
        if cell.idle:
            holes.append(f"{cell.name}: no weights for {', '.join(cell.without_weights)}")
            continue
        store = Store(cell.folder(results))
        recorded = store.blocks()
        work = lacking(cell, recorded)  # whatever a DONE mark says: the numbers are made of these
        short = _explained(cell, work, recorded)
        if short is None:
            failed = store.failed()
            whole = len(cell.questions) * cell.measure.repeats
            reason = failed["error"] if failed else f"{len(work)} of {whole} blocks to run"
            holes.append(f"{cell.name}: {reason}")
            continue
        blocks = _asked_for(cell, recorded)
        holes += [_short_of_memory(cell, name, questions) for name, questions in short.items()]
        if wrong := _twice(blocks) or _miscounted(blocks):
            holes.append(f"{cell.name}: {wrong}; remove the line, or move the folder away and run again")
            continue
        if not blocks:
            continue
        wrote = _sessions(store, blocks)
        machines |= {hardware.kind(facts["hardware"]) for facts in wrote}
        codes |= {provenance.code(facts["provenance"]) for facts in wrote if "provenance" in facts}
        verdicts, failures = _judged(cell, blocks)
        holes += failures
        measured.append(AdmissibleCell(cell, blocks, verdicts, short))
    if len(machines) > 1:
        kinds = "; ".join(sorted(machines))
        raise MixedHardwareError(f"records of different machines cannot share a table ({kinds}); give results=FOLDER")
    machine = next(iter(machines), "no records")
    if len(codes) > 1:
        machine += f"; MEASURED WITH {len(codes)} VERSIONS OF THE CODE ({'; '.join(sorted(codes))})"
    return Evidence(list(cells), measured, holes, machine)


def _explained(cell: Cell, work: Iterable[MissingBlock], blocks: Sequence[Block]) -> dict[str, list[str]] | None:
    """The questions each method had no memory for, if nothing else is lacking; None if something is."""
    short = out_of_memory.recorded(blocks)
    found: dict[str, list[str]] = {}
    for item in work:
        known = short.get((item.question.id, item.repeat), set())
        if not item.methods or not {cell.method_ids[name] for name in item.methods} <= known:
            return None
        for name in item.methods:
            found[name] = [*dict.fromkeys([*found.get(name, []), item.question.id])]
    return found


def _asked_for(cell: Cell, blocks: list[Block]) -> list[Block]:
    """The blocks with one of the cell's methods: those made for others hold other vanilla runs, perhaps elsewhere."""
    wanted = set(cell.method_ids.values())
    return [block for block in blocks if not wanted or wanted & block.method_ids]


def _twice(blocks: list[Block]) -> str | None:
    """Which question was measured twice, if one was: it would weigh double. Vanilla goes along with every method."""
    seen: set[tuple[str, int, str]] = set()
    for block in blocks:
        for ident in block.method_ids - {VANILLA} or {VANILLA}:
            key = (*block.where, ident)
            if key in seen:
                return f"question {block.question_id} was recorded twice"
            seen.add(key)
    return None


def _miscounted(blocks: list[Block]) -> str | None:
    """Where the steps of a turn claim other tokens than its answer has, if anywhere: tau and tokens/s would follow."""
    for block in blocks:
        for run in block.runs:
            for turn in run.turns:
                claimed = sum(turn.emitted)
                if claimed != turn.tokens:
                    return (
                        f"question {block.question_id}: the steps of {run.method} count {claimed} tokens, its answer "
                        f"has {turn.tokens}"
                    )
    return None


def _short_of_memory(cell: Cell, name: str, questions: list[str]) -> str:
    shown = ", ".join(questions[:3]) + (", ..." if len(questions) > 3 else "")
    return (
        f"{cell.name} {name}: out of memory on {len(questions)} of {len(cell.questions)} questions ({shown}), which "
        "are left out of its row, with vanilla's runs of them"
    )


def _sessions(store: Store, blocks: list[Block]) -> list[dict[str, Any]]:
    """Who measured the blocks. A session that wrote none of them measured nothing here, wherever it ran.

    Raises:
        DamagedRecordError: if the file that says so is gone.
    """
    sessions = store.sessions()
    for name in {str(block.session) for block in blocks}:
        if name not in sessions:
            raise DamagedRecordError(
                f"{store.folder / 'sessions' / name}.json is missing, which says where blocks were measured; bring it "
                f"back, or move the folder away and run again"
            )
    found = [sessions[name] for name in sorted({str(block.session) for block in blocks})]
    for facts in found:
        try:
            hardware.kind(facts["hardware"])
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise DamagedRecordError(
                f"{store.folder / 'sessions'} holds a file that names no machine ({error!r}); move the folder away and "
                "run again"
            ) from None
    return found


def _judged(cell: Cell, blocks: list[Block]) -> tuple[dict[str, Verdict], list[str]]:
    """The verdicts of the methods that passed, and a line for each that did not. A baseline that fails takes all."""
    passed: dict[str, Verdict] = {}
    failures = []
    there = {ident for block in blocks for ident in block.method_ids}
    for label, ident in {VANILLA: VANILLA, **cell.method_ids}.items():
        if ident not in there:
            continue
        found = judge(blocks, ident, cell.model.dtype)
        if found.ok:
            passed[label] = found
            continue
        failures.append(f"{cell.name} {label}: not lossless ({found}, largest gap {found.largest_gap:.3g})")
        if label == VANILLA:
            return {}, [f"{failures[0]}; every speedup of this cell is relative to it"]
    return passed, failures

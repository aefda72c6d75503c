"""results/runs -> what the page says of each cell: its verdicts, who measured it where, and its draft trees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records import hardware, out_of_memory
from bench.records.store import DamagedRecordError, Store, repeats
from bench.report.lossless import Verdict, judge

DIGITS = 5
"""Decimals of a log-probability on the page; the records keep all of them."""


@dataclass(frozen=True)
class Judged:
    """A method of a cell and its losslessness."""

    method: str
    method_id: str
    verdict: Verdict

    @property
    def word(self) -> str:
        """The verdict in a word, with a mark that says as much without colour."""
        found = self.verdict
        if not found.ok:
            return "✗ VIOLATION"
        if found.unchecked:
            return "? not audited"
        return "✓ within rounding" if found.near_tie else "✓ own draws" if found.by_law else "✓ identical"


@dataclass(frozen=True)
class RecordedCell:
    """A cell as its folder tells it; ``state`` is done, unfinished, or what it failed with."""

    name: str
    config: dict[str, Any]
    state: str
    blocks: int
    judged: list[Judged]
    sessions: dict[str, dict[str, Any]]
    traces: list[dict[str, Any]]


@dataclass(frozen=True)
class Writer:
    """A process that measured: the machine, the code, and how many cells it wrote to."""

    name: str
    machine: str
    facts: dict[str, Any]
    cells: int


def recorded_cells(results: Path) -> list[RecordedCell]:
    """Every cell of the results folder. A folder in which nothing was measured yet is no cell.

    Raises:
        DamagedRecordError: naming the file and line.
    """
    folders = sorted(path.parent for path in (results / "runs").glob("*/cell.json"))
    found = []
    for folder in folders:
        with _as_recorded(folder):
            found.append(_recorded(Store(folder)))
    return found


@contextmanager
def _as_recorded(folder: Path) -> Iterator[None]:
    """A results folder may come from a stranger: what has not the form that is written here is named."""
    try:
        yield
    except DamagedRecordError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DamagedRecordError(f"{folder} holds records of another form ({error!r}); move it away") from None


def sessions(cells: Sequence[RecordedCell]) -> list[Writer]:
    """Every process that wrote a block or a trace, in the order they started."""
    names = sorted({name for cell in cells for name in cell.sessions})
    wrote = {name: [cell.sessions[name] for cell in cells if name in cell.sessions] for name in names}
    return [Writer(name, hardware.kind(facts[0]["hardware"]), facts[0], len(facts)) for name, facts in wrote.items()]


def traces(cells: Sequence[RecordedCell]) -> list[dict[str, Any]]:
    """Every trace with the cell it belongs to, as the viewer reads it."""
    return [{"cell": cell.name, **trace} for cell in cells for trace in cell.traces]


def _recorded(store: Store) -> RecordedCell:
    config, blocks, traced = store.cell(), store.blocks(), store.traces()
    failed = store.failed()
    state = f"failed: {failed['error']}" if failed else "done" if store.done() else "unfinished"
    if short := sum(map(len, out_of_memory.recorded(blocks).values())):
        state += f", {short} runs out of memory"
    dtype = config["model"]["dtype"]
    idents = dict.fromkeys((run.method, run.method_id) for block in blocks for run in block.runs)
    wrote = {block.session for block in blocks} | {trace["session"] for trace in traced}
    if None in wrote:
        raise ValueError("a block without its session")
    written = {name: facts for name, facts in store.sessions().items() if name in wrote}
    for facts in written.values():
        hardware.kind(facts["hardware"])
        facts["provenance"].get("git")
    return RecordedCell(
        name=store.folder.name,
        config=config,
        state=state,
        blocks=len(blocks),
        judged=[Judged(name, ident, judge(blocks, ident, dtype)) for name, ident in idents],
        sessions=written,
        traces=[_shown(trace, repeats(trace, blocks)) for trace in traced],
    )


def _shown(trace: dict[str, Any], repeated: bool) -> dict[str, Any]:
    """A trace without what the page does not need, and whether it shows the timed tokens."""
    turns = [
        {**turn, "steps": [{**step, "scores": _rounded(step["scores"])} for step in turn["steps"]]}
        for turn in trace["turns"]
    ]
    wanted = {name: trace[name] for name in ("question_id", "method", "method_id")}
    return {**wanted, "turns": turns, "repeats": repeated}


def _rounded(scores: list[float | None] | None) -> list[float | None] | None:
    return scores and [None if score is None else round(score, DIGITS) for score in scores]

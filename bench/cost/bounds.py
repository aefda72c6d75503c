"""The cost card: the least that a token and a cycle can cost on this machine, and how near the records come to it.

A forward reads every weight and the text's keys and values once, and multiplies its rows by the weights. It cannot take
less time than bytes / copy bandwidth, nor than arithmetic / product rate. A cycle is one target forward and the draft's
forwards. Before a run, the card says from which tau a method pays at these bounds. After a run, it says which share of
the bound was reached, and compares the speedup that the bound and the measured tau predict with the measured one. It
uses records and bounds only, and no table depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import methods
from bench.cost import model_sizes
from bench.cost.cpu_speed import Speeds
from bench.cost.model_sizes import BYTES, Size
from bench.plan.cells import VANILLA, Cell
from bench.plan.identity import registered
from bench.records.block import Block
from methods.heads.cycle_cost import CycleCost, DraftSize

_CONTEXT = 512
"""Tokens assumed to be in the cache before there are records."""


@dataclass(frozen=True)
class Bound:
    """Bytes and floating-point operations of a cycle, the draft's included, and the seconds they take at least."""

    read: float
    operations: float
    seconds: float


def bound(cycle: CycleCost, size: Size, element: int, speeds: Speeds, context: float) -> Bound:
    """The least time a cycle can take: each forward is limited by reading or by arithmetic, whichever is slower."""
    forwards = [
        (1, cycle.rows, size.read, size.cache_elements * context),
        (cycle.passes, cycle.pass_rows, cycle.elements, 0.0),
    ]
    total = [0.0, 0.0, 0.0]
    for count, rows, weights, cached in forwards:
        read, operations = element * (weights + cached), 2.0 * weights * rows
        total[0] += count * read
        total[1] += count * operations
        total[2] += count * max(read / speeds.copy, operations / speeds.multiply)
    return Bound(*total)


def cost_of(name: str, knobs: dict[str, Any], size: Size) -> CycleCost | None:
    """A cycle of a method at its settings, at most; None where the method, its head or a setting is not known."""
    weights = knobs.get("weights")
    whole = model_sizes.of_whole_draft(weights) if weights else None
    head = whole or (model_sizes.of_head(weights) if weights else None)
    draft = DraftSize(head, size.vocab, size.hidden, whole=whole is not None)
    return methods.cycle_cost(registered(name), knobs, draft)


def before(cell: Cell, speeds: Speeds) -> list[str]:
    """A line for the machine, and one for each method of a cell; none if the model's size is not known."""
    size = model_sizes.of_target(cell.model)
    if size is None:
        return []
    element = BYTES[cell.model.dtype]
    token = bound(CycleCost(1), size, element, speeds, _CONTEXT)
    lines = [
        f"{cell.model.name} in {cell.model.dtype}: a token reads {token.read / 1e9:.2f} GB, at least "
        f"{token.seconds * 1e3:.3g} ms here (copies {speeds.copy / 1e9:.3g} GB/s, multiplies "
        f"{speeds.multiply / 1e9:.3g} Gflop/s, measured {speeds.taken[:10]})"
    ]
    for name, knobs in cell.methods.items():
        if asked := cost_of(name, knobs, size):
            cycle = bound(asked, size, element, speeds, _CONTEXT)
            lines.append(
                f"  {name}: {asked.rows:.0f} rows and {asked.passes} draft forwards, {cycle.read / 1e9:.2f} GB and "
                f"{cycle.operations / 1e9:.3g} Gflop a cycle, at least {cycle.seconds * 1e3:.3g} ms: pays from tau "
                f"{cycle.seconds / token.seconds:.2f}"
            )
    return lines


def after(cell: Cell, blocks: Iterable[Block], speeds: Speeds) -> list[str]:
    """For vanilla and each method: the share of the bound that its cycles reached, predicted and measured speedup."""
    size, measured = model_sizes.of_target(cell.model), _cycles(blocks, cell.method_ids)
    if size is None or VANILLA not in measured:
        return []
    element, lines = BYTES[cell.model.dtype], []
    base = measured[VANILLA]
    token = bound(CycleCost(1), size, element, speeds, base.context)
    for name, found in measured.items():
        asked = cost_of(name, cell.methods.get(name, {}), size)
        if asked is None:
            continue
        cycle = bound(asked.at(found.rows), size, element, speeds, found.context)
        line = f"  {name}: {found.seconds * 1e3:.3g} ms a cycle, bound {cycle.seconds * 1e3:.3g} ms: "
        line += f"{100 * cycle.seconds / found.seconds:.0f} % reached"
        if name != VANILLA:
            predicted = found.tau * token.seconds / cycle.seconds
            line += f"; tau {found.tau:.2f} predicts {predicted:.2f}x, measured "
            line += f"{found.tau * base.seconds / found.seconds:.2f}x"
        lines.append(line)
    return [f"{cell.name}, against what this machine can do at most:", *lines]


@dataclass(frozen=True)
class _Cycle:
    """Means over a method's cycles, prefills left out."""

    seconds: float
    tau: float
    rows: float
    context: float


def _cycles(blocks: Iterable[Block], idents: Mapping[str, str]) -> dict[str, _Cycle]:
    """Means for the methods with these ids, and for vanilla in their blocks; blocks of other settings are left out."""
    names = {ident: name for name, ident in idents.items()}
    sums: dict[str, list[float]] = {}
    for block in blocks:
        here = [run for run in block.runs if run.method_id in names]
        for run in [*(run for run in block.runs if run.method == VANILLA and (here or not names)), *here]:
            total = sums.setdefault(names.get(run.method_id, VANILLA), [0.0] * 5)
            for turn in run.turns:
                total[0] += turn.cycles
                total[1] += turn.decode_seconds
                total[2] += turn.cycle_tokens
                total[3] += sum(turn.rows[1:])
                total[4] += turn.cycles * (turn.prompt_tokens + turn.tokens / 2)
    return {name: _Cycle(*(value / total[0] for value in total[1:])) for name, total in sums.items() if total[0]}

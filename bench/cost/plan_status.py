"""What a grid contains, costs and needs before it runs, and its progress while it runs: one line a cell, JSON last.

It is fast enough for grids of thousands of cells: a done cell costs reading one small file, an untouched one nothing,
and records are read for speed at most once a model.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from bench.cost import bounds, cpu_speed, forecast, model_sizes
from bench.cost.forecast import Device, Footprint, Pace
from bench.plan.cells import Cell, missing
from bench.plan.schema import Plan
from bench.records import hardware, lock
from bench.records.store import Store
from methods.common.errors import ConfigError

_TRIES = 3
"""At most so many cells of a model are searched for its speed on this kind of device."""


def pick(cells: list[Cell], index: int) -> Cell:
    """The cell of an array's task.

    Raises:
        ConfigError: if the grid has no such cell.
    """
    if not 0 <= index < len(cells):
        raise ConfigError(f"plan.index={index}: this grid has {len(cells)} cells, 0 to {len(cells) - 1}")
    return cells[index]


def price(cells: list[Cell], results: Path, plan: Plan) -> int:
    """Print cells, status, hours, memory and download with what each rests on. Exit code 2 if something cannot fit."""
    where, paces = forecast.device(plan), _Paces(results, cells)
    here = _folders(results)
    blocks, total, unpriced = 0, 0.0, 0
    needs: dict[tuple[int, ...], Footprint | None] = {}
    downloads: dict[str, float] = {}
    refusals: dict[str, str] = {}
    for index, cell in enumerate(cells):
        state, count, turns = _state(cell, results, here)
        line = f"#{index}  {cell.name}  {', '.join(cell.methods)}  {len(cell.questions)} questions  {state}"
        if count:
            device = _device_of(cell, where, plan)
            blocks += count
            pace = paces.of(cell, device)
            if pace:
                spent = forecast.hours(cell, turns, pace) * (device.count if cell.model.device == "map" else 1)
                total += spent
                line += f"  {spent:.3g} {'GPU' if device.gpu else 'machine'}-hours ({pace.basis})"
            else:
                unpriced += 1
                line += "  hours unknown (no records of this model here, no GPU named)"
            key = (id(cell.model), *map(id, cell.methods.values()))  # a grid's cells share these
            if key not in needs:
                needs[key] = forecast.footprint(cell)
            need = needs[key]
            memory, fetched = (need.memory_bytes(cell), need.downloads) if need else (None, {})
            downloads |= fetched
            line += f"  memory {_gb(memory)}  download {_gb(sum(fetched.values()) if need else None)}"
            if refusal := _refusal(cell, device, memory):
                refusals[cell.model.name] = refusal
                line += "  does not fit"
        print(line)
    for refusal in refusals.values():
        print(f"does not fit: {refusal}")
    if where.gpu is None:
        cards([cell for cell in cells if not cell.idle], measure=False)
    size = round(sum(downloads.values()) / 1e9, 1)
    facts = {"cells": len(cells), "blocks_to_run": blocks, "hours": round(total, 2), "cells_unpriced": unpriced}
    print(json.dumps({**facts, "download_gb": size, "device": where.name, "does_not_fit": sorted(refusals)}))
    return 2 if refusals else 0


def cards(cells: list[Cell], results: Path | None = None, *, measure: bool = True) -> None:
    """Print a cost card to stderr: what this CPU can do at most, and with ``results`` how near records come.

    Nothing on a machine with a GPU; without ``measure`` nothing before a run has measured the machine.
    """
    if hardware.has_gpu():
        return
    seen: set[tuple[int, ...]] = set()
    for cell in cells:
        key = (id(cell.model), *map(id, cell.methods.values()), id(cell) if results else 0)
        if key in seen or model_sizes.of_target(cell.model) is None:
            continue
        seen.add(key)
        speeds = cpu_speed.speeds(cell.model.dtype) if measure else cpu_speed.known(cell.model.dtype)
        if speeds is None:
            continue
        store = Store(cell.folder(results)) if results else None
        lines = bounds.after(cell, store.blocks(), speeds) if store else bounds.before(cell, speeds)
        print(*lines, sep="\n", file=sys.stderr)


def progress(cells: list[Cell], results: Path) -> int:
    """Print each cell's state, who works on it, and how much is done."""
    here, states = _folders(results), Counter[str]()
    for index, cell in enumerate(cells):
        state, count, _ = _state(cell, results, here)
        whole = len(cell.questions) * cell.measure.repeats
        owner = lock.living(cell.folder(results)) if cell.name in here and count else None
        word = "running" if owner else state if state in ("done", "failed") else "waiting"
        states[word] += 1
        done = f"{whole - count} of {whole} blocks"
        print(f"#{index}  {cell.name}  {word}  {done}{f'  {lock.who(owner)}' if owner else ''}")
    print(json.dumps({"cells": len(cells), **dict(sorted(states.items()))}))
    return 0


def refuse_too_large(cells: list[Cell], plan: Plan) -> None:
    """Refuse, before anything loads, a target that the device cannot hold.

    Raises:
        ConfigError: saying what it needs and what would hold it.
    """
    where = forecast.device(replace(plan, gpu=None, gpus=None))  # what is here, whatever the plan was priced for
    for cell in cells:
        need = forecast.footprint(cell)
        if refusal := _refusal(cell, _device_of(cell, where, plan), need.memory_bytes(cell) if need else None):
            raise ConfigError(refusal)


class _Paces:
    """The speed of each model, looked up once."""

    def __init__(self, results: Path, cells: list[Cell]) -> None:
        self._results = results
        self._recorded: dict[str, list[Cell]] = {}
        self._here = _folders(results)
        for cell in cells:
            if cell.name in self._here:
                self._recorded.setdefault(cell.model.name, []).append(cell)
        self._known: dict[tuple[str, str], Pace | None] = {}

    def of(self, cell: Cell, where: Device) -> Pace | None:
        own = None
        if cell.name in self._here:
            own = forecast.pace(Store(cell.folder(self._results)), where, "records of this cell")
        key = (cell.model.name, where.name)
        if own is None and key not in self._known:
            tried = self._recorded.get(cell.model.name, [])[:_TRIES]
            found = (
                forecast.pace(Store(one.folder(self._results)), where, f"records of {one.task.name} {one.decode.name}")
                for one in tried
            )
            self._known[key] = next((pace for pace in found if pace), None)
        return own or self._known[key] or forecast.roofline(cell, where)


def _state(cell: Cell, results: Path, here: set[str]) -> tuple[str, int, dict[tuple[str, ...], int]]:
    """The cell's state in words, the blocks to run, and their turns by the methods that take part."""
    if cell.idle:
        return "no weights", 0, {}
    if cell.name not in here:
        count = len(cell.questions) * cell.measure.repeats
        turns = sum(len(question.turns) for question in cell.questions) * cell.measure.repeats
        return f"{count} blocks to run", count, {tuple(cell.methods): turns}
    store = Store(cell.folder(results))
    work = missing(cell, store)
    if not work:
        return "done", 0, {}
    by_methods: Counter[tuple[str, ...]] = Counter()
    for item in work:
        by_methods[item.methods] += len(item.question.turns)
    return "failed" if store.failed() else f"{len(work)} blocks to run", len(work), dict(by_methods)


def _device_of(cell: Cell, where: Device, plan: Plan) -> Device:
    """The device that a cell is priced for: a model pinned to the CPU needs no GPU, unless the plan names one."""
    return replace(where, gpu=None, count=1) if cell.model.device.startswith("cpu") and not plan.gpu else where


def _refusal(cell: Cell, where: Device, memory: float | None) -> str | None:
    """Why a target cannot run there and what would help; None if it can, or if its size is unknown."""
    spread = cell.model.device == "map"
    if memory is None or memory <= where.capacity(spread):
        return None
    model, one = cell.model, where.capacity(spread=False)
    held = f"{where.name} hold" if spread else "one has" if where.gpu else "this machine has"
    text = f"{model.name} in {model.dtype} needs {_gb(memory)}, {held} {_gb(where.capacity(spread))}"
    if where.gpu is None:
        return f"{text}; take a machine with more memory, or a smaller model"
    count = int(memory // (forecast.FILLED * one)) + 1
    advice = [f"model.device=map on {count} of {where.gpu.name}"]
    if model.dtype in ("float32", "float64"):
        advice.append("model.dtype=bfloat16")
    return f"{text}; what would do: {', or '.join(advice)}, or a larger GPU (plan.gpu=h200 asks about one)"


def _folders(results: Path) -> set[str]:
    runs = results / "runs"
    return {path.name for path in runs.iterdir()} if runs.is_dir() else set()


def _gb(size: float | None) -> str:
    return "unknown" if size is None else f"{size / 1e9:.1f} GB"

"""Runs cells: load, warm up, block after block, write, trace.

A block (``bench.measure.block_runner``) is written whole or not at all. One during which a GPU was throttled or shared
(``bench.measure.gpu_state``), or new shapes were recorded (``methods.runtime.cuda_graphs``), is set aside whole and
measured again after the others.
"""

from __future__ import annotations

import sys
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import methods
from bench.measure import gpu_state, prompts, traces
from bench.measure import gpus as devices
from bench.measure.block_runner import BlockRunner
from bench.measure.clock import wall_time
from bench.measure.gpu_state import Reader
from bench.measure.memory_errors import out_of_memory as is_out_of_memory
from bench.measure.misfits import refuse_misfits, source_of_model
from bench.plan.cells import VANILLA, Cell, MissingBlock, lacking, missing, untraced
from bench.plan.identity import method_id, registered
from bench.plan.schema import Model
from bench.records import hardware, out_of_memory, provenance
from bench.records.block import Block
from bench.records.lock import Busy, Lost
from bench.records.store import SCHEMA, Store, repeats
from methods.base import Drafter, Request
from methods.common.errors import ConfigError, prefixed
from methods.common.redact import redact
from methods.decode.loop import decode
from methods.loading.model import Loaded, load_model


class DisturbedError(RuntimeError):
    """Blocks of a cell were disturbed at every attempt. The cell is not averaged over without them."""


class Session:
    """One process's work: keeps the model between cells, and remembers what is warm.

    ``reader`` makes what reads the conditions of the GPUs with the UUIDs that it is given.
    """

    def __init__(self, reader: Callable[[Sequence[str]], Reader] = gpu_state.reader) -> None:
        self._reader = reader
        # Two sessions of one process can start within a second, and two hosts can share a process id.
        self.name = f"{wall_time().replace(':', '')}-{uuid.uuid4().hex[:8]}"
        self._model: Model | None = None
        self._loaded: Loaded | None = None
        self._drafters: dict[str, Drafter] = {}
        self._warm: set[tuple[str, bool]] = set()

    def run(self, cells: Sequence[Cell], results: Path) -> list[str]:
        """Run what each cell lacks and return the names of the cells that failed.

        Raises:
            ConfigError: for a mistake that would meet every cell (a wrong setting, a missing model).
        """
        refuse_misfits(cells, results)
        failed: list[str] = []
        for cell in cells:
            try:
                self._run_one(cell, Store(cell.folder(results)), failed)
            except (Busy, Lost) as error:  # somebody else works on it: that is no reason to leave the others
                if len(cells) == 1 and isinstance(error, Busy):
                    raise
                failed.append(cell.name)
                tqdm.write(f"left {cell.name} to another: {error}", file=sys.stderr)
        return failed

    def _run_one(self, cell: Cell, store: Store, failed: list[str]) -> None:
        with store.writing():
            work = missing(cell, store)
            if not work:
                self._mark(cell, store)  # a kill may have come between the last block and the mark
                if not untraced(cell, store):
                    return
            store.write_cell({**cell.identity, "device": cell.model.device, "source": asdict(cell.task)})
            drafters = self.ready(cell)  # what is wrong here is wrong for every cell: raised, not recorded
            used = {name: {"id": cell.method_ids[name], **knobs} for name, knobs in cell.methods.items()}
            ran_as = {"hardware": self._hardware(), "provenance": provenance.describe(), "methods": used}
            store.write_session(self.name, ran_as)
            try:
                if work:
                    self._run_cell(cell, work, drafters, store)
                    if short := sorted({name for item in lacking(cell, store.blocks()) for name in item.methods}):
                        failed.append(cell.name)
                        tqdm.write(f"{cell.name}: out of memory in {', '.join(short)}", file=sys.stderr)
                    self._mark(cell, store, short)
                self._trace(cell, drafters, store)  # last: what is timed comes first, and on its own
            except Lost:
                raise
            except Exception as error:  # noqa: BLE001 a failed cell is recorded, and the next one still runs
                what = redact(f"{type(error).__name__}: {error}")  # it may quote a URL or a setting
                facts = {"error": what, "session": self.name, "at": wall_time()}
                store.append_event({**facts, "traceback": redact(traceback.format_exc())})
                store.mark_failed(facts)
                failed.append(cell.name)
                tqdm.write(f"{cell.name} failed: {facts['error']}", file=sys.stderr)

    def _mark(self, cell: Cell, store: Store, short: Sequence[str] = ()) -> None:
        """The cell has all blocks of its methods but those ``short`` of some. An earlier mark of others stays true."""
        whole = {ident for name, ident in cell.method_ids.items() if name not in short}
        finished = set((store.done() or {"method_ids": []})["method_ids"]) | whole
        store.mark_done({"method_ids": sorted(finished), "questions": len(cell.questions)})

    def _hardware(self) -> dict[str, Any]:
        assert self._loaded is not None
        target = self._loaded.target
        ran_on = {
            "device": str(target.device),
            "threads": torch.get_num_threads(),
            "layers_on": devices.placement(target),
        }
        return hardware.describe() | ran_on

    @property
    def loaded(self) -> Loaded:
        """The model that ``ready`` loaded last."""
        assert self._loaded is not None
        return self._loaded

    def ready(self, cell: Cell) -> dict[str, Drafter]:
        """Load what the cell needs and is not loaded yet."""
        try:
            self._load(cell.model)
            return {name: self._drafter(name, cell.methods.get(name, {})) for name in (VANILLA, *cell.methods)}
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise ConfigError(
                f"{cell.model.name} with {', '.join(cell.methods) or VANILLA} does not fit the memory here "
                f"({str(error).splitlines()[0]}); take fewer methods, or a smaller model.dtype"
            ) from None

    def _run_cell(self, cell: Cell, work: list[MissingBlock], drafters: dict[str, Drafter], store: Store) -> None:
        assert self._loaded is not None
        self._warm_up(cell, drafters)
        running, reasons = _Running(), set[str]()
        known = out_of_memory.recorded(store.blocks())
        spoilt = Counter(block.where for block in store.disturbed())
        for attempt in range(1, gpu_state.ATTEMPTS + 1):
            label = f"{cell.model.name} {cell.task.name} {cell.decode.name}" + f", attempt {attempt}" * (attempt > 1)
            again: list[MissingBlock] = []  # after the others: what heated the GPU has had time to pass
            with tqdm(work, desc=label, unit="block", dynamic_ncols=True) as bar:
                for item in bar:
                    attempt = 1 + spoilt[item.question.id, item.repeat]  # in other runs too
                    block = BlockRunner(cell, item, self._loaded, drafters, self._read).run(self.name, attempt)
                    if block.disturbed:
                        store.append_disturbed(block)
                        spoilt[block.where] += 1
                        again.append(item)
                        reasons |= set(block.disturbed)
                        tqdm.write(f"question {item.question.id}: {', '.join(block.disturbed)}", file=sys.stderr)
                        continue
                    failed = {one.method_id for one in block.failed}
                    if len(block.runs) == 1 and failed and failed <= known.get(block.where, set()):
                        continue  # out of memory again; a block with vanilla alone adds nothing
                    store.append_block(block)
                    bar.set_postfix_str(running.update(block))
            if not again:
                return
            work = again
        raise DisturbedError(
            f"{len(work)} blocks invalid, disturbed {gpu_state.ATTEMPTS} times each ({', '.join(sorted(reasons))}); "
            "the same command tries them again"
        )

    def _trace(self, cell: Cell, drafters: dict[str, Drafter], store: Store) -> None:
        assert self._loaded is not None
        lacking = untraced(cell, store)
        blocks = store.blocks() if lacking else []
        for question, name in tqdm(lacking, desc=f"{cell.name} traces", unit="trace", disable=not lacking):
            trace = traces.record(cell, question, name, drafters[name], self._loaded, blocks)
            if not repeats(trace, blocks):
                what = f"trace of {name} on question {question.id}: other tokens than when it was timed"
                store.append_event({"error": what, "session": self.name, "at": wall_time()})
            store.append_trace({"schema": SCHEMA, "session": self.name, **trace})

    def _load(self, model: Model) -> None:
        if self._loaded is None or self._model != model:
            self._loaded, self._drafters, self._warm = None, {}, set()  # free the old weights first
            with prefixed("model."):
                self._loaded = load_model(
                    source_of_model(model),
                    dtype=model.dtype,
                    device=model.device,
                    attention=model.attention,
                    runtime=model.runtime,
                    context=model.context,
                    eos_tokens=tuple(model.eos_tokens),
                    accept=lambda tokenizer: prompts.render(tokenizer, model.template, ["?"], []),
                )
            away = {"cpu", "disk"} & set(devices.placement(self._loaded.target)) if torch.cuda.is_available() else set()
            if model.device == "map" and away:  # accelerate's way out of too little memory; its speed means nothing
                raise ConfigError(
                    f"{model.name} does not fit the GPUs here: layers would lie on {', '.join(sorted(away))}; "
                    f"give the task more GPUs, or choose a smaller model.dtype"
                )
            self._loaded.target.release()
            self._model = model
            gpus = devices.gpus(self._loaded.target)
            self._read = self._reader(devices.uuids(gpus))
            if gpus and not self._read():
                tqdm.write(
                    "the GPU's clock, heat, energy and other processes go unrecorded: NVML does not answer "
                    "(pip install nvidia-ml-py)",
                    file=sys.stderr,
                )

    def _drafter(self, name: str, knobs: dict[str, Any]) -> Drafter:
        key = method_id(name, knobs)
        if key not in self._drafters:
            assert self._loaded is not None
            with prefixed(f"methods.{registered(name)}."):
                self._drafters[key] = methods.load(registered(name), knobs, self._loaded.target, self._loaded.tokenizer)
        return self._drafters[key]

    def _warm_up(self, cell: Cell, drafters: dict[str, Drafter]) -> None:
        """Let each method decode once, unrecorded, so that the first block pays for no allocation or compilation."""
        assert self._loaded is not None
        sampling = prompts.sampling(cell)
        for name, drafter in drafters.items():
            key = (method_id(name, cell.methods.get(name, {})), sampling.greedy)
            if key in self._warm or not cell.measure.warmup_tokens:
                continue
            ids = prompts.render(self._loaded.tokenizer, cell.model.template, cell.questions[0].turns, [])
            request = Request(ids, cell.measure.warmup_tokens, frozenset(), sampling, "warm-up")
            try:
                for _ in decode(self._loaded.target, drafter, request):
                    pass
            except Exception as error:
                if name == VANILLA or not is_out_of_memory(error):
                    raise
                continue  # its blocks will say so
            self._warm.add(key)


class _Running:
    """What the progress bar says: tokens per second and tau of each method so far."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}

    def update(self, block: Block) -> str:
        for run in block.runs:
            sums = self._sums.setdefault(run.method, [0.0] * 4)
            for turn in run.turns:
                sums[0] += turn.tokens
                sums[1] += turn.seconds
                sums[2] += turn.cycle_tokens
                sums[3] += turn.cycles
        return ", ".join(
            f"{name} {tokens / max(seconds, 1e-9):.0f} tok/s tau {emitted / max(cycles, 1):.2f}"
            for name, (tokens, seconds, emitted, cycles) in self._sums.items()
        )

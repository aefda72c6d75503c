"""Runs cells: load, warm up, block after block, audit, write. The only file of bench that drives a model.

A block is one question, all its turns, vanilla and every method back to back in an order rotated by question. It is
written whole or not at all, so each ratio compares runs made minutes apart on the same machine. One during which a
GPU was throttled or shared (``bench.measure.gpu_state``), or new shapes were recorded
(``methods.decode.cuda_graphs``), is set aside whole and measured again after the others.
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
from bench.measure import audit, gpu_state, prompts, traces
from bench.measure import gpus as devices
from bench.measure.clock import wall_time
from bench.measure.gpu_state import Reader, Reading
from bench.measure.misfits import refuse_misfits, source_of_model
from bench.measure.nodes import NodeRecorder
from bench.plan.cells import VANILLA, Cell, MissingBlock, Question, lacking, missing, untraced
from bench.plan.identity import method_id, registered
from bench.plan.schema import Model
from bench.records import hardware, out_of_memory, provenance
from bench.records.lock import Busy, Lost
from bench.records.store import SCHEMA, Store, repeats
from methods.base import Drafter, Request
from methods.common.errors import ConfigError, prefixed
from methods.common.redact import redact
from methods.decode.cuda_graphs import Graphed
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
            drafters = self._ready(cell)  # what is wrong here is wrong for every cell: raised, not recorded
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

    def _ready(self, cell: Cell) -> dict[str, Drafter]:
        """Load what the cell needs and is not loaded yet."""
        try:
            self._load(cell.model)
            return {name: self._drafter(name, cell.methods.get(name, {})) for name in (VANILLA, *cell.methods)}
        except Exception as error:
            if not _out_of_memory(error):
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
        spoilt = Counter((block["question_id"], block["repeat"]) for block in store.disturbed())
        for attempt in range(1, gpu_state.ATTEMPTS + 1):
            label = f"{cell.model.name} {cell.task.name} {cell.decode.name}" + f", attempt {attempt}" * (attempt > 1)
            again: list[MissingBlock] = []  # after the others: what heated the GPU has had time to pass
            with tqdm(work, desc=label, unit="block", dynamic_ncols=True) as bar:
                for item in bar:
                    block = _Block(cell, item, self._loaded, drafters, self._read).run()
                    before = spoilt[item.question.id, item.repeat]  # in other runs too
                    block = {"schema": SCHEMA, "session": self.name, "attempt": before + 1, **block}
                    if block["disturbed"]:
                        store.append_disturbed(block)
                        spoilt[item.question.id, item.repeat] += 1
                        again.append(item)
                        reasons |= set(block["disturbed"])
                        tqdm.write(f"question {item.question.id}: {', '.join(block['disturbed'])}", file=sys.stderr)
                        continue
                    idents = {one["method_id"] for one in block.get("failed", ())}
                    tried = known.get((item.question.id, item.repeat), set())
                    if len(block["runs"]) == 1 and idents and idents <= tried:
                        continue  # once more no memory, and vanilla alone measures nothing new
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
                if name == VANILLA or not _out_of_memory(error):
                    raise
                continue  # its blocks will say so
            self._warm.add(key)


class _Block:
    """One question through every method that lacks it, and vanilla."""

    def __init__(
        self, cell: Cell, work: MissingBlock, loaded: Loaded, drafters: dict[str, Drafter], read: Reader
    ) -> None:
        self._cell, self._work, self._loaded, self._read = cell, work, loaded, read
        names = [VANILLA, *work.methods]
        shift = work.index % len(names)
        self._order = names[shift:] + names[:shift]
        self._drafters = drafters
        self._gpus = devices.gpus(loaded.target)
        self._readings: list[list[Reading]] = []

    def run(self) -> dict[str, Any]:
        """The block's record: raw facts of every turn of every method."""
        question: Question = self._work.question
        answers: dict[str, list[str]] = {name: [] for name in self._order}
        turns: dict[str, list[dict[str, Any]]] = {name: [] for name in self._order}
        failed: dict[str, str] = {}
        recorded = Graphed.recorded
        for _ in question.turns:
            for name in self._order:
                if name not in failed and (error := self._decode(name, answers, turns[name])):
                    failed[name] = error
            for name in self._order:
                if name in failed:
                    continue
                ids = turns[name][-1]["output_ids"]
                answers[name] = [*answers[name], prompts.answer_text(self._loaded.tokenizer, ids)]
        disturbed = {why for gpu in zip(*self._readings, strict=True) for why in gpu_state.verdict(gpu)}
        if Graphed.recorded > recorded:
            disturbed.add("shapes were recorded as CUDA graphs")
        idents = self._cell.method_ids
        short = [{"method": name, "method_id": idents[name], "error": error} for name, error in failed.items()]
        return {
            "question_id": question.id,
            "category": question.category,
            "repeat": self._work.repeat,
            "order": self._order,
            "disturbed": sorted(disturbed),
            "runs": [
                {"method": name, "method_id": idents.get(name, VANILLA), "turns": turns[name]}
                for name in self._order
                if name not in failed
            ],
            **({"failed": short} if short else {}),
        }

    def _decode(self, name: str, answers: dict[str, list[str]], turns: list[dict[str, Any]]) -> str | None:
        """Append the next turn of a method; or say that there was no memory for it, and give back what it held."""
        source = VANILLA if self._cell.measure.history == "vanilla" else name
        try:
            turns.append(self._turn(name, answers[source]))
        except Exception as error:
            if name == VANILLA or not _out_of_memory(error):
                raise
            said = str(error).strip().splitlines() or [""]
            text = f"{type(error).__name__}: {said[0]}"
        else:
            return None
        if self._loaded.target.device.type == "cuda":
            torch.cuda.empty_cache()  # only here, where the error and its frames are gone
        return text

    def _turn(self, name: str, answers: list[str]) -> dict[str, Any]:
        cell, loaded, question = self._cell, self._loaded, self._work.question
        request = prompts.request(cell, question, loaded, answers, self._work.repeat)
        drafter = self._drafters[name]
        if cell.measure.nodes and name != VANILLA:
            drafter = NodeRecorder(drafter)
        watch = devices.stopwatch(self._gpus)
        steps = []
        devices.reset_peak(self._gpus)
        before = self._read()
        watch.start()
        for step in decode(loaded.target, drafter, request, watch.phase):
            watch.step()
            steps.append(step)
        after = self._read()
        output_ids = [token for step in steps for token in step.tokens]
        record: dict[str, Any] = {
            "prompt_tokens": len(request.prompt_ids),
            "output_ids": output_ids,
            "emitted": [len(step.tokens) for step in steps],
            "rows": [step.rows for step in steps],
            "drafted": [step.drafted for step in steps],
            "accepted": [step.accepted for step in steps],
            "end_ns": watch.step_ends_ns,
            "phases_ns": watch.phases_ns(),
            "finish": steps[-1].finish,
            "peak_bytes": devices.peak_bytes(self._gpus),
        }
        if before and after:
            record["gpus"] = {"before": [asdict(one) for one in before], "after": [asdict(one) for one in after]}
            self._readings += [before, after]
        if isinstance(drafter, NodeRecorder):
            record["nodes"] = drafter.facts
        if cell.measure.audit:
            record["keyed"] = request.sampling.greedy or not drafter.rejection
            try:
                record["gaps"] = audit.gaps(loaded.target, request, output_ids, keyed=record["keyed"])
            except Exception as error:
                if not _out_of_memory(error):
                    raise
                raise RuntimeError(  # ours, not the method's, whose timed run was fine
                    f"no memory left to audit {name} on question {self._work.question.id}; set measure.audit=false, "
                    "or take fewer methods"
                ) from None
        return record


def _out_of_memory(error: Exception) -> bool:
    """The GPU's allocator and Python have a class for it; the CPU's allocator and cuBLAS only words."""
    words = ("DefaultCPUAllocator: can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "out of memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(each in str(error) for each in words)
    )


class _Running:
    """What the progress bar says: tokens per second and tau of each method so far."""

    def __init__(self) -> None:
        self._sums: dict[str, list[int]] = {}

    def update(self, block: dict[str, Any]) -> str:
        for run in block["runs"]:
            sums = self._sums.setdefault(run["method"], [0, 0, 0, 0])
            for turn in run["turns"]:
                sums[0] += len(turn["output_ids"])
                sums[1] += turn["end_ns"][-1]
                sums[2] += sum(turn["emitted"][1:])
                sums[3] += len(turn["emitted"]) - 1
        return ", ".join(
            f"{name} {tokens * 1e9 / max(ns, 1):.0f} tok/s tau {emitted / max(cycles, 1):.2f}"
            for name, (tokens, ns, emitted, cycles) in self._sums.items()
        )

"""Measures one block: a question, all its turns, by vanilla and every method back to back.

The order of the methods rotates by question, so none is always first. Turns alternate: the first turn of all methods,
then the second of all. So each ratio compares runs made moments apart on the same machine.
"""

from __future__ import annotations

import torch

from bench.measure import audit, gpu_state, prompts
from bench.measure import gpus as devices
from bench.measure.gpu_state import Reader
from bench.measure.memory_errors import out_of_memory
from bench.measure.recorders import NodeRecorder
from bench.plan.cells import VANILLA, Cell, MissingBlock
from bench.records.block import Block, Failed, Reading, Readings, Run, Turn
from methods.base import Drafter, Request
from methods.decode.loop import decode
from methods.loading.model import Loaded
from methods.runtime.cuda_graphs import Graphed


class BlockRunner:
    """One question through every method that lacks it, and vanilla. ``read`` tells the state of the GPUs."""

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

    def run(self, session: str, attempt: int) -> Block:
        """Measure the block and return its record.

        Raises:
            Exception: whatever a method raised, but for a lack of memory of one that is not vanilla.
        """
        question = self._work.question
        answers: dict[str, list[str]] = {name: [] for name in self._order}
        turns: dict[str, list[Turn]] = {name: [] for name in self._order}
        failed: dict[str, str] = {}
        recorded = Graphed.recorded
        for _ in question.turns:
            for name in self._order:
                if name not in failed and (error := self._decode(name, answers, turns[name])):
                    failed[name] = error
            for name in self._order:
                if name in failed:
                    continue
                text = prompts.answer_text(self._loaded.tokenizer, turns[name][-1].output_ids)
                answers[name] = [*answers[name], text]
        disturbed = {why for gpu in zip(*self._readings, strict=True) for why in gpu_state.disturbances(gpu)}
        if Graphed.recorded > recorded:
            disturbed.add("shapes were recorded as CUDA graphs")
        idents = {VANILLA: VANILLA, **self._cell.method_ids}
        return Block(
            session=session,
            attempt=attempt,
            question_id=question.id,
            category=question.category,
            repeat=self._work.repeat,
            order=self._order,
            disturbed=sorted(disturbed),
            runs=[Run(name, idents[name], turns[name]) for name in self._order if name not in failed],
            failed=[Failed(name, idents[name], error) for name, error in failed.items()],
        )

    def _decode(self, name: str, answers: dict[str, list[str]], turns: list[Turn]) -> str | None:
        """Append the next turn of a method; or say that there was no memory for it, and give back what it held."""
        source = VANILLA if self._cell.measure.history == "vanilla" else name
        try:
            turns.append(self._turn(name, answers[source]))
        except Exception as error:
            if name == VANILLA or not out_of_memory(error):
                raise
            said = str(error).strip().splitlines() or [""]
            text = f"{type(error).__name__}: {said[0]}"
        else:
            return None
        if self._loaded.target.device.type == "cuda":
            torch.cuda.empty_cache()  # only here, where the error and its frames are gone
        return text

    def _turn(self, name: str, answers: list[str]) -> Turn:
        cell, target = self._cell, self._loaded.target
        request = prompts.request(cell, self._work.question, self._loaded, answers, self._work.repeat)
        drafter = self._drafters[name]
        recorder = NodeRecorder(drafter) if cell.measure.nodes and name != VANILLA else None
        watch = devices.stopwatch(self._gpus)
        steps = []
        devices.reset_peak(self._gpus)
        before = self._read()
        watch.start()
        for step in decode(target, recorder or drafter, request, watch.phase):
            watch.step()
            steps.append(step)
        after = self._read()
        phases_ns, peak_bytes = watch.phases_ns(), devices.peak_bytes(self._gpus)
        output_ids = [token for step in steps for token in step.tokens]
        if read := bool(before and after):
            self._readings += [before, after]
        keyed = request.sampling.greedy or not drafter.rejection
        return Turn(
            prompt_tokens=len(request.prompt_ids),
            output_ids=output_ids,
            emitted=[len(step.tokens) for step in steps],
            rows=[step.rows for step in steps],
            drafted=[step.drafted for step in steps],
            accepted=[step.accepted for step in steps],
            end_ns=watch.step_ends_ns,
            phases_ns=phases_ns,
            finish=steps[-1].finish,
            peak_bytes=peak_bytes,
            gpus=Readings(before, after) if read else None,
            nodes=recorder.nodes if recorder else None,
            keyed=keyed if cell.measure.audit else None,
            gaps=self._gaps(name, request, output_ids, keyed=keyed) if cell.measure.audit else None,
        )

    def _gaps(self, name: str, request: Request, output_ids: list[int], *, keyed: bool) -> list[tuple[int, float]]:
        try:
            return audit.gaps(self._loaded.target, request, output_ids, keyed=keyed)
        except Exception as error:
            if not out_of_memory(error):
                raise
            raise RuntimeError(  # ours, not the method's, whose timed run was fine
                f"no memory left to audit {name} on question {self._work.question.id}; set measure.audit=false, "
                "or take fewer methods"
            ) from None

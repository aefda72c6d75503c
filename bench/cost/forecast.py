"""What a cell will cost before it is run: memory, download and hours, each with what the figure rests on.

Hours come from records of the same kind of device, if there are any: of the cell itself, or else of another cell of its
model. Otherwise they come from a roofline. At batch 1 a forward reads every weight once, so a token of vanilla takes
weights / (bandwidth x ``REACHED``), where the bandwidth is a GPU's by its data sheet or this CPU's as measured. Every
turn is taken to be as long as allowed, and every method to be as slow as vanilla, so this is an upper bound in tokens
and in time per token. Loading, warm-up and audit are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.cost import cpu_speed, gpu_specs, model_sizes
from bench.cost.gpu_specs import Gpu
from bench.cost.model_sizes import BYTES
from bench.plan.cells import VANILLA, Cell
from bench.plan.schema import Plan
from bench.records import hardware
from bench.records.store import Store

REACHED = 0.6
"""Share of the peak bandwidth that stock decoding at batch 1 usually reaches: an assumption, not a measurement."""
HEADROOM_BYTES = 2e9
"""For the driver's context, workspaces, and the logits of a prompt's audit."""
FILLED = 0.95
"""Share of each GPU's memory that is usable when layers are spread over several: they do not divide evenly."""
_CHARACTERS_PER_TOKEN = 3
_UNKNOWN_HEAD = 0.2
"""A draft head of unknown size, as a share of its target: more than any published head of a 7B model takes."""


@dataclass(frozen=True)
class Device:
    """What the plan is made for: GPUs of one kind, or the machine's own memory if ``gpu`` is None."""

    gpu: Gpu | None
    count: int
    machine_bytes: float

    def capacity(self, spread: bool) -> float:
        """Bytes for one target; ``spread`` lays it over all GPUs."""
        if self.gpu is None:
            return self.machine_bytes
        return self.gpu.memory_bytes * (self.count * FILLED if spread else 1)

    @property
    def name(self) -> str:
        return "this machine" if self.gpu is None else f"{self.count} x {self.gpu.name}"


@dataclass(frozen=True)
class Pace:
    """Seconds per token and tokens per turn of each method, prefill included, and where they were measured."""

    seconds: dict[str, float]
    tokens_per_turn: float
    basis: str


def device(plan: Plan) -> Device:
    """The GPU that the plan names, or else what this machine has."""
    facts = hardware.describe()
    found = facts["gpus"]
    if plan.gpu:
        return Device(gpu_specs.named(plan.gpu), plan.gpus or 1, facts["memory_bytes"])
    if not found:
        return Device(None, 1, facts["memory_bytes"])
    ours = gpu_specs.recognised(found[0]["name"])
    memory = float(found[0]["memory"].split()[0]) * 2**20
    here = Gpu(ours or found[0]["name"], memory, gpu_specs.named(ours).bandwidth if ours else None)
    return Device(here, plan.gpus or len(found), facts["memory_bytes"])


@dataclass(frozen=True)
class Footprint:
    """What a target and the draft heads beside it take: bytes that are fixed, bytes a token of text, bytes to fetch."""

    fixed_bytes: float
    token_bytes: float
    downloads: dict[str, float]

    def memory_bytes(self, cell: Cell) -> float:
        """With the KV cache of the cell's longest question."""
        return self.fixed_bytes + self.token_bytes * _longest(cell)


def footprint(cell: Cell) -> Footprint | None:
    """Weights, draft heads and headroom of a cell's model and methods; downloads count 16 bits a parameter.

    None if the size of the model is not known. Each method loads its own copy of its head.
    """
    model, size = cell.model, model_sizes.of_target(cell.model)
    if size is None:
        return None
    found = {name: knobs["weights"] for name, knobs in cell.methods.items() if knobs.get("weights")}
    heads = {name: model_sizes.of_head(weights) or _UNKNOWN_HEAD * size.parameters for name, weights in found.items()}
    fetched = {
        str(found[name]): 2.0 * count for name, count in heads.items() if model_sizes.head_folder(found[name]) is None
    }
    if model.kind == "hub" and model_sizes.local_folder(model.kind, model.id, model.revision) is None:
        fetched[model.id] = 2.0 * size.parameters
    each = BYTES[model.dtype]
    return Footprint(
        each * (size.parameters + sum(heads.values())) + HEADROOM_BYTES, each * size.cache_elements, fetched
    )


def pace(store: Store, where: Device, basis: str) -> Pace | None:
    """What the records of a cell say of speed on this kind of device; None if they say nothing."""
    alike = {name for name, facts in store.sessions().items() if _alike(facts.get("hardware", {}), where)}
    sums: dict[str, list[float]] = {}
    blocks = [block for block in store.blocks() if block.session in alike] if alike else []
    for block in blocks:
        for run in block.runs:
            total = sums.setdefault(run.method, [0.0, 0.0, 0.0])
            for turn in run.turns:
                total[0] += turn.seconds
                total[1] += turn.tokens
                total[2] += 1
    if not sums:
        return None
    seconds = {name: spent / max(tokens, 1) for name, (spent, tokens, _) in sums.items()}
    every = [sum(column) for column in zip(*sums.values(), strict=True)]
    return Pace(seconds, every[1] / every[2], f"{basis}, {len(blocks)} blocks")


def roofline(cell: Cell, where: Device) -> Pace | None:
    """The bound from bandwidth alone (on a CPU as measured there); None without a known GPU or model size."""
    size = model_sizes.of_target(cell.model)
    if size is None or (where.gpu is not None and where.gpu.bandwidth is None):
        return None
    if where.gpu is None:
        speeds = cpu_speed.known(cell.model.dtype)  # a plan measures nothing
        if speeds is None:
            return None
        bandwidth, name = speeds.copy, "measured here"
    else:
        assert where.gpu.bandwidth is not None
        bandwidth, name = where.gpu.bandwidth, where.gpu.name
    seconds = size.parameters * BYTES[cell.model.dtype] / (bandwidth * REACHED)
    return Pace({VANILLA: seconds}, cell.decode.max_new_tokens, f"at most, roofline {name}")


def hours(cell: Cell, turns: Mapping[tuple[str, ...], int], pace: Pace) -> float:
    """Hours of decoding for so many turns of each set of methods; vanilla runs in every block.

    A method without a pace of its own counts as vanilla.
    """
    slow = pace.seconds.get(VANILLA, max(pace.seconds.values()))
    tokens = min(pace.tokens_per_turn, cell.decode.max_new_tokens)
    each = {names: sum(pace.seconds.get(name, slow) for name in (VANILLA, *names)) for names in turns}
    return sum(count * tokens * each[names] for names, count in turns.items()) / 3600


def _longest(cell: Cell) -> int:
    """Tokens of the longest text, estimated from its characters: a plan tokenizes no prompts."""
    return max(
        sum(map(len, question.turns)) // _CHARACTERS_PER_TOKEN + len(question.turns) * cell.decode.max_new_tokens
        for question in cell.questions
    )


def _alike(facts: dict[str, Any], where: Device) -> bool:
    """Whether a session ran on the kind of device that the plan is for."""
    on_gpu = bool(facts.get("gpus")) and not str(facts.get("device", "cuda")).startswith("cpu")
    if where.gpu is None or not on_gpu:
        return (where.gpu is None) == (not on_gpu)
    name = facts["gpus"][0]["name"]
    return (gpu_specs.recognised(name) or name) == where.gpu.name

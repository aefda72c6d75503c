"""The recorded block, typed: one question through vanilla and every method, as ``blocks.jsonl`` holds it.

A ``Block`` has a ``Run`` for each method, a run a ``Turn`` for each of the question's turns. They hold raw facts, and
properties for the sums that several readers need. Only ``from_record`` and ``to_record`` know the keys on disk. A line
may lack whatever was not recorded when it was written: such a field has its default.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

Where = tuple[str, int]
"""A question's id and the repeat."""

Record = dict[str, Any]
"""What a line of JSON says."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU at one moment. None where the board or its driver does not tell.

    ``reasons`` are why the clock is not higher; ``foreign`` counts the compute processes on the GPU but this one;
    ``energy_mj`` is the board's counter of millijoules since the driver was loaded.
    """

    clock_mhz: int | None
    max_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    reasons: tuple[str, ...]
    foreign: int | None
    energy_mj: int | None


@dataclass(frozen=True, slots=True)
class Readings:
    """The GPUs of a target at both ends of a turn, in one order."""

    before: list[Reading]
    after: list[Reading]

    @property
    def joules(self) -> float | None:
        """Energy of all GPUs in between. None unless each had a counter at both ends that did not restart."""
        total = 0
        for before, after in zip(self.before, self.after, strict=True):
            if before.energy_mj is None or after.energy_mj is None or after.energy_mj < before.energy_mj:
                return None
            total += after.energy_mj - before.energy_mj
        return total / 1000


@dataclass(frozen=True, slots=True)
class Nodes:
    """Every draft node below the root, a list for each cycle but the turn's last: ``measure.nodes=true``.

    ``parents`` are rows of the draft, whose row 0 is the root. ``hit`` is 1 where the node is the target's own choice
    after the node's parent. ``confidence`` and ``target`` are the draft's and the target's probability of the node's
    token; None where the drafter has none, and at T=0.
    """

    parents: list[list[int]]
    hit: list[list[int]]
    confidence: list[list[float]] | None = None
    target: list[list[float]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of one method. The lists of a step's facts have one entry a target forward, the prefill's first.

    ``emitted`` counts the tokens that a step added to ``output_ids``; ``rows`` are the rows of its forward, ``drafted``
    its draft nodes below the root, ``accepted`` the depth reached. ``end_ns`` are the ends of the steps and
    ``phases_ns`` the time of each phase in all, in nanoseconds since the turn began. ``gaps`` are (place in
    ``output_ids``, gap in logits) where the audit found one, and None without an audit; ``keyed`` says whether the
    audit asked for the target's keyed draws.
    """

    prompt_tokens: int = 0
    output_ids: list[int]
    emitted: list[int]
    rows: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    end_ns: list[int]
    phases_ns: dict[str, int] = field(default_factory=dict)
    finish: str | None = None
    peak_bytes: int = 0
    gpus: Readings | None = None
    nodes: Nodes | None = None
    keyed: bool | None = None
    gaps: list[tuple[int, float]] | None = None

    @property
    def tokens(self) -> int:
        """Of the answer, the prefill's included."""
        return len(self.output_ids)

    @property
    def cycles(self) -> int:
        """Target forwards after the prefill."""
        return len(self.emitted) - 1

    @property
    def cycle_tokens(self) -> int:
        """What the cycles emitted: all tokens but the prefill's."""
        return sum(self.emitted[1:])

    @property
    def seconds(self) -> float:
        """From the start of the turn to its last token."""
        return self.end_ns[-1] / 1e9

    @property
    def decode_seconds(self) -> float:
        """The same without the prefill."""
        return (self.end_ns[-1] - self.end_ns[0]) / 1e9

    @property
    def joules(self) -> float | None:
        """Energy of all its GPUs, prefill included; None where it is not known of each."""
        return None if self.gpus is None else self.gpus.joules


@dataclass(frozen=True, slots=True)
class Run:
    """A method's turns of a question. ``method`` is the name it goes by, ``method_id`` hashes its settings."""

    method: str
    method_id: str
    turns: list[Turn]


@dataclass(frozen=True, slots=True)
class Failed:
    """A method that ran out of memory on the question, and so has no run."""

    method: str
    method_id: str
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One question, one repeat: all its turns by vanilla and the methods, back to back in this ``order``.

    ``session`` names the process that measured it, ``attempt`` counts from 1; ``disturbed`` says why it may not be
    measured by, and is empty for a block that counts.
    """

    session: str | None = None
    attempt: int = 1
    question_id: str
    category: str = ""
    repeat: int = 0
    order: list[str] = field(default_factory=list)
    disturbed: list[str] = field(default_factory=list)
    runs: list[Run]
    failed: list[Failed] = field(default_factory=list)

    @property
    def where(self) -> Where:
        return self.question_id, self.repeat

    @property
    def method_ids(self) -> set[str]:
        """Of the methods that have a run here, vanilla among them."""
        return {run.method_id for run in self.runs}

    def turns_of(self, method_id: str) -> list[Turn]:
        """A method's turns; none if it has no run here."""
        return next((run.turns for run in self.runs if run.method_id == method_id), [])


def turns_of(blocks: Iterable[Block], method_id: str) -> list[Turn]:
    """Every turn of a method in these blocks."""
    return [turn for block in blocks for turn in block.turns_of(method_id)]


def to_record(block: Block) -> Record:
    """A block as a line holds it. What was not recorded has no key."""
    session = {} if block.session is None else {"session": block.session}
    failed = {"failed": [asdict(one) for one in block.failed]} if block.failed else {}
    return {
        **session,
        "attempt": block.attempt,
        "question_id": block.question_id,
        "category": block.category,
        "repeat": block.repeat,
        "order": block.order,
        "disturbed": block.disturbed,
        "runs": [
            {"method": run.method, "method_id": run.method_id, "turns": [_turn_record(turn) for turn in run.turns]}
            for run in block.runs
        ],
        **failed,
    }


def _turn_record(turn: Turn) -> Record:
    found: Record = {
        "prompt_tokens": turn.prompt_tokens,
        "output_ids": turn.output_ids,
        "emitted": turn.emitted,
        "rows": turn.rows,
        "drafted": turn.drafted,
        "accepted": turn.accepted,
        "end_ns": turn.end_ns,
        "phases_ns": turn.phases_ns,
        "finish": turn.finish,
        "peak_bytes": turn.peak_bytes,
    }
    if turn.gpus is not None:
        found["gpus"] = asdict(turn.gpus)
    if turn.nodes is not None:
        found["nodes"] = {"parents": turn.nodes.parents, "hit": turn.nodes.hit}
        if turn.nodes.confidence is not None:
            found["nodes"]["confidence"] = turn.nodes.confidence
        if turn.nodes.target is not None:
            found["nodes"]["target"] = turn.nodes.target
    if turn.keyed is not None:
        found["keyed"] = turn.keyed
    if turn.gaps is not None:
        found["gaps"] = turn.gaps
    return found


def from_record(line: Record) -> Block:
    """A line as a block. Results may come from a stranger: each value is held against its type.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: if it is no block.
    """
    session, failed = line.get("session"), line.get("failed", ())
    return Block(
        session=None if session is None else _of_type(str, session),
        attempt=_of_type(int, line.get("attempt", 1)),
        question_id=_of_type(str, line["question_id"]),
        category=_of_type(str, line.get("category", "")),
        repeat=_of_type(int, line["repeat"]),
        order=_list_of(str, line.get("order", [])),
        disturbed=_list_of(str, line.get("disturbed", [])),
        runs=[
            Run(_of_type(str, run["method"]), _of_type(str, run["method_id"]), [_turn(turn) for turn in run["turns"]])
            for run in line["runs"]
        ],
        failed=[
            Failed(_of_type(str, one["method"]), _of_type(str, one["method_id"]), _of_type(str, one.get("error", "")))
            for one in failed
        ],
    )


def _turn(line: Record) -> Turn:
    found, get = {name: _list_of(int, line[name]) for name in ("output_ids", "emitted", "end_ns")}, line.get
    if not found["emitted"] or not found["end_ns"]:
        raise ValueError("a turn without a step")
    finish, keyed, gaps = get("finish"), get("keyed"), get("gaps")
    phases = get("phases_ns", {})
    _list_of(int, [*phases.values()])
    return Turn(
        prompt_tokens=_of_type(int, get("prompt_tokens", 0)),
        **found,
        rows=_list_of(int, get("rows", [])),
        drafted=_list_of(int, get("drafted", [])),
        accepted=_list_of(int, get("accepted", [])),
        phases_ns=phases,
        finish=None if finish is None else _of_type(str, finish),
        peak_bytes=_of_type(int, get("peak_bytes", 0)),
        gpus=Readings(*([_reading(one) for one in line["gpus"][end]] for end in ("before", "after")))
        if "gpus" in line
        else None,
        nodes=Nodes(**{name: _numbers(value) for name, value in line["nodes"].items()}) if "nodes" in line else None,
        keyed=None if keyed is None else _of_type(bool, keyed),
        gaps=None if gaps is None else [(_of_type(int, place), _number(gap)) for place, gap in gaps],
    )


def _reading(line: Record) -> Reading:
    reasons = tuple(_list_of(str, line["reasons"]))
    numbers = {name: None if value is None else _number(value) for name, value in line.items() if name != "reasons"}
    return Reading(reasons=reasons, **numbers)


def _of_type(kind: type, value: Any) -> Any:
    """The value; of this very type, since True would pass for an int."""
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _list_of(kind: type, values: Any) -> Any:
    if type(values) is not list or not {*map(type, values)} <= {kind}:
        raise TypeError(f"no list of {kind.__name__}")
    return values


def _number(value: Any) -> Any:
    return value if type(value) is float else _of_type(int, value)


def _numbers(rows: Any) -> Any:
    if not all({*map(type, row)} <= {int, float} for row in _list_of(list, rows)):
        raise TypeError("no lists of numbers")
    return rows

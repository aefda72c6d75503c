"""The recorded block: a line of a real run comes back byte for byte, and its sums are those worked by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.records.block import Block, Failed, Nodes, Reading, Readings, Run, Turn, from_record, to_record, turns_of
from bench.records.store import SCHEMA, DamagedRecordError, Store

# What the code before these types wrote: question 0 of MT-bench, the first turn of vanilla and of PLD, cut to 4 tokens.
PLAIN = (
    '{"schema":1,"session":"2026-12-01T010211Z-73e700d3","attempt":1,"question_id":"0","category":"writing","repeat":0,'
    '"order":["vanilla","pld"],"disturbed":[],"runs":[{"method":"vanilla","method_id":"vanilla","turns":['
    '{"prompt_tokens":90,"output_ids":[1653,339,9318,418],"emitted":[1,1,1,1],"rows":[90,1,1,1],"drafted":[0,0,0,0],'
    '"accepted":[0,0,0,0],"end_ns":[432013302,501414428,575882536,650202325],"phases_ns":{"prefill":431945235,'
    '"draft":1598855,"verify":860524279,"accept":2923231,"commit":334258},"finish":"length","peak_bytes":1201594368,'
    '"keyed":true,"gaps":[]}]},{"method":"pld","method_id":"021561b27fde","turns":[{"prompt_tokens":90,'
    '"output_ids":[1653,339,9318,418],"emitted":[1,1,2],"rows":[90,1,7],"drafted":[0,0,6],"accepted":[0,0,1],'
    '"end_ns":[451657428,559755265,644232722],"phases_ns":{"prefill":451569513,"draft":2318457,"verify":1298444636,'
    '"accept":3635626,"commit":335901},"finish":"length","peak_bytes":1218371584,"keyed":true,"gaps":[[2,0.000125]]}]}]}'
)
READING = (
    '{"clock_mhz":1980,"max_clock_mhz":1980,"temperature_c":55,"power_w":310.5,"reasons":["power_cap"],"foreign":null,'
    '"energy_mj":%d}'
)
# Every optional key: readings of the GPUs, draft nodes, a method without memory.
FULL = (
    PLAIN.replace(
        '"keyed":true,"gaps":[[2,0.000125]]}',
        f'"gpus":{{"before":[{READING % 1000}],"after":[{READING % 3500}]}},"nodes":{{"parents":[[0,1]],"hit":[[1,0]],'
        '"confidence":[[0.5,0.25]],"target":[[0.75,1e-05]]},"keyed":false,"gaps":[[2,0.000125]]}',
    )[:-1]
    + ',"failed":[{"method":"eagle2","method_id":"0123456789ab","error":"OutOfMemoryError: CUDA out of memory."}]}'
)


@pytest.mark.parametrize("line", [PLAIN, FULL], ids=["plain", "every key"])
def test_a_line_of_before_is_read_and_written_byte_for_byte(line: str, tmp_path: Path) -> None:
    (tmp_path / "blocks.jsonl").write_text(line + "\n")
    (block,) = Store(tmp_path).blocks()
    again = Store(tmp_path / "again")
    again.folder.mkdir()
    again.append_block(block)
    again.append_disturbed(block)
    for name in ("blocks.jsonl", "disturbed.jsonl"):
        assert (again.folder / name).read_text() == line + "\n"
    assert again.blocks() == again.disturbed() == [block]


def test_a_line_s_fields_are_where_their_names_say() -> None:
    block = from_record(json.loads(FULL))
    assert (block.session, block.attempt, block.where) == ("2026-12-01T010211Z-73e700d3", 1, ("0", 0))
    assert (block.category, block.order, block.disturbed) == ("writing", ["vanilla", "pld"], [])
    assert block.failed == [Failed("eagle2", "0123456789ab", "OutOfMemoryError: CUDA out of memory.")]
    assert block.method_ids == {"vanilla", "021561b27fde"}
    (turn,) = block.turns_of("021561b27fde")
    assert turns_of([block, block], "021561b27fde") == [turn, turn]
    assert block.turns_of("0123456789ab") == []
    assert (turn.nodes, turn.keyed) == (Nodes([[0, 1]], [[1, 0]], [[0.5, 0.25]], [[0.75, 1e-05]]), False)
    assert turn.gaps == [(2, 0.000125)]
    assert turn.gpus
    assert turn.gpus.before == [Reading(1980, 1980, 55, 310.5, ("power_cap",), None, 1000)]


def test_sums_of_a_turn_worked_by_hand() -> None:
    # Prefill until 0.5 s, then cycles of 3, 1 and 4 tokens until 2 s.
    ends = [500_000_000, 900_000_000, 1_400_000_000, 2_000_000_000]
    turn = Turn(output_ids=list(range(9)), emitted=[1, 3, 1, 4], end_ns=ends)
    assert (turn.tokens, turn.cycles, turn.cycle_tokens) == (9, 3, 8)
    assert (turn.seconds, turn.decode_seconds, turn.joules) == (2.0, 1.5, None)
    alone = replace(turn, output_ids=[7], emitted=[1], end_ns=[500_000_000])
    assert (alone.tokens, alone.cycles, alone.cycle_tokens, alone.decode_seconds) == (1, 0, 0, 0.0)
    start, end = (Reading(None, None, None, None, (), None, millijoules) for millijoules in (1000, 3500))
    assert replace(turn, gpus=Readings([start, start], [end, end])).joules == 5.0


def test_what_an_old_line_lacks_has_a_default_and_what_was_not_recorded_gets_no_key() -> None:
    turn = {"output_ids": [5], "emitted": [1], "end_ns": [9]}
    line = {"question_id": "a", "repeat": 1, "runs": [{"method": "m", "method_id": "x", "turns": [turn]}]}
    block = from_record(line)
    assert block == Block(
        question_id="a", repeat=1, runs=[Run("m", "x", [Turn(output_ids=[5], emitted=[1], end_ns=[9])])]
    )
    written = to_record(block)
    assert not {"session", "failed"} & set(written)
    assert not {"gpus", "nodes", "keyed", "gaps"} & set(written["runs"][0]["turns"][0])


def _turn(block: dict[str, Any]) -> dict[str, Any]:
    turn: dict[str, Any] = block["runs"][1]["turns"][0]
    return turn


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a session that is a number": lambda block: block.update(session=3),
    "an attempt that is text": lambda block: block.update(attempt="1"),
    "an order that is a word": lambda block: block.update(order="pld"),
    "reasons that are numbers": lambda block: block.update(disturbed=[1]),
    "a failure that is a word": lambda block: block.update(failed="eagle"),
    "a run without its settings": lambda block: block["runs"][1].pop("method_id"),
    "rows that are fractions": lambda block: _turn(block).update(rows=[90, 1.5, 7]),
    "phases that are text": lambda block: _turn(block).update(phases_ns={"draft": "x"}),
    "phases that are a list": lambda block: _turn(block).update(phases_ns=[1]),
    "bytes that are text": lambda block: _turn(block).update(peak_bytes="1"),
    "keyed by a number": lambda block: _turn(block).update(keyed=1),
    "a reading of one end": lambda block: _turn(block)["gpus"].pop("after"),
    "energy that is text": lambda block: _turn(block)["gpus"]["after"][0].update(energy_mj="1"),
    "nodes that are flat": lambda block: _turn(block)["nodes"].update(hit=[1, 0]),
    "nodes of another kind": lambda block: _turn(block)["nodes"].update(more=[[1]]),
    "confidences that are text": lambda block: _turn(block)["nodes"].update(confidence=[["a", "b"]]),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", ["blocks", "disturbed"])
def test_a_line_of_another_shape_is_named_by_its_file_and_number(kind: str, name: str, tmp_path: Path) -> None:
    damaged = json.loads(FULL)
    DAMAGE[kind](damaged)
    assert damaged["schema"] == SCHEMA
    path = tmp_path / f"{name}.jsonl"
    path.write_text(f"{PLAIN}\n{json.dumps(damaged)}\n")
    with pytest.raises(DamagedRecordError, match=rf"{name}\.jsonl:2 is no block; move the folder away and run again"):
        getattr(Store(tmp_path), name)()

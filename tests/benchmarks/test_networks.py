"""Every drafter that has a network says where its forwards are called: both benchmarks count and time those calls."""

from __future__ import annotations

from pathlib import Path

import pytest

import methods
from methods.base import Request
from methods.decode.target import Target
from scripts.benchmarks.work_per_cycle import Counter
from tests.support.matrix import MATRIX_VOCAB, SETTINGS, WEIGHTS
from tests.support.models import run, tiny_llama


@pytest.mark.parametrize("name", SETTINGS)
def test_forwards_of_a_draft_are_counted_where_the_drafter_says_they_are(name: str, tmp_path: Path) -> None:
    target = Target(tiny_llama(layers=1, vocab_size=MATRIX_VOCAB))
    knobs = dict(next(iter(SETTINGS[name].values())))
    if name in WEIGHTS:
        knobs["weights"] = str(WEIGHTS[name](tmp_path / name, target))
    plain = methods.load(name, knobs, target)
    watched = methods.load(name, knobs, target)
    counter = Counter(watched)
    request = Request((3, 1, 4, 1, 5), 8)
    assert run(target, watched, request) == run(target, plain, request)
    assert (counter.calls > 0, counter.rows >= counter.calls) == (name in WEIGHTS, True)

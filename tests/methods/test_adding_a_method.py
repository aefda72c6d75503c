"""The method on the page that shows how to add one is complete: it is registered, runs, and emits vanilla's text."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

import methods
from methods.base import Draft, Request, Sampling
from methods.common.errors import ConfigError
from methods.decode.target import Target
from tests.support.models import random_prompts, run, tiny_llama

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "adding_a_method.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    module = ModuleType("shown_on_the_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, "docs/adding_a_method.md", "exec"), vars(module))
    monkeypatch.setitem(methods._BUILT_IN, "follow", methods.Row("shown_on_the_page:Follow"))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=4)], ids=["greedy", "t1"])
def test_it_emits_vanillas_text_token_for_token_and_some_of_its_tokens_are_accepted(sampling: Sampling) -> None:
    target = Target(tiny_llama(layers=1, vocab_size=6))
    drafter, vanilla = methods.load("follow", {"num_draft": 3}, target), methods.load("vanilla", {}, target)
    accepted = 0
    for prompt in random_prompts(6, lengths=(1, 4, 9), vocab=6):
        request = Request(prompt, 20, frozenset({5}), sampling)
        tokens, steps = run(target, drafter, request)
        assert tokens == run(target, vanilla, request)[0]
        accepted += sum(step.accepted for step in steps)
    assert accepted > 0


def test_its_settings_are_checked_as_the_page_says() -> None:
    with pytest.raises(ConfigError, match=r"^num_draft=0 must be 1 or more$"):
        methods.configure("follow", {"num_draft": 0})


def test_the_page_names_only_what_there_is() -> None:
    assert "log_confidence" in {field.name for field in fields(Draft)}
    for path in re.findall(r"`((?:methods|tests|conf)/[\w/]+(?:\.py|/))`", PAGE):
        assert (Path(__file__).resolve().parents[2] / path).exists(), path

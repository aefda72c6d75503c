"""The matrix: every registered method, in several settings, must emit exactly the text of the model itself.

The reference is none of our own code: the stock model reads the whole text at once, without a cache, and the token
after each prefix is an argmax or the draw of its position. Vanilla is one more method that must agree with it. To add a
method, add its settings to ``SETTINGS`` and, if it needs weights, a function to ``WEIGHTS`` that writes random ones.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

import methods
from methods.base import Drafter, Request, Sampling
from methods.decode.draws import Draws
from methods.decode.loop import decode
from methods.decode.sampling import target_tokens
from methods.decode.target import Target
from tests.support.matrix import EOS, MATRIX_VOCAB, NEW_TOKENS, SETTINGS, maker
from tests.support.models import random_prompts, run, tiny_llama

FULL = "DRAFTBENCH_FULL" in os.environ
"""``make test-full``: a deeper model and ten times the prompts."""

PROMPTS_EACH = 512 if FULL else 52

SAMPLINGS = {
    "greedy": Sampling(),
    "t1": Sampling(1.0, seed=1),
    "t0.7-p0.9": Sampling(0.7, top_p=0.9, seed=2),
    "t1-k5": Sampling(1.0, top_k=5, seed=3),
}

# At T > 0 a rejection rule keeps the law and not the draws; test_rejection.py enumerates it.
EQUAL = [
    (name, sampling)
    for name, sampling in itertools.product(SETTINGS, SAMPLINGS)
    if SAMPLINGS[sampling].greedy or not methods.configure(name, {})[0].rejection
]
CELLS = [(name, setting) for name, settings in SETTINGS.items() for setting in settings]


@pytest.fixture(scope="module")
def small() -> Target:
    """Two layers are enough to mix positions, and let every method run 200 prompts."""
    return Target(tiny_llama(layers=7 if FULL else 2, vocab_size=MATRIX_VOCAB))


@pytest.fixture(scope="module")
def drafter(small: Target, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Drafter]:
    return maker(small, tmp_path_factory)


def requests(sampling: str) -> list[Request]:
    prompts = random_prompts(PROMPTS_EACH, vocab=MATRIX_VOCAB, seed=len(sampling))
    return [
        Request(prompt, NEW_TOKENS, frozenset({EOS}), SAMPLINGS[sampling], f"{sampling}-{index}", turn=index % 2)
        for index, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def assert_models_own(small: Target) -> Callable[[Request, list[int]], None]:
    """Every token is the model's after what stands before it, so by induction the text is; and it ends where it must.

    All methods must write one text, so it is read once.
    """

    @functools.cache
    def models(request: Request, text: tuple[int, ...]) -> list[int]:
        start, sampling = len(request.prompt_ids), request.sampling
        draws = Draws(sampling.seed, request.question, request.turn, start + len(text))
        ids = torch.tensor([[*request.prompt_ids, *text[:-1]]])
        rows = small.model(input_ids=ids, use_cache=False).logits[0, start - 1 :, None]
        return [int(target_tokens(row, sampling, draws, range(at, at + 1))) for at, row in enumerate(rows, start)]

    def check(request: Request, tokens: list[int]) -> None:
        assert tokens == models(request, tuple(tokens)), request
        assert EOS not in tokens[:-1]
        assert len(tokens) == NEW_TOKENS or (len(tokens) < NEW_TOKENS and tokens[-1] == EOS)

    return check


def test_every_registered_method_is_in_the_matrix() -> None:
    missing = set(methods.names()) - set(SETTINGS)
    assert not missing, f"add settings for {missing} to SETTINGS"
    assert all(SETTINGS.values())


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("name", "sampling"), EQUAL, ids=["-".join(pair) for pair in EQUAL])
def test_item_8_the_text_is_the_models_own_token_for_token(
    small: Target,
    drafter: Callable[[str, str], Drafter],
    assert_models_own: Callable[[Request, list[int]], None],
    name: str,
    sampling: str,
) -> None:
    settings = [drafter(name, setting) for setting in SETTINGS[name]]
    accepted, ends = [0] * len(settings), set()
    for index, request in enumerate(requests(sampling)):
        which = index // 2 % len(settings)  # every second prompt repeats a phrase: each setting gets both kinds
        tokens, steps = run(small, settings[which], request)
        accepted[which] += sum(step.accepted for step in steps)
        assert max((step.rows for step in steps[1:]), default=1) <= settings[which].max_rows
        assert_models_own(request, tokens)
        assert steps[-1].finish == ("eos" if tokens[-1] == EOS else "length")
        ends.add(steps[-1].finish)
    # A setting whose drafts are never accepted would pass for the wrong reason; so would texts that end in one way.
    assert name == "vanilla" or min(accepted) > 0
    assert ends == {"eos", "length"}


@pytest.fixture(scope="module", params=["float64", "float32"])
def fused(request: pytest.FixtureRequest) -> Target:
    """The same weights on the other runtime; in float32 prepacked, where this CPU has it."""
    model = tiny_llama(getattr(torch, request.param), layers=7 if FULL else 2, vocab_size=MATRIX_VOCAB)
    return Target(model, runtime="fused")


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("name", "sampling"),
    [pair for pair in EQUAL if FULL or pair[1] in ("greedy", "t1")],
    ids=lambda value: value,
)
def test_the_fused_runtime_emits_the_stock_modules_text(
    fused: Target,
    drafter: Callable[..., Drafter],
    assert_models_own: Callable[[Request, list[int]], None],
    name: str,
    sampling: str,
) -> None:
    settings = [drafter(name, setting, fused) for setting in SETTINGS[name]]
    accepted = 0
    for index, request in enumerate(requests(sampling) if FULL else requests(sampling)[20:32]):
        which = index // 2 % len(settings)
        tokens, steps = run(fused, settings[which], request)
        assert_models_own(request, tokens)
        accepted += sum(step.accepted for step in steps)
    assert name == "vanilla" or accepted > 0


@pytest.mark.parametrize(("name", "setting"), CELLS, ids=["-".join(cell) for cell in CELLS])
def test_nothing_of_one_prompt_reaches_the_next(
    small: Target, drafter: Callable[[str, str], Drafter], name: str, setting: str
) -> None:
    first, second, third = requests("t1")[30:33]
    method = drafter(name, setting)
    alone = run(small, method, first)
    assert run(small, method, first) == alone
    list(itertools.islice(decode(small, method, second), 4))  # abandoned half-way
    run(small, method, third)
    assert run(small, method, first) == alone
    assert run(small, drafter(name, setting), first) == alone


@pytest.mark.parametrize("name", [name for name, settings in SETTINGS.items() if "few" in settings])
def test_a_draft_vocabulary_is_what_is_drafted_from(
    small: Target, drafter: Callable[[str, str], Drafter], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Any draft is lossless, so only the drafted tokens show that columns were turned into the ids they stand for."""
    made = drafter(name, "few")
    kept = set(torch.randperm(MATRIX_VOCAB, generator=torch.Generator().manual_seed(2))[:9].tolist())
    propose, drafted = made.propose, set()

    def watched(context: Any) -> Any:
        draft = propose(context)
        drafted.update(draft.tokens[1 : draft.tree.size].tolist())
        return draft

    monkeypatch.setattr(made, "propose", watched)
    run(small, made, Request(random_prompts(1, vocab=MATRIX_VOCAB)[0], NEW_TOKENS, frozenset()))
    assert drafted
    assert drafted <= kept

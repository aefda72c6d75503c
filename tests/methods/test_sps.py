"""SpS: its schedule, what its draft model remembers, and which draft models it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import methods
from methods.base import Context, Draft, Request, Sampling
from methods.common.errors import ConfigError
from methods.decode.loop import decode
from methods.decode.sampling import distribution
from methods.decode.target import Target
from tests.support.heads import word_tokenizer, write_draft_model
from tests.support.models import random_prompts, run, tiny_llama
from tests.support.reference_heads import Watched

VOCAB = 8  # small, so that a random draft is sometimes right
SAMPLINGS = [Sampling(), Sampling(1.0, seed=3)]


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(tiny_llama(layers=2, vocab_size=VOCAB))


@pytest.fixture(scope="module")
def random_draft(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_draft_model(tmp_path_factory.mktemp("draft"), target, word_tokenizer(VOCAB))


@pytest.fixture(scope="module")
def twin(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft that is the target itself."""
    folder = tmp_path_factory.mktemp("twin")
    target.model.save_pretrained(folder)
    word_tokenizer(VOCAB).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["a random draft", "the target itself"])
def folder(request: pytest.FixtureRequest, random_draft: Path, twin: Path) -> Path:
    return random_draft if request.param == "a random draft" else twin


def sps(folder: Path, target: Target, **knobs: Any) -> Any:
    return methods.load("sps", {"weights": str(folder), **knobs}, target)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "t1"])
def test_the_heuristic_schedule_is_that_of_transformers_4_37(folder: Path, target: Target, sampling: Sampling) -> None:
    """Five at first, two more after a cycle that was right throughout, one less otherwise, never below one."""
    drafter = sps(folder, target)
    seen = []
    for prompt in random_prompts(3, lengths=(2, 9, 5), vocab=VOCAB):
        gamma, left = 5, 60
        _, steps = run(target, drafter, Request(prompt, left, sampling=sampling))
        for step in steps:
            if step is not steps[0]:
                assert step.drafted == min(gamma, left - 1)  # the last token of a turn is never drafted
                seen.append(gamma)
                gamma = gamma + 2 if step.accepted == gamma else max(1, gamma - 1)
            left -= len(step.tokens)
    assert seen.count(5) >= 3
    assert max(seen) > 5 or min(seen) == 1


def test_the_schedule_grows_to_a_bound_that_the_cache_was_made_for(twin: Path, target: Target) -> None:
    drafter = sps(twin, target, num_draft=61)
    _, steps = run(target, drafter, Request((1, 2), 245))
    assert [step.drafted for step in steps] == [0, 61, 63, 64, 52]
    assert [step.accepted for step in steps] == [0, 61, 63, 64, 52]
    assert drafter.max_rows == 65


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "t1"])
def test_a_constant_schedule_drafts_as_many_in_every_cycle(folder: Path, target: Target, sampling: Sampling) -> None:
    drafter = sps(folder, target, schedule="constant", num_draft=3)
    assert drafter.max_rows == 4
    for prompt in random_prompts(2, lengths=(2, 9), vocab=VOCAB):
        left = 30
        for step in run(target, drafter, Request(prompt, left, sampling=sampling))[1]:
            assert step.drafted == (0 if left == 30 else min(3, left - 1))
            left -= len(step.tokens)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "t1"])
def test_a_draft_that_is_the_target_is_right_every_time(twin: Path, target: Target, sampling: Sampling) -> None:
    """At T=0 by equality; at T=1 because min(1, p/q) is 1 for p = q."""
    for prompt in random_prompts(4, lengths=(1, 2, 9, 30), vocab=VOCAB):
        _, steps = run(target, sps(twin, target), Request(prompt, 40, sampling=sampling))
        assert [step.accepted for step in steps] == [step.drafted for step in steps]
        assert [len(step.tokens) for step in steps[:4]] == [1, 6, 8, 10]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "t1"])
def test_after_every_cycle_the_draft_remembers_true_tokens_only(
    folder: Path, target: Target, sampling: Sampling
) -> None:
    drafter = sps(folder, target, num_draft=3)
    recomputed, fed = Target(drafter.draft.model), []
    forward = drafter.draft.forward

    def spy(tokens: Tensor, *rest: Tensor) -> Tensor:
        fed.append(tokens.tolist())
        result: Tensor = forward(tokens, *rest)
        return result

    drafter.draft.forward = spy
    whole = set()
    for prompt in random_prompts(3, lengths=(1, 4, 9), vocab=VOCAB):
        ids = list(prompt)
        missing = 1  # the root; after a cycle that was right throughout, also the last drafted token, never fed before
        for step in decode(target, drafter, Request(prompt, 30, sampling=sampling)):
            if fed:
                assert fed[0] == ids[-missing:]
                assert [len(tokens) for tokens in fed[1:]] == [1] * (step.drafted - 1)
                missing = 2 if step.accepted == step.drafted else 1
                whole.add(missing)
            ids += step.tokens
            if fed and step.finish is None:
                check_cache(drafter.draft, recomputed, ids[:-missing])
            fed.clear()
    assert 2 in whole


def check_cache(draft: Target, recomputed: Target, ids: list[int]) -> None:
    assert draft.cache.length == len(ids)
    recomputed.prefill(torch.tensor(ids), capacity=300)
    for layer in range(2):
        for ours, fresh in zip(draft.cache.rows(layer), recomputed.cache.rows(layer), strict=True):
            assert torch.allclose(ours, fresh, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sampling", [*SAMPLINGS, Sampling(0.7, top_k=5, seed=2)], ids=["greedy", "t1", "warped"])
def test_each_token_is_drawn_from_the_q_that_is_handed_over_with_the_uniform_of_its_own_position(
    random_draft: Path, target: Target, sampling: Sampling
) -> None:
    drafter = sps(random_draft, target)

    def look(context: Context, draft: Draft) -> None:
        ids = context.ids
        text = torch.tensor([[*ids, *draft.tokens.tolist()[1:]]])
        logits = drafter.draft.model(input_ids=text, use_cache=False).logits[0, len(ids) - 1 : -1]
        drawn = logits.argmax(-1)
        if draft.q is not None:
            assert draft.rule == "chain"
            assert torch.allclose(draft.q, distribution(logits, sampling), atol=1e-5)
            position = torch.arange(len(ids), len(ids) + draft.rows - 1)
            cdf = draft.q.double().cumsum(-1)
            drawn = (cdf > (context.draws.uniform("draft", position) * cdf[:, -1])[:, None]).int().argmax(-1)
        assert draft.tokens.tolist() == [ids[-1], *drawn.tolist()]
        assert (draft.q is None) == (sampling.greedy or draft.rows == 1)

    for prompt in random_prompts(2, lengths=(2, 9), vocab=VOCAB):
        run(target, Watched(drafter, look), Request(prompt, 20, sampling=sampling))


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"t0": 0, "t1": 1, "t2": 3, "t3": 2, "t4": 4}, "id 2 is 't3' there and 't2' in the target"),
        ({"t0": 0, "t1": 1, "t2": 2, "t3": 3}, "id 4 is None there and 't4' in the target"),
        ({"t0": 0, "t1": 1, "t2": 2, "t3": 3, "t4": 4, "t5": 5}, "id 5 is 't5' there and None in the target"),
    ],
    ids=["swapped", "shorter", "longer"],
)
def test_a_draft_of_another_vocabulary_is_refused_by_the_first_id_that_differs(
    target: Target, random_draft: Path, tmp_path: Path, theirs: dict[str, int], said: str
) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    other = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(theirs, unk_token="t0")), eos_token="t1"
    )
    folder = write_draft_model(tmp_path, target, other)
    with pytest.raises(ConfigError) as refused:
        methods.load("sps", {"weights": str(folder)}, target, word_tokenizer(5))
    assert str(refused.value) == (
        f"the draft {folder} has another vocabulary: {said}; choose a draft of the same tokenizer"
    )
    methods.load("sps", {"weights": str(random_draft)}, target, word_tokenizer(VOCAB))


@pytest.mark.parametrize("rows", [VOCAB - 2, VOCAB + 5], ids=["fewer", "more"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "t1"])
def test_an_output_head_padded_to_another_size_drafts_tokens_of_the_target_all_the_same(
    tmp_path: Path, rows: int, sampling: Sampling
) -> None:
    """Models of one family pad one vocabulary to different sizes; the rows behind it stand for no token."""
    model = tiny_llama(layers=2, vocab_size=VOCAB)
    model.get_output_embeddings().weight[VOCAB - 2 :] = 0.0
    model.get_output_embeddings().weight[0] = 0.0  # at T=0 the padding ties with token 0 at best, and loses
    target = Target(model)
    folder = write_draft_model(tmp_path, Target(tiny_llama(layers=1, vocab_size=rows)), word_tokenizer(VOCAB - 2))
    drafter = methods.load("sps", {"weights": str(folder)}, target, word_tokenizer(VOCAB - 2))
    for prompt in random_prompts(3, lengths=(2, 5), vocab=VOCAB - 2):
        request = Request(prompt, 20, sampling=sampling)
        tokens, _ = run(target, drafter, request)
        assert len(tokens) == 20
        if sampling.greedy:
            assert tokens == run(target, methods.load("vanilla", {}, target), request)[0]


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "lm_head.weight"])
def test_a_draft_model_that_lacks_a_tensor_is_refused_and_not_made_up_at_random(
    target: Target, random_draft: Path, tmp_path: Path, name: str
) -> None:
    for path in random_draft.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=name):
        sps(tmp_path, target)


@pytest.mark.parametrize("left", [4, 100, 0.9])
def test_a_truncated_draft_model_is_refused_in_one_line(
    target: Target, random_draft: Path, tmp_path: Path, left: float
) -> None:
    for path in random_draft.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: int(left * len(whole)) if left < 1 else int(left)])
    with pytest.raises(ConfigError) as refused:
        sps(tmp_path, target)
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"schedule": "dynamic"}, "^schedule=dynamic is not known; choose constant or heuristic"),
        ({"num_draft": 0}, r"^num_draft=0 must lie in \[1, 64\]"),
        ({"num_draft": 65}, r"^num_draft=65 must lie in \[1, 64\]"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(target: Target, knobs: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        methods.load("sps", knobs, target)

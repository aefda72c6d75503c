"""What heads are trained on: written texts, features, batches, and what is kept out."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import methods
from methods.base import Request
from methods.common.errors import ConfigError
from methods.decode.target import Target
from methods.runtime import attention
from methods.train import features
from methods.train.data import Data
from methods.train.overlap import Overlap
from methods.train.writing import Free, Given, write
from tests.support.models import run, tiny_llama

EOS = 7


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(tiny_llama(layers=2, vocab_size=24))


def written(target: Target, scripts: list[tuple[Given | Free, ...]], seed: int = 0) -> list[list[int]]:
    """The texts in the order of their scripts (their openings tell them apart)."""
    texts = list(write(target, scripts, frozenset({EOS}), torch.Generator().manual_seed(seed)))
    by_opening = {tuple(text[: len(script[0].tokens)]): text for script in scripts for text in texts
                  if tuple(text[: len(script[0].tokens)]) == script[0].tokens}  # type: ignore[union-attr]  # fmt: skip
    return [by_opening[script[0].tokens] for script in scripts]  # type: ignore[union-attr]


def answer(target: Target, prompt: list[int], limit: int) -> list[int]:
    request = Request(tuple(prompt), limit, frozenset({EOS}))
    return run(target, methods.load("vanilla", {}, target), request)[0]


def test_a_batch_writes_what_each_text_alone_would_be(target: Target) -> None:
    """Greedy, openings of unequal length, two turns: vanilla decoding of each part gives the same tokens."""
    openings = [(3, 1), (2, 2, 5, 9), (11,), (4, 8, 15), (16, 23, 4, 3, 2, 6), (1, 1), (9,)]
    between = (20, 21)
    scripts = [(Given(opening), Free(6, 0.0, keep_end=False), Given(between), Free(5, 0.0)) for opening in openings]
    for opening, text in zip(openings, written(target, list(scripts)), strict=True):
        expected = list(opening)
        question = answer(target, expected, 6)
        expected += question[:-1] if question[-1] == EOS else question
        expected += between
        expected += answer(target, expected, 5)
        assert text == expected


def test_drawn_texts_follow_from_the_seed(target: Target) -> None:
    scripts: list[tuple[Given | Free, ...]] = [(Given((n, 3)), Free(8, 1.0)) for n in range(6)]
    first, again, other = written(target, scripts), written(target, scripts), written(target, scripts, seed=1)
    assert first == again != other
    assert all(EOS not in text[2:-1] for text in first), "an answer ends with its end-of-text token"


def test_grouped_attention_is_the_stock_attention() -> None:
    """The same model under both names, over prefill, one row, and tree rows with a mask."""
    attention.register()
    model = tiny_llama(layers=2)
    tokens = torch.randint(48, (3, 9), generator=torch.Generator().manual_seed(1))
    tree = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    found = []
    for name in ("sdpa", attention.NAME):
        model.set_attn_implementation(name)
        target = Target(model)
        target.begin_batch(32)
        batch = [target.read_batch(part) for part in (tokens[:, :6], tokens[:, 6:7], tokens[:, 7:])]
        target.prefill(tokens[0], capacity=32)
        found.append([*batch, target.forward(tokens[1, :3], torch.tensor([0, 1, 1]), tree)])
    for stock, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, stock)


def test_features_are_the_states_that_decoding_sees(target: Target, tmp_path: Path) -> None:
    texts = [[1, 2, 3], [4] * 11, [5, 6], [9, 8, 7, 6, 5]]
    shard = shard_of(texts, tmp_path / "a.safetensors")
    (file,) = features.build(target, [shard], tmp_path, batch_tokens=12)
    states = features.mapped(file, target.hidden)
    expected = torch.cat([target.prefill(torch.tensor(text), capacity=16) for text in texts])
    torch.testing.assert_close(states, expected.bfloat16(), rtol=2**-7, atol=1e-6)
    before = file.stat().st_mtime_ns
    features.build(target, [shard], tmp_path, batch_tokens=12)
    assert file.stat().st_mtime_ns == before, "finished work is found again"


def flat(texts: list[list[int]]) -> torch.Tensor:
    return torch.tensor([token for text in texts for token in text])


def shard_of(texts: list[list[int]], path: Path) -> Path:
    lengths = torch.tensor([len(text) for text in texts], dtype=torch.int32)
    save_file({"tokens": flat(texts).int(), "lengths": lengths}, path)
    return path


def data_of(texts: list[list[int]], folder: Path, held_out: float = 0.0) -> Data:
    """Features that name their token, so that a batch shows whether both travel together."""
    shard, file = shard_of(texts, folder / "t.safetensors"), folder / "t.bin"
    flat(texts).bfloat16()[:, None].repeat(1, 2).view(torch.int16).numpy().tofile(file)
    return Data([shard], [file], 2, held_out)


def test_a_pass_shows_every_token_once_with_its_own_features(tmp_path: Path) -> None:
    texts = [[n * 10 + i for i in range(length)] for n, length in enumerate((5, 3, 9, 4, 7, 4))]
    part = data_of(texts, tmp_path).trained
    batches = [part.batch(number, batch=2, window=4, seed=1) for number in range(part.windows(4) // 2)]
    tokens = torch.cat([batch.tokens.flatten() for batch in batches])
    assert Counter(tokens.tolist()).most_common(1)[0][1] == 1
    assert len(tokens) == 32 == sum(map(len, texts))
    for batch in batches:
        assert torch.equal(batch.features[..., 0].long(), batch.tokens)
        neighbours = batch.together(1)
        assert torch.equal(neighbours, batch.tokens[:, 1:] == batch.tokens[:, :-1] + 1)
    second = part.batch(len(batches), batch=2, window=4, seed=1)
    assert not torch.equal(second.tokens, batches[0].tokens), "another pass has another order"
    assert torch.equal(part.batch(1, batch=2, window=4, seed=1).tokens, batches[1].tokens), "by number alone"


def test_repeated_texts_count_once_and_no_text_is_on_both_sides(tmp_path: Path) -> None:
    texts = [[n, n + 1, n + 2] for n in range(400)]
    data = data_of([*texts, *texts], tmp_path, held_out=0.25)
    held = {tuple(text.tolist()) for text in data.held_out.texts}
    trained = {tuple(text.tolist()) for text in data.trained.texts}
    assert len(held) == len(data.held_out.texts)
    assert not held & trained
    assert len(held) + len(trained) == 400
    assert 60 < len(held) < 140


def test_too_little_text_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"9 tokens do not fill one batch of 4 x 8; raise corpus.dialogues"):
        data_of([[1, 2, 3, 4, 5, 6, 7, 8, 9]], tmp_path).trained.batch(0, batch=4, window=8, seed=0)


def test_a_text_that_shares_ten_words_with_a_question_is_kept_out(tmp_path: Path) -> None:
    question = "Which of the seven bridges over the river was built before the great fire of the town?"
    (tmp_path / "q.jsonl").write_text(json.dumps({"turns": [question]}) + "\n")
    overlap = Overlap.of([str(tmp_path)])
    assert f"He asked: {question.upper()}" in overlap
    assert "one two three, seven bridges over the river was BUILT before the great" in overlap
    assert "which of the seven bridges over the river was" not in overlap
    with pytest.raises(ConfigError, match=r"neither a \.jsonl file nor a folder"):
        Overlap.of([str(tmp_path / "absent")])
    (tmp_path / "q.jsonl").write_text('{"turn": 1}\n')
    with pytest.raises(ConfigError, match="line 1 is not a question with turns"):
        Overlap.of([str(tmp_path)])

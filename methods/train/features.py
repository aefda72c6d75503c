"""The target's post-norm hidden states over the corpus: computed once, kept on disk in bfloat16, read by memory map.

A file holds ``[tokens, hidden]`` in the order of its shard. A head must be trained on what it will draft from, and the
methods here draft from the hidden state that the output head reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from methods.common.atomic_write import write_atomically
from methods.decode.target import Target
from methods.train.corpus import texts_of


def build(target: Target, shards: list[Path], folder: Path, batch_tokens: int) -> list[Path]:
    """Compute what is missing; returns one file a shard."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for shard in tqdm(shards, desc="features", unit="shard"):
        path = folder / f"{shard.stem}.bin"
        files.append(path)
        if not path.exists():
            states = _states(target, texts_of(shard), batch_tokens)
            write_atomically(path, states.view(torch.int16).numpy().tofile)
    return files


def mapped(path: Path, hidden: int) -> Float[Tensor, "tokens hidden"]:
    """A file's states, read from disk as they are touched."""
    size = path.stat().st_size // 2
    flat = torch.from_file(str(path), size=size, dtype=torch.bfloat16) if size else torch.empty(0, dtype=torch.bfloat16)
    return flat.view(-1, hidden)


@torch.inference_mode()
def _states(target: Target, texts: list[list[int]], batch_tokens: int) -> Float[Tensor, "tokens hidden"]:
    starts = torch.tensor([0, *(len(text) for text in texts)]).cumsum(0).tolist()
    states = torch.empty(starts[-1], target.hidden, dtype=torch.bfloat16)
    for batch in _batches(texts, batch_tokens):
        longest = max(len(texts[number]) for number in batch)
        # Padding lies behind every text and attention is causal, so it reaches no state that is kept.
        tokens = torch.tensor([texts[number] + [0] * (longest - len(texts[number])) for number in batch])
        target.begin_batch(longest)
        hidden = target.read_batch(tokens)
        for row, number in zip(hidden, batch, strict=True):
            length = len(texts[number])
            states[starts[number] : starts[number] + length] = row[:length].to("cpu", torch.bfloat16)
    return states


def _batches(texts: list[list[int]], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of texts of similar length, at most ``batch_tokens`` tokens with their padding, at least one text."""
    batch: list[int] = []
    for number in sorted((n for n in range(len(texts)) if texts[n]), key=lambda n: len(texts[n])):
        if batch and len(texts[number]) * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch

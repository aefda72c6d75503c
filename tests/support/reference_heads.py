"""Draft heads computed the slow way: float64, whole texts, one attention row at a time, straight from a file's tensors.

Written from the papers' equations and sharing nothing with ``methods``, so that a wrong position, order or norm there
has nowhere to hide.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import silu

from methods.base import Context, Draft, Drafter, Outcome, Prefill, Request
from methods.decode.target import Target
from methods.eagle2 import Eagle2Config

Path_ = tuple[int, ...]
"""The tokens from the root's child down to a node."""

Law = Callable[[Path_], list[float]]
"""The draft's logits after a path below the root."""


def read(folder: Path, file: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A head's tensors in float64, and its config.json."""
    tensors = torch.load(folder / file, weights_only=True)
    facts = json.loads((folder / "config.json").read_text())
    return {name: tensor.double() for name, tensor in tensors.items()}, facts


def true_features(target: Target, ids: Sequence[int]) -> Tensor:
    """What the stock model puts into its output head, for every token of a text."""
    return target.model.base_model(input_ids=torch.tensor([list(ids)]), use_cache=False).last_hidden_state[0].double()


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt()


def rotate(x: Tensor, base: float) -> Tensor:
    """RoPE on ``[rows, size]``: row i at position i, dimension j turned together with dimension j + size/2."""
    half = x.shape[1] // 2
    angle = torch.outer(torch.arange(x.shape[0]).double(), base ** (-torch.arange(half).double() / half))
    left, right = x[:, :half], x[:, half:]
    return torch.cat([left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()], 1)


def decoder_layer(
    x: Tensor, weights: Mapping[str, Tensor], facts: Mapping[str, Any], *, input_norm: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """One causal Llama layer on rows at positions 0, 1, ...: output, keys and values ``[kv_heads, rows, size]``."""
    heads, epsilon, base = facts["num_attention_heads"], facts["rms_norm_eps"], facts.get("rope_theta", 10000.0)
    groups = facts["num_key_value_heads"]
    y = rms_norm(x, weights["input_layernorm.weight"], epsilon) if input_norm else x
    q, k, v = (y @ weights[f"self_attn.{name}_proj.weight"].T for name in "qkv")
    size = q.shape[1] // heads
    keys = [rotate(part, base) for part in k.split(size, 1)]
    values = list(v.split(size, 1))
    mixed = []
    for head, query in enumerate(q.split(size, 1)):
        group = head // (heads // groups)  # consecutive query heads share a key/value head
        scores = rotate(query, base) @ keys[group].T / size**0.5
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)
        mixed.append(scores.softmax(-1) @ values[group])
    x = x + torch.cat(mixed, 1) @ weights["self_attn.o_proj.weight"].T
    y = rms_norm(x, weights["post_attention_layernorm.weight"], epsilon)
    gate, up, down = (weights[f"mlp.{name}_proj.weight"].T for name in ("gate", "up", "down"))
    return x + (silu(y @ gate) * (y @ up)) @ down, torch.stack(keys), torch.stack(values)


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


class SlowEagle:
    """EAGLE's head: the pair (f_i, E(t_{i+1})) sits at position i and gives a guess of f_{i+1}."""

    def __init__(self, folder: Path, target: Target) -> None:
        self.tensors, self.facts = read(folder, "pytorch_model.bin")
        self.embedding = target.embedding.double()
        self.output = target.model.get_output_embeddings().weight.double()

    def run(self, features: Tensor, tokens: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs, keys and values of a text of pairs."""
        pair = torch.cat([self.embedding[torch.tensor(tokens)], features.double()], 1)
        x = pair @ self.tensors["fc.weight"].T + self.tensors.get("fc.bias", 0.0)
        return decoder_layer(x, below(self.tensors, "layers.0."), self.facts, input_norm=False)

    def after(self, features: Tensor, tokens: Sequence[int], path: Path_) -> Tensor:
        """The guessed feature at the end of a drafted path: a guess goes in again beside the token drafted from it."""
        output = self.run(features, tokens)[0][-1:]
        for drawn in path:
            features, tokens = torch.cat([features, output]), [*tokens, drawn]
            output = self.run(features, tokens)[0][-1:]
        return output


def log_probs(law: Law, path: Path_) -> list[float]:
    found: list[float] = torch.tensor(law(path)).log_softmax(-1).tolist()
    return found


def plus(a: float, b: float) -> float:
    """The sum as a float32, which scores are kept in."""
    return float(np.float32(a) + np.float32(b))


def best(scores: list[float], count: int) -> list[int]:
    """Largest first; of equals the one met first."""
    return sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:count]


def slow_tree(law: Law, config: Eagle2Config) -> list[Path_]:
    """The paper's section 4 and its ablations, one node at a time. Nodes are numbered as they are met."""
    paths: list[Path_] = []
    values: list[float] = []
    confidences: list[float] = []
    expanded: list[int] = []
    frontier: list[tuple[Path_, float]] = [((), 0.0)]
    for _ in range(config.depth):
        first = len(paths)
        for path, value in frontier:
            row = log_probs(law, path)
            for token in best(row, config.top_k):
                paths.append((*path, token))
                confidences.append(row[token])
                values.append(plus(value, row[token]))
        ranked_by = values if config.expand == "value" else confidences
        chosen = [first + index for index in best(ranked_by[first:], config.top_k)]
        frontier = [(paths[index], values[index]) for index in chosen]
        expanded += chosen
    if not config.rerank:
        return [paths[index] for index in expanded]
    scores = values
    if config.rerank_by == "confidence":  # a node is as good as the best that hangs below it
        scores = [
            max(other for path, other in zip(paths, confidences, strict=True) if path[: len(top_)] == top_)
            for top_ in paths
        ]
    return [paths[index] for index in best(scores, config.total_tokens)]


class Watched:
    """A drafter that passes everything on and calls ``look`` after every proposal, when its cache has caught up."""

    def __init__(self, drafter: Drafter, look: Callable[[Context, Draft], None]) -> None:
        self._drafter, self._look = drafter, look
        self.rejection, self.max_rows = drafter.rejection, drafter.max_rows

    def begin(self, request: Request, prefill: Prefill) -> None:
        self._drafter.begin(request, prefill)

    def propose(self, context: Context) -> Draft:
        draft = self._drafter.propose(context)
        self._look(context, draft)
        return draft

    def observe(self, outcome: Outcome) -> None:
        self._drafter.observe(outcome)


def paths_of(draft: Draft) -> list[Path_]:
    """The tokens on the way to each row of a draft's tree; the root's is empty."""
    found: list[Path_] = [()]
    for parent, token in zip(draft.tree.parents.tolist()[1:], draft.tokens.tolist()[1:], strict=True):
        found.append((*found[parent], token))
    return found


def agree(ours: Tensor, slow: Tensor) -> bool:
    """Equal but for the float32 that the stock layer computes norms and angles in."""
    return bool(torch.allclose(ours.double(), slow, rtol=1e-5, atol=1e-5 * float(slow.abs().max())))

"""What each piece beside the forwards costs against the plain way to compute it: the same results, timed in turn.

Pairs at the sizes of eagle2's cycle on the small model (49,152 tokens, 60 nodes, 10 rows a level, 30 layers). A ratio
is the plain way's CPU time over ours in the same round, median with quartiles; first the two results are compared.
Written to results/bench/parts-<dtype>.json.

    python -m scripts.benchmarks.parts --dtype bfloat16
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from bench.measure.clock import cpu_ns
from bench.records import hardware, provenance
from methods.decode.topk import greedy, top
from methods.decode.tree import Tree, chain
from methods.lookahead import _layout
from methods.runtime.cache import KVCache
from methods.runtime.fused import _Mask
from scripts.benchmarks import results_file

VOCAB, LAYERS, GROUPS, DIM, CONTEXT = 49152, 30, 3, 64, 300
PATH = [0, 2, 7, 20]

Part = tuple[Callable[[], Any], Callable[[], Any]]


def main() -> None:
    """Compare, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=50)
    results_file.add_option(parser)
    options = parser.parse_args()
    found = {}
    with torch.inference_mode():
        for name, (plain, ours) in tqdm(_parts(getattr(torch, options.dtype)).items()):
            if not _same(plain(), ours()):
                raise SystemExit(f"{name}: the two ways differ")
            times = np.array([_times(plain, ours, turn) for turn in range(options.rounds)], dtype=float)
            ratio = np.percentile(times[:, 0] / times[:, 1], [25, 50, 75])
            found[name] = {"plain_and_ours_ms": (np.median(times, 0) / 1e6).tolist(), "ratio": ratio.tolist()}
    report = {
        "machine": hardware.describe(),
        "provenance": provenance.describe(),
        "threads": torch.get_num_threads(),
        "dtype": options.dtype,
        "rounds": options.rounds,
        "parts": found,
    }
    path = results_file.write(report, options.results, f"parts-{options.dtype}.json")
    for name, one in found.items():
        plain_ms, ours_ms = one["plain_and_ours_ms"]
        low, middle, high = one["ratio"]
        print(f"{name}: {plain_ms:.3f} -> {ours_ms:.3f} ms, {middle:.1f}x [{low:.1f}, {high:.1f}]")
    print(json.dumps({"written": str(path)}))


def _parts(dtype: torch.dtype) -> dict[str, Part]:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(60, VOCAB, generator=random).to(dtype)
    level = logits[:10]
    states = torch.randn(LAYERS, 2, 1, GROUPS, CONTEXT + 60, DIM, generator=random).to(dtype)
    each, pooled = (_filled(states, together=together) for together in (False, True))
    tree = Tree.from_parents(torch.tensor([-1, *((node - 1) // 3 for node in range(1, 60))]), 4)
    kept, device = _Mask(3), torch.device("cpu")
    parents = (-1, 0, 1, 2, 0, 4, 5)
    return {
        "target's token of 60 nodes": (lambda: logits.argmax(-1), lambda: greedy(logits)),
        "target's token of one row": (lambda: logits[:1].argmax(-1), lambda: greedy(logits[:1])),
        "top 10 of 10 rows": (
            lambda: level.argsort(dim=-1, descending=True, stable=True)[:, :10],
            lambda: top(level, 10),
        ),
        "compaction of a path of 4": (lambda: _keep(each), lambda: _keep(pooled)),
        "mask of a static tree": (
            lambda: _Mask(3)(tree.mask, CONTEXT + 60, dtype),
            lambda: kept(tree.mask, CONTEXT + 60, dtype),
        ),
        "mask of a chain": (lambda: chain.__wrapped__(9, device).mask, lambda: chain(9, device).mask),
        "lookahead's tree and mask": (
            lambda: _layout.__wrapped__(parents, 4, 7, device)[2],
            lambda: _layout(parents, 4, 7, device)[2],
        ),
    }


def _filled(states: Tensor, *, together: bool) -> KVCache:
    cache = KVCache(LAYERS, together=together)
    cache.reset(states.shape[-2])
    for layer, (keys, values) in enumerate(states):
        cache.update(keys, values, layer)
    return cache


def _keep(cache: KVCache) -> Tensor:
    cache.length = CONTEXT
    cache.keep(PATH)
    return cache.rows(LAYERS - 1)[1]


def _times(plain: Callable[[], Any], ours: Callable[[], Any], turn: int) -> list[int]:
    spent = {}
    for index in (0, 1) if turn % 2 else (1, 0):
        start = cpu_ns()
        (plain, ours)[index]()
        spent[index] = cpu_ns() - start
    return [spent[0], spent[1]]


def _same(plain: Any, ours: Any) -> bool:
    if isinstance(plain, tuple):
        return all(_same(*pair) for pair in zip(plain, ours, strict=True))
    return torch.equal(plain, ours)


if __name__ == "__main__":
    main()

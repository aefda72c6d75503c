"""One target forward of M rows behind a text: the stock module, our loop on it, and the fused runtime, interleaved.

Four arms on the same weights: the stock module with transformers' own ``DynamicCache`` (what ``generate`` runs), our
target on it (``hf``), ``fused`` with plain weights, and ``fused`` with prepacked ones. Every round runs all arms for
all M, in an order that rotates. A ratio is the median over rounds of stock's time over the arm's in the same round,
with the quartiles. CPU time stands beside wall time, since on a shared machine only the first is the process's own.

    python -m scripts.benchmarks.forward --rounds 20 --dtype bfloat16 --threads 1
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from tqdm import tqdm
from transformers import DynamicCache

from bench.measure.clock import cpu_ns, now_ns
from bench.records import hardware, provenance
from methods.decode.target import Target
from methods.decode.tree import chain
from methods.runtime import fused
from scripts.benchmarks import results_file
from scripts.benchmarks.lossless import TASKS, load_target, setup_of_task

STOCK = "stock"
Arm = Callable[[torch.Tensor], torch.Tensor]


def main() -> None:
    """Measure, print, write."""
    options = _arguments()
    torch.set_num_threads(options.threads)
    loaded = load_target(setup_of_task("smollm2_135m", TASKS[0]), options.dtype)
    random = torch.Generator().manual_seed(0)
    text = torch.randint(loaded.target.vocab, (options.context + max(options.rows),), generator=random)
    arms, stock_cache = _arms(loaded.target, text[: options.context])
    times: dict[str, dict[str, list[list[int]]]] = {}
    agree: dict[str, float] = {}
    for turn in tqdm(range(options.rounds + 1)):
        for count in options.rows:
            rows = text[options.context : options.context + count]
            names = [*arms][turn % len(arms) :] + [*arms][: turn % len(arms)]
            logits = {}
            for name in names:
                wall, cpu = now_ns(), cpu_ns()
                logits[name] = arms[name](rows)
                spent = [now_ns() - wall, cpu_ns() - cpu]
                if name == STOCK:
                    stock_cache.crop(-count)  # the others' caches only count a row once it is kept
                if turn:  # the first round warms every shape up
                    times.setdefault(str(count), {}).setdefault(name, []).append(spent)
            for name in names:
                differs = float((logits[name].float() - logits[STOCK].float()).abs().max())
                agree[name] = max(agree.get(name, 0.0), differs)
    report = {
        "machine": hardware.describe(),
        "provenance": provenance.describe(),
        "dtype": options.dtype,
        "context": options.context,
        "threads": options.threads,
        "rounds": options.rounds,
        "packed": fused.can_pack(loaded.target.dtype),
        "largest_logit_difference_to_stock": agree,
        "ratios": {count: {name: _ratio(found, name) for name in found} for count, found in times.items()},
        "wall_and_cpu_ns": times,
    }
    path = results_file.write(report, options.results, f"forward-{options.dtype}.json")
    print(f"{options.dtype}, context {options.context}, {options.threads} threads, {options.rounds} rounds; CPU ms")
    for count, found in report["ratios"].items():
        cells = [f"{name} {one['cpu_ms']:.1f} ({one['cpu'][1]:.2f}x [{one['cpu'][0]:.2f}, {one['cpu'][2]:.2f}])"
                 for name, one in found.items()]  # fmt: skip
        print(f"M={count}: {', '.join(cells)}")
    print(json.dumps({"written": str(path), "largest_logit_difference_to_stock": agree}))


def _arms(hf: Target, prompt: torch.Tensor) -> tuple[dict[str, Arm], DynamicCache]:
    packed = Target(hf.model, runtime="fused")
    with mock.patch.object(fused, "can_pack", return_value=False):
        plain = Target(hf.model, runtime="fused")
    stock_cache = DynamicCache()
    with torch.inference_mode():
        hf.model(input_ids=prompt[None], past_key_values=stock_cache, use_cache=True)

    @torch.inference_mode()
    def stock(rows: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = hf.model(input_ids=rows[None], past_key_values=stock_cache, use_cache=True).logits[0]
        return logits

    def through(target: Target) -> Arm:
        target.prefill(prompt, capacity=len(prompt) + 64)

        @torch.inference_mode()
        def forward(rows: torch.Tensor) -> torch.Tensor:
            tree = chain(len(rows) - 1, target.device)
            return target.logits(target.forward(rows, tree.depths, tree.mask))

        return forward

    return {STOCK: stock, "hf": through(hf), "fused": through(plain), "fused, packed": through(packed)}, stock_cache


def _ratio(found: dict[str, list[list[int]]], name: str) -> dict[str, Any]:
    """Stock's time over this arm's, round by round: quartiles; and the arm's median time."""
    base, ours = np.array(found[STOCK], dtype=float), np.array(found[name], dtype=float)
    quartiles = np.percentile(base / ours, [25, 50, 75], axis=0)
    wall_ms, cpu_ms = np.median(ours, axis=0) / 1e6
    return {"wall": [*quartiles[:, 0]], "cpu": [*quartiles[:, 1]], "wall_ms": float(wall_ms), "cpu_ms": float(cpu_ms)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 8, 16, 26, 60])
    parser.add_argument("--context", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    results_file.add_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Our loop against transformers' ``generate``: the same model object, dtype and prompts, interleaved, paired by prompt.

Speedup tables made with a slow loop measure the loop, so ours must be no slower than what people use today: vanilla
against ``generate``, PLD against ``generate(prompt_lookup_num_tokens=10)`` with the same n-gram length. Prints each
ratio of tokens/s (median over prompts, 95 % bootstrap interval) and writes them with every timing to
results/bench/<dtype>.json.

    python scripts/bench_generate.py --per-task 4 --dtype bfloat16
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from check_lossless import TASKS, generate, load_target, setup_of_task
from tqdm import tqdm

import methods
from bench import hardware, prompts, provenance, tasks
from bench.records import write_atomically
from bench.timing import Stopwatch
from methods.base import Request, Sampling
from methods.decoding import decode
from methods.loading import Loaded

PAIRS = (("vanilla", "generate"), ("pld", "generate with prompt lookup"))
LOOKUP = {"num_draft": 10, "max_ngram": 2, "variant": "hf"}
"""transformers' own defaults for prompt lookup, on both sides."""


def main() -> None:
    """Measure, print, write."""
    options = _arguments()
    loaded = load_target(setup_of_task("smollm2_135m", TASKS[0]), options.dtype)
    arms = _arms(loaded)
    runs: list[dict[str, Any]] = []
    questions = [
        (task, question)
        for task in TASKS
        for question in tasks.load(setup_of_task("smollm2_135m", task, options.per_task).task)
    ]
    for number, (task, question) in enumerate(tqdm(questions)):
        ids = prompts.render(loaded.tokenizer, "tokenizer", question.turns, [])
        request = Request(ids, options.tokens, loaded.eos_ids, Sampling(0.0), question.id)
        names = list(arms)
        order = names[number % len(names) :] + names[: number % len(names)]
        timed = {name: _time(arms[name], request) for name in order}
        runs.append({"task": task, "question": question.id, "order": order, "arms": timed})
    report = {
        "machine": hardware.describe(),
        "provenance": provenance.describe(),
        "dtype": options.dtype,
        "tokens": options.tokens,
        "ratios": {f"{ours} / {theirs}": _ratio(runs, ours, theirs) for ours, theirs in PAIRS},
        "runs": runs,
    }
    path = Path("results/bench") / f"generate-{options.dtype}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(report, indent=1) + "\n")
    print(hardware.kind(report["machine"]), options.dtype, f"{len(runs)} prompts, {options.tokens} new tokens")
    for name, ratio in report["ratios"].items():
        low, high = ratio["interval"]
        print(f"{name}: {ratio['median']:.3f} [{low:.3f}, {high:.3f}], same ids on {ratio['same_ids']}/{len(runs)}")
    print(json.dumps({"written": str(path)}))


def _arms(loaded: Loaded) -> dict[str, Callable[[Request], list[int]]]:
    def ours(name: str, knobs: dict[str, Any]) -> Callable[[Request], list[int]]:
        drafter = methods.load(name, knobs, loaded.target)
        return lambda request: [token for step in decode(loaded.target, drafter, request) for token in step.tokens]

    def theirs(**options: Any) -> Callable[[Request], list[int]]:
        return lambda request: generate(loaded, request, **options)

    lookup = {"prompt_lookup_num_tokens": LOOKUP["num_draft"], "max_matching_ngram_size": LOOKUP["max_ngram"]}
    return {
        "vanilla": ours("vanilla", {}),
        "generate": theirs(),
        "pld": ours("pld", LOOKUP),
        "generate with prompt lookup": theirs(**lookup),
    }


def _time(arm: Callable[[Request], list[int]], request: Request) -> dict[str, Any]:
    watch = Stopwatch(torch.cuda.synchronize if torch.cuda.is_available() else None)
    watch.start()
    output = arm(request)
    watch.step()
    return {"output_ids": output, "ns": watch.step_ends_ns[-1]}


def _ratio(runs: list[dict[str, Any]], ours: str, theirs: str) -> dict[str, Any]:
    """Median over prompts of our tokens/s over theirs, resampling prompts for the interval."""

    def speed(run: dict[str, Any], name: str) -> float:
        return len(run["arms"][name]["output_ids"]) / run["arms"][name]["ns"]

    ratios = np.array([speed(run, ours) / speed(run, theirs) for run in runs])
    index = np.random.default_rng(0).integers(0, len(ratios), size=(2000, len(ratios)))
    low, high = np.percentile(np.median(ratios[index], axis=1), [2.5, 97.5])
    same = sum(run["arms"][ours]["output_ids"] == run["arms"][theirs]["output_ids"] for run in runs)
    return {"median": float(np.median(ratios)), "interval": [float(low), float(high)], "same_ids": same}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-task", type=int, default=4, help="questions per task, evenly spaced")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per question")
    parser.add_argument("--dtype", default="bfloat16")
    return parser.parse_args()


if __name__ == "__main__":
    main()

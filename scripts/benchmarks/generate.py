"""Our loop against transformers' ``generate``: the same model object, dtype and prompts, interleaved, paired by prompt.

Speedup tables made with a slow loop measure the loop, so ours must be no slower than what people use today: vanilla
against ``generate``, PLD against ``generate(prompt_lookup_num_tokens=10)`` with the same n-gram length, SpS against
``generate(assistant_model=...)`` with the same draft and as many tokens drafted a cycle. ``--runtime`` says what our
arms run on; ``generate`` always calls the stock module. Prints each ratio of tokens/s (median over prompts, 95 %
bootstrap interval) and writes them with every timing to results/bench/generate-<runtime>-<dtype>.json.

    python -m scripts.benchmarks.generate --per-task 4 --dtype bfloat16 --runtime fused
    python -m scripts.benchmarks.generate --pairs sps --draft FOLDER --gamma 3

Without ``--draft`` the draft is the one that came with the model; ``--draft-layers N`` takes the target's own first N
layers with its norm and head instead, which draft badly on both sides alike.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tqdm import tqdm

import methods
from bench.measure import prompts
from bench.measure.clock import Stopwatch
from bench.plan import questions as tasks
from bench.records import hardware, provenance
from methods.base import Drafter, Request, Sampling
from methods.decode.loop import decode
from methods.decode.target import RUNTIMES, Target
from methods.loading.model import Loaded
from scripts.benchmarks import results_file
from scripts.benchmarks.lossless import TASKS, generate, load_target, setup_of_task

PAIRS = {
    "vanilla": "generate",
    "pld": "generate with prompt lookup",
    "sps": "generate with assistant",
}
LOOKUP = {"num_draft": 10, "max_ngram": 2, "variant": "hf"}
"""transformers' own defaults for prompt lookup, on both sides."""

Arm = Callable[[Request], list[int]]


def main() -> None:
    """Measure, print, write."""
    options = _arguments()
    loaded = load_target(setup_of_task("smollm2_135m", TASKS[0]), options.dtype, options.runtime)
    arms = _arms(loaded, options)
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
        if not runs:
            for name in names:
                arms[name](request)  # first calls allocate, import and prepack
        order = names[number % len(names) :] + names[: number % len(names)]
        timed = {name: _time(arms[name], request) for name in order}
        runs.append({"task": task, "question": question.id, "order": order, "arms": timed})
    report = {
        "machine": hardware.describe(),
        "provenance": provenance.describe(),
        "threads": torch.get_num_threads(),
        "dtype": options.dtype,
        "runtime": options.runtime,
        "tokens": options.tokens,
        "gamma": options.gamma,
        "draft": _draft_name(options),
        "ratios": {f"{ours} / {PAIRS[ours]}": _ratio(runs, ours, PAIRS[ours]) for ours in options.pairs},
        "runs": runs,
    }
    path = results_file.write(report, options.results, f"generate-{options.runtime}-{options.dtype}.json")
    kind = hardware.kind(report["machine"])
    print(kind, options.dtype, f"runtime={options.runtime}, {len(runs)} prompts, {options.tokens} new tokens")
    for name, ratio in report["ratios"].items():
        low, high = ratio["interval"]
        speeds = ", ".join(f"{speed:.1f}" for speed in ratio["tokens_per_s"])
        print(f"{name}: {ratio['median']:.3f} [{low:.3f}, {high:.3f}] ({speeds} tokens/s), ", end="")
        print(f"same ids on {ratio['same_ids']}/{len(runs)}")
    print(json.dumps({"written": str(path)}))


def _arms(loaded: Loaded, options: argparse.Namespace) -> dict[str, Arm]:
    target = loaded.target

    def ours(drafter: Drafter) -> Arm:
        return lambda request: [token for step in decode(target, drafter, request) for token in step.tokens]

    def theirs(**settings: Any) -> Arm:
        return lambda request: generate(loaded, request, **settings)

    arms: dict[str, Arm] = {}
    if "vanilla" in options.pairs:
        arms |= {"vanilla": ours(methods.load("vanilla", {}, target)), PAIRS["vanilla"]: theirs()}
    if "pld" in options.pairs:
        lookup = {"prompt_lookup_num_tokens": LOOKUP["num_draft"], "max_matching_ngram_size": LOOKUP["max_ngram"]}
        arms |= {"pld": ours(methods.load("pld", LOOKUP, target)), PAIRS["pld"]: theirs(**lookup)}
    if "sps" in options.pairs:
        with tempfile.TemporaryDirectory() as folder:
            weights: Any = options.draft
            if options.draft_layers:
                weights = str(first_layers(target, options.draft_layers, Path(folder)))
            elif not weights:
                weights = setup_of_task("smollm2_135m", TASKS[0], method="sps").methods["sps"]["weights"]
            knobs = {"weights": weights, "num_draft": options.gamma, "schedule": "constant"}
            drafter: Any = methods.load("sps", knobs, target, loaded.tokenizer)
        arms |= {"sps": ours(drafter), PAIRS["sps"]: theirs(assistant_model=_assistant(drafter, options.gamma))}
    return arms


def first_layers(target: Target, layers: int, folder: Path) -> Path:
    """Write the target's first layers and its norm as a draft that shares its embedding."""
    wanted = tuple(f"model.layers.{layer}." for layer in range(layers))
    kept = {
        name: tensor.clone()
        for name, tensor in target.model.state_dict().items()
        if name.startswith((*wanted, "model.norm."))
    }
    save_file(kept, folder / "model.safetensors")
    shape = {"num_hidden_layers": layers, "intermediate_size": target.config.intermediate_size}
    (folder / "config.json").write_text(json.dumps({**shape, "shares_embedding": True}))
    return folder


def _draft_name(options: argparse.Namespace) -> str:
    if options.draft_layers:
        return f"the target's first {options.draft_layers} layers"
    return "given" if options.draft else "shipped"


def _assistant(drafter: Any, gamma: int) -> Any:
    """The draft's stock module, told to draft ``gamma`` tokens always, as ours does."""
    model = drafter.draft.model
    model.generation_config.num_assistant_tokens = gamma
    model.generation_config.num_assistant_tokens_schedule = "constant"
    model.generation_config.assistant_confidence_threshold = 0.0
    return model


def _time(arm: Arm, request: Request) -> dict[str, Any]:
    watch = Stopwatch(torch.cuda.synchronize if torch.cuda.is_available() else None)
    watch.start()
    output = arm(request)
    watch.step()
    return {"output_ids": output, "ns": watch.step_ends_ns[-1]}


def _ratio(runs: list[dict[str, Any]], ours: str, theirs: str) -> dict[str, Any]:
    """Median over prompts of our tokens/s over theirs, resampling prompts for the interval; and both median speeds."""

    def speeds(name: str) -> Any:
        return np.array([len(run["arms"][name]["output_ids"]) / run["arms"][name]["ns"] * 1e9 for run in runs])

    ratios = speeds(ours) / speeds(theirs)
    index = np.random.default_rng(0).integers(0, len(ratios), size=(2000, len(ratios)))
    low, high = np.percentile(np.median(ratios[index], axis=1), [2.5, 97.5])
    same = sum(run["arms"][ours]["output_ids"] == run["arms"][theirs]["output_ids"] for run in runs)
    return {
        "median": float(np.median(ratios)),
        "interval": [float(low), float(high)],
        "tokens_per_s": [float(np.median(speeds(name))) for name in (ours, theirs)],
        "same_ids": same,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-task", type=int, default=4, help="questions per task, evenly spaced")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per question")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--runtime", default="hf", choices=RUNTIMES, help="of our arms")
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS), choices=list(PAIRS))
    parser.add_argument("--gamma", type=int, default=5, help="tokens drafted a cycle by sps and by the assistant")
    parser.add_argument("--draft", help="sps's draft: a folder; default: the shipped one")
    parser.add_argument("--draft-layers", type=int, default=0, help="instead: so many of the target's first layers")
    results_file.add_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Does every method give vanilla's tokens, and vanilla those of transformers' generate, on the real model?

In float32 the answer should be yes for every question: rows computed together differ from rows computed alone by
rounding only, and float32 leaves room. Built-in questions, one line per task and setting, exit 1 at the first
difference.

    python -m scripts.benchmarks.lossless                                     vanilla against generate, T=0
    python -m scripts.benchmarks.lossless --methods pld lookahead --per-task 4 --decode greedy t1 t0.7 t1-top-p0.9
    python -m scripts.benchmarks.lossless --methods eagle2 --weights eagle2=FOLDER
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from tqdm import tqdm

import methods
from bench.measure import prompts
from bench.plan import questions
from bench.plan.config import setup_of
from bench.plan.schema import Setup
from methods.base import Drafter, Request, Sampling
from methods.common.paths import CONF
from methods.decode.loop import decode
from methods.loading.model import Loaded, Source, load_model

TASKS = ("mt_bench", "humaneval", "gsm8k", "alpaca", "cnn_dm", "nq")
GENERATE = "generate"

DECODES = {
    "greedy": Sampling(0.0),
    "t1": Sampling(1.0),
    "t0.7": Sampling(0.7),
    "t1-top-p0.9": Sampling(1.0, top_p=0.9),
}


def main() -> int:
    """Compare and print; the last line is JSON."""
    options = _arguments()
    first = setup_of_task(options.model, TASKS[0])
    loaded = load_target(first, options.dtype)
    drafters = {name: _drafter(name, options, loaded) for name in options.methods if name != GENERATE}
    vanilla = methods.load("vanilla", {}, loaded.target)
    counts: dict[str, list[int]] = {}
    differ = []
    for task in options.tasks:
        setup = setup_of_task(options.model, task, options.per_task)
        bar = tqdm(questions.load(setup.task), desc=task)
        for question in bar:
            for name in options.decode:
                ids = prompts.render(loaded.tokenizer, setup.model.template, question.turns, [])
                request = Request(ids, options.tokens, loaded.eos_ids, DECODES[name], f"{task}/{question.id}")
                expected = _tokens(loaded, vanilla, request)
                for method, tokens in _others(loaded, drafters, request, generate_too=GENERATE in options.methods):
                    same, total = counts.setdefault(f"{method} {task} {name}", [0, 0])
                    counts[f"{method} {task} {name}"] = [same + (tokens == expected), total + 1]
                    if tokens != expected:
                        differ.append(f"{method} {name} {task}/{question.id}")
            bar.set_postfix(differ=len(differ))
    for key, (same, total) in counts.items():
        print(f"{key}: {same}/{total} identical")
    print(json.dumps({"dtype": options.dtype, "tokens": options.tokens, "counts": counts, "differ": differ}))
    return 1 if differ else 0


def _others(
    loaded: Loaded, drafters: dict[str, Drafter], request: Request, *, generate_too: bool
) -> Iterator[tuple[str, list[int]]]:
    """Each method's tokens, and generate's where it is comparable (its sampler draws from another stream)."""
    if request.sampling.greedy and generate_too:
        yield GENERATE, generate(loaded, request)
    for name, drafter in drafters.items():
        if request.sampling.greedy or not drafter.rejection:
            yield name, _tokens(loaded, drafter, request)


def _tokens(loaded: Loaded, drafter: Drafter, request: Request) -> list[int]:
    return [token for step in decode(loaded.target, drafter, request) for token in step.tokens]


def generate(loaded: Loaded, request: Request, **options: Any) -> list[int]:
    """The new tokens of transformers' greedy ``generate``, with every setting that a hub config could change given."""
    ids = torch.tensor([request.prompt_ids], device=loaded.target.device)
    output = loaded.target.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=request.max_new_tokens,
        eos_token_id=sorted(request.eos_ids),
        pad_token_id=min(request.eos_ids),
        **options,
    )
    tokens: list[int] = output[0, ids.shape[1] :].tolist()
    return tokens


def setup_of_task(model: str, task: str, count: int | None = None, method: str = "vanilla") -> Setup:
    """One task's configuration, outside a Hydra run."""
    amount = "null" if count is None else count
    overrides = [f"model={model}", f"task={task}", f"task.count={amount}", f"method=[{method}]"]
    with initialize_config_dir(str(CONF), version_base=None):
        return setup_of(compose("config", overrides=overrides))


def load_target(setup: Setup, dtype: str, runtime: str = "hf") -> Loaded:
    """The model of a configuration, in a dtype and on a runtime of choice."""
    model = setup.model
    source = Source(model.kind, model.id, model.revision, model.file, model.sha256)
    return load_model(source, dtype=dtype, runtime=runtime)


def _drafter(name: str, options: argparse.Namespace, loaded: Loaded) -> Drafter:
    """A method in its published settings, with the model's own heads unless ``--weights`` gives others."""
    knobs = setup_of_task(options.model, TASKS[0], method=name).methods.get(name, {})
    given = dict(pair.split("=", 1) for pair in options.weights)
    if name in given:
        knobs = {**knobs, "weights": given[name]}
    return methods.load(name, knobs, loaded.target, loaded.tokenizer)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2_135m")
    parser.add_argument("--methods", nargs="*", default=[GENERATE], help="names; 'generate' is transformers' own")
    parser.add_argument("--weights", nargs="*", default=[], metavar="METHOD=FOLDER")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=TASKS)
    parser.add_argument("--decode", nargs="*", default=["greedy"], choices=list(DECODES))
    parser.add_argument("--per-task", type=int, help="questions per task, evenly spaced; default: all")
    parser.add_argument("--tokens", type=int, default=32, help="new tokens per question")
    parser.add_argument("--dtype", default="float32")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

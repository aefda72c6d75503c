"""What a cycle costs and where it goes: per method, against tree rows, against the context, and the bare draft phase.

Every method runs in the ordinary loop on the small model. Arms are interleaved: each runs a burst of cycles a round,
in an order that rotates. One more arm is ``stock``: one row through the stock module with ``DynamicCache``, the step
of ``generate``. Times are per cycle, medians over rounds with quartiles, wall and CPU. Written to
results/bench/cycle-<runtime>-<dtype>.json, with what was run.

    python -m scripts.benchmarks.cycle --runtime fused
    python -m scripts.benchmarks.cycle --arms vanilla eagle2 eagle2:total_tokens=15,depth=4,draft_vocab=8192
    python -m scripts.benchmarks.cycle --only contexts --contexts 256 1024 4096 --arms vanilla eagle2

``methods`` reads real text of ``--context`` tokens. ``contexts`` fills the caches with random keys and values instead
of reading a prompt (time does not depend on them, acceptance does) and compares the slopes of the cycle and of the
draft's forwards with that of the target's own forward in the same cycles. ``draft`` holds eagle2's draft phase against
the same calls of the head on the same tensors and nothing else.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformers import DynamicCache

import methods
from bench.measure import prompts
from bench.plan import questions
from bench.records import hardware, provenance
from methods.base import Request
from methods.decode.target import RUNTIMES, Target
from methods.loading.model import Loaded
from scripts.benchmarks import results_file
from scripts.benchmarks.cycle_meter import Arm, Burst, Meter, clock
from scripts.benchmarks.lossless import TASKS, load_target, setup_of_task

STOCK = "stock, one row"
ARMS = (
    "vanilla",
    "pld",
    "lookahead",
    "sps",
    "medusa",
    "hydra",
    "eagle",
    "eagle2",
    "eagle2:total_tokens=7",
    "eagle2:total_tokens=15",
    "eagle2:total_tokens=25",
    "eagle2:total_tokens=40",
    "eagle2:total_tokens=15,depth=4,draft_vocab=8192",
)
PARTS = ("methods", "contexts", "draft")
SLOPES = ("total", "target", "draft")
CONTEXT_ARMS = ("vanilla", "eagle2", "eagle2:total_tokens=15,depth=4,draft_vocab=8192")


def main() -> None:
    """Measure, print, write."""
    options = _arguments()
    loaded = load_target(setup_of_task("smollm2_135m", TASKS[0]), options.dtype, options.runtime)
    meter = Meter()
    for name in ("forward", "logits"):
        meter.wrap(loaded.target, name, "target")
    report: dict[str, Any] = {
        "machine": hardware.describe(),
        "provenance": provenance.describe(),
        "threads": torch.get_num_threads(),
        "dtype": options.dtype,
        "runtime": options.runtime,
        "rounds": options.rounds,
        "cycles_per_burst": options.burst,
        "context": options.context,
    }
    drafters = {label: _drafter(label, loaded, options.weights) for label in options.arms}
    if "methods" in options.only:
        report["methods"] = _methods(loaded, meter, drafters, options)
    if "contexts" in options.only:
        chosen = {label: drafters[label] for label in CONTEXT_ARMS if label in drafters} or drafters
        report["contexts"] = _contexts(loaded, meter, chosen, options)
    if "draft" in options.only and (label := next((one for one in drafters if one.startswith("eagle2")), "")):
        report["draft"] = {"arm": label, **_draft_phase(loaded, meter, drafters[label], options)}
    path = results_file.write(report, options.results, f"cycle-{options.runtime}-{options.dtype}.json")
    _print(report)
    print(json.dumps({"written": str(path)}))


def _methods(loaded: Loaded, meter: Meter, drafters: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Cycles on real text, all arms interleaved, and the stock module's one-row forward in every round."""
    requests = [Request(ids, options.tokens, question=str(k)) for k, ids in enumerate(_texts(loaded, options))]
    for drafter in drafters.values():
        meter.watch(drafter)
    arms = {label: Arm(drafter, loaded.target, meter, requests) for label, drafter in drafters.items()}
    stock = _Stock(loaded, requests[0].prompt_ids)
    names = [STOCK, *arms]
    bursts: dict[str, list[Burst]] = {name: [] for name in names}
    for turn in tqdm(range(options.rounds + 1), desc="methods"):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            burst = stock.run(options.burst) if name == STOCK else arms[name].run(options.burst)
            if turn:  # the first round warms every shape up
                bursts[name].append(burst)
    one_row = np.array([burst.ms() for burst in bursts[STOCK]])
    vanilla = np.array([burst.ms() for burst in bursts.get("vanilla", bursts[STOCK])])
    return {name: _summary(found, one_row, vanilla) for name, found in bursts.items()}


def _summary(bursts: list[Burst], one_row: np.ndarray, vanilla: np.ndarray) -> dict[str, Any]:
    """Medians and quartiles over rounds; shares are of the sums; ratios are of the same round. Pairs: wall, CPU."""
    ms = np.array([burst.ms() for burst in bursts])
    whole = np.sum([burst.total for burst in bursts], axis=0)
    cycles = sum(burst.cycles for burst in bursts)
    share = {part: np.sum([getattr(burst, part) for burst in bursts], axis=0) / whole for part in ("target", "draft")}
    return {
        "cycle_ms": _quartiles(ms),
        "target_share": share["target"].tolist(),
        "draft_share": share["draft"].tolist(),
        "overhead_share": (1 - share["target"] - share["draft"]).tolist(),
        "rows": sum(burst.rows for burst in bursts) / cycles,
        "draft_calls": sum(burst.draft_calls for burst in bursts) / cycles,
        "tau": sum(burst.emitted for burst in bursts) / cycles,
        "cycles": cycles,
        "over_stock_row": _quartiles(ms / one_row),
        "over_vanilla": _quartiles(ms / vanilla),
    }


def _contexts(loaded: Loaded, meter: Meter, drafters: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Cycle and target forward against the context; slopes by least squares over the medians."""
    target, prefill = loaded.target, loaded.target.prefill
    found: dict[str, Any] = {}
    contexts = [context for context in options.contexts if context + options.tokens < target.context]
    target.prefill = lambda ids, *, capacity: _blank(target, prefill, ids, capacity)  # type: ignore[method-assign]
    for context in tqdm(contexts, desc="contexts"):
        random = torch.Generator().manual_seed(context)
        ids = tuple(torch.randint(target.vocab, (context,), generator=random).tolist())
        requests = [Request(ids, options.tokens, question=str(context))]
        arms = {label: Arm(drafter, target, meter, requests) for label, drafter in drafters.items()}
        bursts: dict[str, list[Burst]] = {label: [] for label in arms}
        for turn in range(options.rounds + 1):
            for label, arm in arms.items():
                burst = arm.run(options.burst)
                if turn:
                    bursts[label].append(burst)
        for label, each in bursts.items():
            parts = {part: np.median([b.ms(part) for b in each], axis=0).tolist() for part in SLOPES}
            found.setdefault(label, {})[context] = parts
    target.prefill = prefill  # type: ignore[method-assign]

    def slope(by_context: dict[int, Any], part: str, clock_index: int) -> float:
        return float(np.polyfit(list(by_context), [parts[part][clock_index] for parts in by_context.values()], 1)[0])

    slopes = {}
    for label, by_context in found.items():
        if len(by_context) > 1:
            slopes[label] = {part: [slope(by_context, part, c) for c in (0, 1)] for part in SLOPES}
    return {"ms": found, "slope_ms_per_token": slopes}


def _blank(target: Target, prefill: Any, ids: torch.Tensor, capacity: int) -> torch.Tensor:
    """Random keys, values and hidden states in place of a prompt's: the first token is read, to make the buffers."""
    hidden = prefill(ids[:1], capacity=capacity)
    target.cache.length = 0
    for layer in range(target.cache.layer_count):
        target.cache.length = 1
        pair = target.cache.rows(layer)
        keys, values = (torch.randn(1, one.shape[0], len(ids), one.shape[2]).to(one) for one in pair)
        target.cache.length = 0
        target.cache.update(keys, values, layer)
    target.cache.length = len(ids)
    return torch.randn(len(ids), hidden.shape[1]).to(hidden)


@torch.inference_mode()
def _draft_phase(loaded: Loaded, meter: Meter, drafter: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Time of ``propose`` over the time of its own calls of the head, repeated on the same tensors."""
    request = Request(_texts(loaded, options)[0], options.tokens)
    arm, head = Arm(drafter, loaded.target, meter, [request]), drafter._head
    contexts: list[Any] = []
    calls: list[tuple[Any, int, tuple[Any, ...]]] = []
    propose, run, logits = drafter.propose, head._run, head.draft.logits

    def noting(function: Any) -> Any:
        def call(*args: Any) -> Any:
            calls.append((function, head.cache.length, args))
            return function(*args)

        return call

    def keeping(context: Any) -> Any:
        contexts.append(context)
        return propose(context)

    drafter.propose = keeping
    arm.run(2)
    drafter.propose = propose
    before, times = head.cache.length, []
    head._run, head.draft.logits = noting(run), noting(logits)
    propose(contexts[-1])
    head._run, head.draft.logits = run, logits
    for _ in tqdm(range(options.rounds * options.burst), desc="draft"):
        head.cache.length = before
        start = clock()
        propose(contexts[-1])
        middle = clock()
        for function, length, args in calls:
            head.cache.length = length
            function(*args)
        times.append([middle - start, clock() - middle])
    phase, bare = np.array(times, dtype=float).transpose(1, 0, 2)
    count = sum(function is run for function, _, _ in calls)
    return {
        "head_forwards": count,
        "phase_ms": _quartiles(phase / 1e6),
        "bare_ms": _quartiles(bare / 1e6),
        "phase_over_bare": _quartiles(phase / bare),
    }


class _Stock:
    """One row through the stock module, as ``generate`` calls it, again and again at the same length."""

    def __init__(self, loaded: Loaded, prompt: tuple[int, ...]) -> None:
        self._model, self._cache = loaded.target.model, DynamicCache()
        self._row = torch.tensor([prompt[-1:]], device=loaded.target.device)
        self._feed(torch.tensor([prompt], device=loaded.target.device))

    @torch.inference_mode()
    def _feed(self, ids: torch.Tensor) -> None:
        self._model(input_ids=ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)

    def run(self, cycles: int) -> Burst:
        burst = Burst()
        for number in range(cycles + 1):
            start = clock()
            self._feed(self._row)
            spent = clock() - start
            self._cache.crop(-1)
            if number:
                burst.cycles, burst.rows, burst.emitted = burst.cycles + 1, burst.rows + 1, burst.emitted + 1
                burst.total, burst.target = burst.total + spent, burst.target + spent
        return burst


def _texts(loaded: Loaded, options: argparse.Namespace) -> list[tuple[int, ...]]:
    """Real prompts laid end to end and cut into texts of one length, so that contexts do not vary with the question."""
    joined: list[int] = []
    for task in TASKS:
        for question in questions.load(setup_of_task("smollm2_135m", task, 8).task):
            joined += prompts.render(loaded.tokenizer, "tokenizer", question.turns, [])
    length = options.context
    return [tuple(joined[start : start + length]) for start in range(0, len(joined) - length + 1, length)]


def _drafter(label: str, loaded: Loaded, weights: list[str]) -> Any:
    """``name`` or ``name:knob=value,...``, with the model's own weights unless others are given."""
    name, _, settings = label.partition(":")
    knobs = dict(setup_of_task("smollm2_135m", TASKS[0], method=name).methods.get(name, {}))
    for pair in filter(None, settings.split(",")):
        knob, _, value = pair.partition("=")
        knobs[knob] = int(value) if value.isdigit() else value
    given = dict(pair.split("=", 1) for pair in weights)
    if name in given:
        knobs["weights"] = given[name]
    return methods.load(name, knobs, loaded.target, loaded.tokenizer)


def _quartiles(values: np.ndarray) -> dict[str, list[float]]:
    """First quartile, median and third, of wall and of CPU time."""
    wall, cpu = np.percentile(values, [25, 50, 75], axis=0).T.tolist()
    return {"wall": wall, "cpu": cpu}


def _print(report: dict[str, Any]) -> None:
    for name, found in report.get("methods", {}).items():
        shares = ", ".join(
            f"{part} {100 * found[f'{part}_share'][1]:.1f} %" for part in ("target", "draft", "overhead")
        )
        print(
            f"{name}: {found['cycle_ms']['wall'][1]:.1f} ms wall, {found['cycle_ms']['cpu'][1]:.1f} CPU; {shares}; "
            f"{found['over_stock_row']['cpu'][1]:.2f} x stock row, {found['over_vanilla']['cpu'][1]:.2f} x vanilla; "
            f"{found['rows']:.1f} rows, tau {found['tau']:.2f}"
        )
    contexts = report.get("contexts", {"ms": {}, "slope_ms_per_token": {}})
    for label, by_context in contexts["ms"].items():
        line = ", ".join(
            f"{context}: {one['total'][1]:.1f} ({one['target'][1]:.1f})" for context, one in by_context.items()
        )
        print(f"{label}: CPU ms a cycle (target) by context: {line}")
    for label, slopes in contexts["slope_ms_per_token"].items():
        whole, draft = (slopes[part][1] / slopes["target"][1] for part in ("total", "draft"))
        print(f"{label}: slope of the cycle over the target's {whole:.3f}, of that the draft's forwards {draft:.3f}")
    if found := report.get("draft"):
        print(f"{found['arm']}: draft phase {found['phase_over_bare']['cpu'][1]:.3f} x its head forwards bare")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", default="hf", choices=RUNTIMES)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), metavar="METHOD[:KNOB=VALUE,...]")
    parser.add_argument("--weights", nargs="*", default=[], metavar="METHOD=FOLDER")
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--burst", type=int, default=6, help="cycles of an arm before the next one's turn")
    parser.add_argument("--context", type=int, default=300, help="prompt tokens of the part 'methods'")
    parser.add_argument("--contexts", nargs="+", type=int, default=[256, 512, 1024, 2048, 4096, 8000])
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of a text")
    results_file.add_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""What a cycle of each method costs on a target of Vicuna-7B's shape: random weights, and a random EAGLE head.

Nothing is downloaded. A random head's drafts are hardly ever accepted, so this measures no speedup: it measures the
time of a cycle by phase and its energy, which depend on shapes and not on values. A cycle that takes c times vanilla's
pays where a trained head's tau is above c. Methods take turns, in an order that rotates; the first round is a warm-up.

    python -m scripts.benchmarks.gpu_shapes                      # a GPU with 18 GB, a minute; writes results/gpu/
    python -m scripts.benchmarks.gpu_shapes --runtime graph      # 32 GB: the weights are there twice while checked
    python -m scripts.benchmarks.gpu_shapes --tiny --device cpu  # the same on a toy shape, to try the script itself
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.torch import save_file
from tqdm import tqdm
from transformers import AutoModelForCausalLM, LlamaConfig

import methods
from bench.cost import gpu_specs
from bench.measure import gpu_state
from bench.measure import gpus as devices
from bench.records import hardware, provenance
from bench.records.block import Reading, Readings
from methods.base import Drafter, Request
from methods.decode.loop import decode
from methods.decode.target import RUNTIMES, Target
from scripts.benchmarks import results_file
from tests.support import heads

VICUNA_7B = {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
             "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 2048}  # fmt: skip
TINY = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 2048}  # fmt: skip
NAMES = ("vanilla", "pld", "lookahead", "eagle", "eagle2")
PHASES = ("draft", "verify", "accept", "commit")
SCALE = 0.02
"""Standard deviation of every random weight: what Llama's are initialised with, so no float16 value overflows."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    options = _arguments(arguments)
    shape = TINY if options.tiny else VICUNA_7B
    target = random_target(shape, options.dtype, options.device, options.runtime)
    found = devices.gpus(target)
    machine = torch.cuda.get_device_name(found[0]) if found else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        head = {"weights": str(write_head(Path(folder), target))}
        drafters = {name: methods.load(name, head if "eagle" in name else {}, target) for name in NAMES}
    turns, disturbed = measure(target, drafters, options.rounds, options.prompt, options.tokens)
    rows = [_row(name, turns) for name in drafters]
    weights = sum(weight.numel() * weight.element_size() for weight in target.model.parameters())
    read_per_s = weights / (rows[0]["cycle_ms"] / 1e3)
    known = gpu_specs.recognised(machine)
    peak = gpu_specs.named(known).bandwidth if known else None
    report = {
        "machine": hardware.describe() | {"device": machine},
        "provenance": provenance.describe(),
        "shape": shape,
        **{name: getattr(options, name) for name in ("runtime", "dtype", "prompt", "tokens", "rounds")},
        "weight_bytes": weights,
        "vanilla_reads_bytes_per_s": read_per_s,
        "share_of_peak_bandwidth": read_per_s / peak if peak else None,
        "disturbed": disturbed,
        "rows": rows,
        "turns": turns,
    }
    name = f"shapes-{machine.replace(' ', '-')}-{options.runtime}-{options.dtype}{'-tiny' * options.tiny}.json"
    path = results_file.write(report, options.results, name)
    print(f"{machine}, {options.runtime}, {options.dtype}")
    print(f"prompt {options.prompt}, {options.tokens} tokens, {options.rounds} rounds")
    print(pd.DataFrame(rows).to_markdown(index=False, floatfmt=".2f"))
    share = f" ({report['share_of_peak_bandwidth']:.0%} of its peak)" if peak else ""
    print(f"vanilla reads {weights / 1e9:.2f} GB a cycle, {read_per_s / 1e9:.0f} GB/s{share}")
    print(json.dumps({"written": str(path), "disturbed": disturbed}))


def random_target(shape: Mapping[str, int], dtype: str, device: str, runtime: str) -> Target:
    """A Llama of this shape, filled in place: 7B of float32 would not fit beside it."""
    config = LlamaConfig(**shape, initializer_range=SCALE, eos_token_id=None, bos_token_id=None, pad_token_id=None)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    target = Target(model.requires_grad_(False), runtime=runtime)
    target.release()
    return target


def write_head(folder: Path, target: Target) -> Path:
    """An EAGLE head in the published format, without the embedding, which is the target's own."""
    shapes, facts = heads.eagle(target)
    drawn = {
        name: torch.randn(size, device=target.device, dtype=target.dtype).mul_(SCALE).cpu()
        for name, size in shapes.items()
        if not name.startswith("embed_tokens")
    }
    save_file(drawn, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(facts))
    return folder


def measure(
    target: Target, drafters: Mapping[str, Drafter], rounds: int, prompt: int, tokens: int
) -> tuple[list[dict[str, Any]], list[str]]:
    """One turn of every method a round, each round its own random text; the round before the first warms up.

    Returns the turns and what disturbed the GPU meanwhile, which nothing here measures again.
    """
    found = devices.gpus(target)
    read = gpu_state.reader(devices.uuids(found))
    names = list(drafters)
    turns: list[dict[str, Any]] = []
    readings: list[list[Reading]] = []
    for number in tqdm(range(rounds + 1), unit="round"):
        text = torch.randint(target.vocab, (prompt,), generator=torch.Generator().manual_seed(number)).tolist()
        for name in names[number % len(names) :] + names[: number % len(names)]:
            watch, steps = devices.stopwatch(found), []
            before = read()
            watch.start()
            for step in decode(target, drafters[name], Request(tuple(text), tokens, question=str(number)), watch.phase):
                watch.step()
                steps.append(step)
            after = read()
            turn = {
                "method": name,
                "round": number,
                "emitted": [len(step.tokens) for step in steps],
                "rows": [step.rows for step in steps],
                "end_ns": watch.step_ends_ns,
                "phases_ns": watch.phases_ns(),
            }
            if before and after:
                both = Readings(before, after)
                turn |= {"gpus": asdict(both), "joules": both.joules}
                readings += [before, after]
            if number:
                turns.append(turn)
    return turns, sorted({why for gpu in zip(*readings, strict=True) for why in gpu_state.disturbances(gpu)})


def _row(name: str, turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A method's median cycle; phases and energy (the prefill's too) are sums over its turns, a cycle."""
    ours = [turn for turn in turns if turn["method"] == name]
    times = {one: _cycles(turns, one) for one in (name, "vanilla")}
    low, cycle, high = np.percentile(times[name], [25, 50, 75])
    count = sum(len(turn["emitted"]) - 1 for turn in ours)
    energy = [turn.get("joules") for turn in ours]
    return {
        "method": name,
        "rows": float(np.mean([rows for turn in ours for rows in turn["rows"][1:]])),
        "prefill_ms": float(np.median([turn["end_ns"][0] for turn in ours])) / 1e6,
        "cycle_ms": float(cycle),
        "cycle_ms_25": float(low),
        "cycle_ms_75": float(high),
        **{f"{phase}_ms": sum(turn["phases_ns"].get(phase, 0) for turn in ours) / 1e6 / count for phase in PHASES},
        "pays_above_tau": float(cycle / np.median(times["vanilla"])),
        "tau_micro": sum(sum(turn["emitted"][1:]) for turn in ours) / count,
        "joules_per_cycle": None if None in energy else sum(one for one in energy if one) / count,
    }


def _cycles(turns: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    """Milliseconds of every cycle but each turn's first, which also reads the prompt into the draft's cache."""
    return np.concatenate([np.diff(turn["end_ns"])[1:] / 1e6 for turn in turns if turn["method"] == name])


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16", "float32"])
    parser.add_argument("--runtime", default="hf", choices=RUNTIMES)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=64)
    results_file.add_option(parser, "results/gpu")
    return parser.parse_args(given)


if __name__ == "__main__":
    main()

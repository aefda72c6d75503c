"""Plants faults in the modules that decide correctness, and asks whether the tests notice.

    python tests/support/mutation.py [--per-module 12] [--seed 0] [--module methods/decode/verify.py]

Each mutant (``mutants``) is one small change of a module, applied in a copy of the checkout (``mutation_bed``). One
that hangs counts as killed only where the original passes the same test within the same limit. Ends with 1 if fewer
than nine in ten are killed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from tests.support.mutants import Mutant, mutants
from tests.support.mutation_bed import ROOT, Bed, Outcome

FLOOR = 0.9

COVERED = {
    "methods/decode/verify.py": "decode/test_verify decode/test_rejection",
    "methods/decode/tree.py": "decode/test_tree heads/test_static_trees decode/test_verify methods/test_drafters",
    "methods/runtime/cache.py": "runtime/test_cache decode/test_target decode/test_loop"
    " train/test_texts::test_a_batch_writes_what_each_text_alone_would_be",
    "methods/decode/sampling.py": "decode/test_sampling decode/test_rejection",
    "bench/report/estimators.py": "report/test_estimators report/test_numeric_audit report/test_report",
    "bench/report/intervals.py": "report/test_intervals",
    "bench/records/block.py": "records/test_block faults/test_hostile_results",
    "bench/records/store.py": "records/test_store faults/test_hostile_results plan/test_cells records/test_lock"
    " measure/test_gpu_state measure/test_traces",
}
"""The tests of each module, cheapest first: most mutants die in the first seconds.

``methods/decode/topk.py`` is left out: most that survives there (22 of 70) takes the slower of two ways to the same
ranking.
"""

_ONE_DIMENSION = "the tensor has one dimension: its first is its last"
_ONE_TEXT = "rows() is for decoding, where the batch is one text: the first is the last"
_CHILD = "index = torch.where(is_child, torch.arange(parents.shape[0], device=parents.device), parents.shape[0])"

EQUIVALENT: dict[tuple[str, str, str], str] = {
    ("methods/decode/verify.py", _CHILD, "parents.shape[0]  ->  parents.shape[-1]"): _ONE_DIMENSION,
    ("methods/decode/verify.py", _CHILD, "parents.shape[0]  ->  parents.shape[-1]  #2"): _ONE_DIMENSION,
    (
        "methods/decode/tree.py",
        "for _ in range(max(height - 1, 0).bit_length()):",
        "max(height - 1, 0)  ->  max(height - 1, 1)",
    ): "squares the mask of a tree of height 0 or 1 once more: it is closed already, and stays as it is",
    (
        "methods/decode/tree.py",
        "children = [node for node in range(1, len(parents)) if depths[node] == depth]",
        "range(1, len(parents))  ->  range(0, len(parents))",
    ): "node 0 has depth 0, and the depths of the loop begin at 1",
    (
        "methods/runtime/cache.py",
        "return self._keys[0] is not None",
        "self._keys[0]  ->  self._keys[-1]",
    ): "asked between forwards, when all layers have buffers or none has",
    (
        "methods/runtime/cache.py",
        "rows = query_length if isinstance(query_length, int) else int(query_length.shape[0])",
        "query_length.shape[0]  ->  query_length.shape[-1]",
    ): _ONE_DIMENSION,
    (
        "methods/runtime/cache.py",
        "return keys[0, :, : self.length], values[0, :, : self.length]",
        "(0, :, :self.length)  ->  (-1, :, :self.length)",
    ): _ONE_TEXT,
}
"""Mutants that change nothing anyone could see: (module, line of the original, change) and why."""


def tests_of(module: str) -> list[str]:
    """As pytest takes them."""
    named = (one.partition("::") for one in COVERED[module].split())
    return [f"tests/{name}.py{colons}{test}" for name, colons, test in named]


def drawn(module: str, count: int, seed: int) -> list[Mutant]:
    """The module's mutants that this seed draws, in the order of its code."""
    every = mutants(module, (ROOT / module).read_text())
    keys = {(one.module, one.text, one.change) for one in every}
    for key in EQUIVALENT:
        if key[0] == module and key not in keys:
            raise SystemExit(f"EQUIVALENT names a mutant that is none any more: {key}; remove it")
    chosen = random.Random(f"{module} {seed}").sample(range(len(every)), min(count, len(every)))
    return [every[index] for index in sorted(chosen)]


def judged(bed: Bed, mutant: Mutant, usual: dict[str, float], original: str) -> Outcome:
    """How the tests of its module end under a mutant; the copy is whole again afterwards."""
    bed.write(mutant.module, mutant.source)
    try:
        found = bed.run(mutant.module, tests_of(mutant.module), usual)
    finally:
        bed.write(mutant.module, original)
    if found.verdict == "hangs" and bed.run(mutant.module, [found.test], usual).verdict != "passed":
        return replace(found, verdict="passed")  # the machine was slow: nothing is shown
    return found


def tried(bed: Bed, module: str, count: int, seed: int) -> Counter[str]:
    """Mutants of a module that were killed, that survived, and that are equivalent, each printed."""
    whole = bed.run(module, tests_of(module), {})
    if whole.verdict != "passed":
        print(bed.output.read_text())
        raise SystemExit(f"{whole.test} fails in the unchanged copy; mend it first, or nothing is shown")
    original, tally = (ROOT / module).read_text(), Counter[str]()
    for mutant in drawn(module, count, seed):
        found = judged(bed, mutant, whole.took, original)
        by = f"{found.test} {'(hangs)' if found.verdict == 'hangs' else ''}"
        alive, why = found.verdict == "passed", EQUIVALENT.get((module, mutant.text, mutant.change))
        if why and not alive:
            raise SystemExit(f"{module}:{mutant.line} {mutant.change} is no equivalent: {by} notices it")
        verdict = "equivalent" if why else "survived" if alive else "killed"
        tally[verdict] += 1
        print(f"{verdict:10} {module}:{mutant.line}  {mutant.change}  {why or by * (not alive)}", flush=True)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--per-module", type=int, default=12, metavar="N", help="mutants drawn of each module")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--module", action="append", choices=COVERED, help="only this one; may be given again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bed = Bed(Path(folder))
        totals = {module: tried(bed, module, given.per_module, given.seed) for module in given.module or COVERED}
    for module, tally in totals.items():
        print(f"{module:20} " + ", ".join(f"{tally[name]} {name}" for name in ("killed", "survived", "equivalent")))
    every = sum(totals.values(), Counter[str]())
    print(f"{every['killed']} of {every['killed'] + every['survived']} killed; nine in ten are asked for")
    return int(every["killed"] < FLOOR * (every["killed"] + every["survived"]))


if __name__ == "__main__":
    sys.exit(main())

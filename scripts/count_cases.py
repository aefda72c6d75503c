"""Counts the cases of bad and of hostile input that the tests hold, by kind: what docs/reliability.md states.

python scripts/count_cases.py            (the tests are collected, not run)
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BAD = {
    "settings and command line": ("test_bench_config.py::test_a_mistake", "test_bench_config.py::test_what_only_a_run"),
    "training's settings": ("test_train_run.py::test_a_wrong_request", "test_train_run.py::test_work_of_other"),
    "question files": (
        "test_bench_tasks.py::test_what_is_wrong_with_a_line",
        "test_bench_tasks.py::test_a_file_that_cannot_be_read",
        "test_bench_tasks.py::test_a_column_or_a_split",
        "test_bench_tasks.py::test_a_data_set_that_is_not_there",
        "test_bench_tasks.py::test_rows_that_make_no_question",
    ),
    "targets and tokenizers": ("test_bad_models.py::",),
    "heads and drafts": ("test_refusals.py::",),
    "prompts and templates": (
        "test_bench_prompts.py::test_two_bos",
        "test_bench_prompts.py::test_a_tokenizer_without",
        "test_bench_prompts.py::test_an_unknown",
        "test_templates.py::test_a_tokenizer_without_bos",
        "test_bench_session.py::test_a_prompt_too_long",
    ),
    "decoding out of range": (
        "test_sampling.py::test_sampling_out_of_range",
        "test_target.py::test_a_context_the_model",
        "test_decoding.py::test_logits_that_are_not_numbers",
        "test_decoding.py::test_a_prompt_must_leave_room",
    ),
    "out of memory": ("test_bench_session.py::test_a_method_without_memory", "test_bench_session.py::test_a_baseline"),
    "hub and lock file": ("test_prefetch.py::test_a_damaged_lock", "test_hub.py::test_what_is_not_there"),
}
HOSTILE = {
    "command line, models, tokenizers, headers, data sets": ("test_hostile_input.py::",),
    "names, links and results of a stranger": ("test_hostile_results.py::",),
    "pickles": ("test_unsafe_weights.py::",),
    "the page in a browser": (
        "test_page_browser.py::test_text_of_strangers",
        "test_page_browser.py::test_the_policy_stops",
    ),
}


def main() -> int:
    """Print the counts; 1 if a kind has none, which means that a test was renamed."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-o", "addopts=", "tests"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False).stdout  # noqa: S603
    tests = [line.removeprefix("tests/") for line in found.splitlines() if "::" in line]
    code = 0
    for title, kinds in (("bad input", BAD), ("hostile input", HOSTILE)):
        counts = Counter({kind: sum(test.startswith(starts) for test in tests) for kind, starts in kinds.items()})
        print(f"{title}: {counts.total()}")
        for kind, count in counts.items():
            print(f"  {count:4}  {kind}")
        code |= int(not all(counts.values()))
    return code


if __name__ == "__main__":
    sys.exit(main())

"""Counts the cases of bad and of hostile input that the tests hold, by kind: what docs/reliability.md states.

python -m scripts.benchmarks.count_cases            (the tests are collected, not run)
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BAD = {
    "settings and command line": ("plan/test_config.py::test_a_mistake", "plan/test_config.py::test_what_only_a_run"),
    "training's settings": ("train/test_run.py::test_a_wrong_request", "train/test_run.py::test_work_of_other"),
    "question files": (
        "plan/test_questions.py::test_what_is_wrong_with_a_line",
        "plan/test_questions.py::test_a_file_that_cannot_be_read",
        "plan/test_questions.py::test_a_column_or_a_split",
        "plan/test_questions.py::test_a_data_set_that_is_not_there",
        "plan/test_questions.py::test_rows_that_make_no_question",
    ),
    "targets and tokenizers": ("loading/test_bad_models.py::",),
    "heads and drafts": ("heads/test_refusals.py::",),
    "prompts and templates": (
        "measure/test_prompts.py::test_two_bos",
        "measure/test_prompts.py::test_a_tokenizer_without",
        "measure/test_prompts.py::test_an_unknown",
        "plan/test_templates.py::test_a_tokenizer_without_bos",
        "measure/test_session.py::test_a_prompt_too_long",
    ),
    "decoding out of range": (
        "decode/test_sampling.py::test_sampling_out_of_range",
        "decode/test_target.py::test_a_context_the_model",
        "decode/test_loop.py::test_logits_that_are_not_numbers",
        "decode/test_loop.py::test_a_prompt_must_leave_room",
    ),
    "out of memory": (
        "measure/test_session.py::test_a_method_without_memory",
        "measure/test_session.py::test_a_baseline",
    ),
    "hub and lock file": ("plan/test_prefetch.py::test_a_damaged_lock", "loading/test_hub.py::test_what_is_not_there"),
}
HOSTILE = {
    "command line, models, tokenizers, headers, data sets": ("faults/test_hostile_input.py::",),
    "names, links and results of a stranger": ("faults/test_hostile_results.py::",),
    "pickles": ("loading/test_unsafe_weights.py::",),
    "the page in a browser": (
        "browser/test_page_browser.py::test_text_of_strangers",
        "browser/test_page_browser.py::test_the_policy_stops",
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

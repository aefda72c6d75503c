"""What a cycle of each method costs in forwards and rows, counted on real steps: the table in docs/methods.md.

Runs every method on the small model with heads of random weights in the published formats (work per cycle depends on
the settings, not on how well a head drafts), counts the rows of each target forward and each call of the draft's own
network, and prints a Markdown table of means per cycle.

    python -m scripts.benchmarks.work_per_cycle
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

import methods
from bench.measure import prompts
from bench.plan import questions
from methods.base import Request
from methods.decode.loop import decode
from methods.loading.model import Loaded
from scripts.benchmarks.lossless import load_target, setup_of_task
from tests.support import heads


class Counter:
    """Wraps the calls of a draft's network and adds up calls and rows. An output head belongs to the forward before."""

    def __init__(self, drafter: Any) -> None:
        self.reset()
        for owner, name in getattr(drafter, "networks", list)():
            if isinstance(owner, list):
                owner[name] = self._counting(owner[name])
            elif name != "logits":
                setattr(owner, name, self._counting(getattr(owner, name)))

    def reset(self) -> None:
        """Start again from zero."""
        self.calls = self.rows = 0

    def _counting(self, function: Callable[..., Any]) -> Any:
        def call(first: Any, *rest: Any) -> Any:
            self.calls += 1
            self.rows += first.shape[0]
            return function(first, *rest)

        return call


def measure(loaded: Loaded, folder: Path, tokens: int) -> pd.DataFrame:
    """One row per method, means per cycle. The first cycle of a question is left out: it reads the whole prompt."""
    weights = {
        "sps": heads.write_draft_model(folder / "sps", loaded.target, loaded.tokenizer),
        "medusa": heads.write_medusa(folder / "medusa", loaded.target, tied=True),
        "hydra": heads.write_hydra(folder / "hydra", loaded.target),
        "eagle": heads.write_eagle(folder / "eagle", loaded.target),
    }
    weights["eagle2"] = weights["eagle"]
    setup = setup_of_task("smollm2_135m", "alpaca", 2)
    rows = []
    for name in methods.names():
        knobs = {"weights": str(weights[name])} if name in weights else {}
        drafter = methods.load(name, knobs, loaded.target, loaded.tokenizer)
        counter = Counter(drafter)
        steps, calls, draft_rows = [], 0, 0
        for question in questions.load(setup.task):
            ids = prompts.render(loaded.tokenizer, setup.model.template, question.turns, [])
            request = Request(ids, tokens, question=question.id)
            for number, step in enumerate(decode(loaded.target, drafter, request)):
                if number <= 1:
                    counter.reset()
                else:
                    steps.append(step)
            calls, draft_rows = calls + counter.calls, draft_rows + counter.rows
        rows.append(
            {
                "method": name,
                "target rows": sum(step.rows for step in steps) / len(steps),
                "drafted tokens": sum(step.drafted for step in steps) / len(steps),
                "draft forwards": calls / len(steps),
                "draft rows": draft_rows / len(steps),
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    loaded = load_target(setup_of_task("smollm2_135m", "alpaca"), "float32")
    with tempfile.TemporaryDirectory() as folder:
        print(measure(loaded, Path(folder), options.tokens).to_markdown(index=False, floatfmt=".1f"))


if __name__ == "__main__":
    main()

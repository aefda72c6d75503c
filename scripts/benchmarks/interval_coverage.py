"""How often a 95 % interval contains the true value: simulated questions of two turns, n of them, many times over.

    python -m scripts.benchmarks.interval_coverage      3 to 80 questions, 2,000 trials, two laws; prints a table

A question has a level of its own, which both of its turns share: turns are dependent, questions are not. The *mild* law
resembles a draft head (tau near 3, questions alike), the *heavy* one prompt lookup (most questions gain little, a few a
lot). The truth is the estimator on two million questions, which is what each interval claims to be about.
"""

from __future__ import annotations

import argparse

import numpy as np

from bench.report.estimators import ESTIMATORS, Sums
from bench.report.intervals import estimate, mean

TASKS = 6
"""Of a table's mean."""

LAWS = {"mild": (2.2, 0.25, 0.10), "heavy": (0.5, 0.90, 0.40)}
"""Median draft tokens accepted in a cycle; log-spread of the questions' levels; log-spread of turns around them."""


def simulate(rng: np.random.Generator, questions: int, law: tuple[float, float, float]) -> Sums:
    """Sums of two turns a question: lengths are lognormal and capped, as answers are; clocks have 3 % noise."""
    median, between, within = law
    level = rng.normal(0.0, between, questions)
    totals = dict.fromkeys(Sums.__dataclass_fields__, np.zeros(questions))
    for _ in range(2):
        emitted = np.clip(rng.lognormal(5.0, 0.7, questions).round(), 8, 512)
        tau = 1 + np.minimum(median * np.exp(level + rng.normal(0.0, within, questions)), 9.0)
        cycles = np.ceil(emitted / tau)
        turn = {
            "turns": np.ones(questions),
            "indexed": cycles - 1,
            "emitted": emitted,
            "cycles": cycles,
            "tokens": emitted + 1,
            "seconds": (0.05 + 0.030 * cycles) * np.exp(rng.normal(0.0, 0.03, questions)),
            "vanilla_tokens": emitted + 1,
            "vanilla_seconds": (0.05 + 0.025 * emitted) * np.exp(rng.normal(0.0, 0.03, questions)),
        }
        totals = {name: totals[name] + turn[name] for name in totals}
    return Sums(**totals)


def coverage(
    questions: int, trials: int, law: tuple[float, float, float], *, tasks: int = 1, seed: int = 0
) -> dict[str, float]:
    """The share of trials whose interval holds the truth, by estimator; of the mean over ``tasks``, if more than 1."""
    rng = np.random.default_rng(seed)
    names = [name for name in ESTIMATORS if name != "tokens_per_s"]
    large = simulate(rng, 2_000_000, law)
    truth = {name: float(ESTIMATORS[name](large)) for name in names}
    held = dict.fromkeys(names, 0)
    for _ in range(trials):
        data = [simulate(rng, questions, law) for _ in range(tasks)]
        for name in names:
            each = [estimate(name, one) for one in data]
            found = mean(each) if tasks > 1 else each[0]
            assert found.low is not None
            assert found.high is not None
            held[name] += found.low <= truth[name] <= found.high
    return {name: count / trials for name, count in held.items()}


def main() -> None:
    """Print coverage for each law and size; 1,000 trials leave an error of 0.7 % (one sigma), 2,000 of 0.5 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, nargs="+", default=[3, 5, 12, 80])
    parser.add_argument("--trials", type=int, default=2000)
    given = parser.parse_args()
    names = [name for name in ESTIMATORS if name != "tokens_per_s"]
    print(f"| law | questions | {' | '.join(f'`{name}`' for name in names)} |\n|---|---|{'---|' * len(names)}")
    for law, values in LAWS.items():
        sizes = [(count, 1) for count in given.questions] + [(min(given.questions), TASKS)]
        for count, tasks in sizes:
            found = coverage(count, given.trials, values, tasks=tasks)
            label = f"mean of {tasks} x {count}" if tasks > 1 else str(count)
            print(f"| {law} | {label} | {' | '.join(f'{found[name]:.1%}' for name in names)} |", flush=True)
    print(f"\nQuestions of two turns, {given.trials} trials.")


if __name__ == "__main__":
    main()

"""A training run small enough for a test."""

from __future__ import annotations

from pathlib import Path

SMALL = (
    "corpus.dialogues=16",
    "corpus.batch=8",
    "corpus.reading_tokens=1200",
    "corpus.reading_length=120",
    "training.window=24",
    "training.batch=2",
    "training.tokens=1440",
    "training.evaluate_every=5",
    "training.warmup_steps=3",
    "training.held_out=0.2",
    "training.vocabulary=200",
    "probe.questions=[two plus two]",
    "probe.tokens=6",
)
KINDS = (
    "{plain: {weight: 1, question_tokens: 9, answer_tokens: 12, turns: 2, openings: ['', 'Can ']},"
    " code: {weight: 1, question_tokens: 9, answer_tokens: 12, closing: ' Go.', openings: ['def ']}}"
)


DIALOGUES = ("~corpus.kinds", f"+corpus.kinds={KINDS}")


def arguments(folder: Path, work: Path, method: str, *extra: str) -> list[str]:
    tree = {"hydra": ["methods.hydra.tree='3 | 0:2'"], "medusa": ["methods.medusa.tree='3 | 0:2'"]}.get(method, [])
    return [
        f"method={method}", "model=local", f"model.id={folder}",
        f"work={work}", *DIALOGUES, *SMALL, *tree, *extra,
    ]  # fmt: skip

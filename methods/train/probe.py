"""tau of an exported head on a few fixed questions: the check that what was trained is what drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tqdm import tqdm

import methods
from methods.base import Request, Sampling
from methods.common.errors import prefixed
from methods.decode.loop import decode
from methods.loading.model import Loaded
from methods.train.chat import Chat
from methods.train.settings import Probe


def tau(loaded: Loaded, method: str, knobs: dict[str, Any], folder: Path, settings: Probe) -> float:
    """Tokens per cycle (``tau_micro``: the bonus token counted, the prefill not), greedy."""
    with prefixed(f"methods.{method}."):
        drafter = methods.load(method, {**knobs, "weights": str(folder)}, loaded.target, loaded.tokenizer)
    chat = Chat(loaded.tokenizer)
    emitted = cycles = 0
    for number, question in enumerate(tqdm(settings.questions, desc=f"tau of {method}")):
        request = Request(chat.prompt(question), settings.tokens, loaded.eos_ids, Sampling(0.0), f"probe/{number}")
        for step in list(decode(loaded.target, drafter, request))[1:]:
            emitted += len(step.tokens)
            cycles += 1
    return emitted / max(cycles, 1)

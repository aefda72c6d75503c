"""The one loop: AdamW, a warm-up and a cosine, clipped gradients, bfloat16 where the machine multiplies faster in it.

Each step follows from the seed and the step's number alone. A checkpoint holds the weights, the optimizer and the
curve, so a run that was killed ends as an unbroken one would have.
"""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from methods.common.atomic_write import write_atomically
from methods.common.errors import ConfigError
from methods.train.data import Data
from methods.train.settings import Training

_EVALUATED = 24
"""Held-out windows that agreement is measured on."""


_START = 40
"""Batches that a head's first weights are fitted to."""


@dataclass
class Curve:
    """What training showed: the loss of each step, and at each evaluation the step and the agreement by depth."""

    loss: list[float] = field(default_factory=list)
    agreement: list[tuple[int, list[float]]] = field(default_factory=list)


def train(head: Any, data: Data, settings: Training, checkpoint: Path, identity: str) -> Curve:
    """Train a head in place, from its checkpoint where there is one.

    Returns the curve; ``head`` holds the weights of the best held-out agreement (of the first depth). ``identity``
    names everything that decides the result.

    Raises:
        ConfigError: if the checkpoint is of another identity, or ``settings.start`` is of another kind of head.
    """
    parameters = [parameter for parameter in head.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    steps = max(1, settings.tokens // (settings.batch * settings.window))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps, settings.warmup_steps))
    curve, best = Curve(), {}
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        if state.get("identity") != identity:
            raise ConfigError(
                f"{checkpoint} was trained with other settings or on another corpus; delete it, or set "
                "work=ANOTHER_FOLDER"
            )
        head.load_state_dict(state["head"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        curve, best = Curve(**state["curve"]), state["best"]
    elif settings.start:
        _take(head, Path(settings.start))
    else:
        sizes = {"batch": settings.batch, "window": settings.window, "seed": settings.seed}
        head.start(data.trained.batch(number, **sizes) for number in range(_START))
    bar = tqdm(range(len(curve.loss), steps), desc="training", unit="step", initial=len(curve.loss), total=steps)
    for step in bar:
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
        batch = data.trained.batch(step, batch=settings.batch, window=settings.window, seed=settings.seed)
        with torch.autocast("cpu", torch.bfloat16):
            loss = head.loss(batch, generator)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, settings.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        curve.loss.append(loss.item())
        if (step + 1) % settings.evaluate_every == 0 or step + 1 == steps:
            reached = evaluate(head, data, settings)
            curve.agreement.append((step + 1, reached))
            if reached[0] >= max(values[0] for _, values in curve.agreement):
                best = {name: value.clone() for name, value in head.state_dict().items()}
            state = {"identity": identity, "head": head.state_dict(), "optimizer": optimizer.state_dict(), "best": best}
            state |= {"schedule": schedule.state_dict(), "curve": vars(curve)}
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(checkpoint, partial(torch.save, state))
            bar.set_postfix(loss=f"{_mean(curve.loss[-100:]):.3f}", agreement=" ".join(f"{x:.3f}" for x in reached))
    head.load_state_dict(best)
    return curve


def _take(head: Any, start: Path) -> None:
    try:
        head.load_state_dict(torch.load(start, weights_only=True)["best"])
    except (KeyError, RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"training.start={start} does not hold the weights of such a head: {reason}") from None


@torch.no_grad()
def evaluate(head: Any, data: Data, settings: Training) -> list[float]:
    """Agreement with the target's likeliest token on the held-out texts, by depth."""
    windows = min(_EVALUATED, data.held_out.windows(settings.window))
    totals: list[list[int]] = []
    for number in range(windows):
        batch = data.held_out.batch(number, batch=1, window=settings.window, seed=0)
        with torch.autocast("cpu", torch.bfloat16):
            found = head.agreement(batch)
        totals = totals or [[0, 0] for _ in found]
        totals = [[a + hits, b + trials] for (a, b), (hits, trials) in zip(totals, found, strict=True)]
    return [hits / max(trials, 1) for hits, trials in totals]


def _rate(step: int, steps: int, warmup: int) -> float:
    """The share of the learning rate at a step: up in a line, down in a cosine to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)

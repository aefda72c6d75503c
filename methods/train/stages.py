"""The four stages in a row: corpus, features, training, export, each of which goes on from its own finished work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import methods
from methods.common.errors import prefixed
from methods.common.file_hash import sha256
from methods.loading.model import Source, load_model
from methods.runtime import attention
from methods.train import corpus, features, loop, overlap, probe
from methods.train.data import Data
from methods.train.export import add, export
from methods.train.heads import Frozen
from methods.train.settings import Settings


def train_head(method: str, model: Mapping[str, Any], knobs: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Make the head of ``method`` for a target; returns its manifest.

    Args:
        method: one that has a trainer.
        model: the composed ``model`` group.
        knobs: the method's settings, with which tau is probed.
        settings: everything else.

    Raises:
        ConfigError: if the target can't be loaded, or the corpus is too small or of other settings.
    """
    attention.register()
    source = Source(model["kind"], model["id"], model.get("revision"), model.get("file"), model.get("sha256"))
    with prefixed("model."):
        loaded = load_model(source, dtype=model["dtype"], device=model["device"], attention=attention.NAME)
    work = Path(settings.work)
    kept_out = [{"file": path.name, "sha256": sha256(path)} for path in overlap.files(settings.corpus.exclude)]
    of = {key: model.get(key) for key in ("kind", "id", "revision", "file", "sha256", "dtype")}
    shards = corpus.build(loaded, settings.corpus, work / "corpus", of)
    states = features.build(loaded.target, shards, work / "features", settings.features.batch_tokens)
    data = Data(shards, states, loaded.target.hidden, settings.training.held_out)
    frequent = data.frequent(0, loaded.target.vocab)
    torch.manual_seed(settings.training.seed)  # how a head starts
    kept = frequent[: settings.training.vocabulary or None].sort().values
    own = asdict(settings.heads[method])
    start = settings.training.start
    trained = {**asdict(settings.training), "start": sha256(Path(start)) if start else None}
    with prefixed(f"heads.{method}."):
        head = methods.trainers()[method](Frozen(loaded.target, kept), settings.heads[method])
    identity = json.dumps([of, data.sha256, trained, own], sort_keys=True)
    curve = loop.train(head, data, settings.training, work / "training" / f"{method}.pt", identity)
    manifest = {
        "method": method,
        "model": {"name": model["name"], **of},
        "corpus": {
            "seed": settings.corpus.seed,
            "sha256": data.sha256,
            "texts": {"trained": len(data.trained.texts), "held_out": len(data.held_out.texts)},
            "tokens": {"trained": data.trained.tokens, "held_out": data.held_out.tokens},
            "kept_out": kept_out,
        },
        "training": {**trained, "steps": len(curve.loss), **own},
        "loss": curve.loss[-1],
        "agreement_by_depth": curve.agreement,
    }
    folder = export(head, frequent, manifest, Path(settings.output) / method)
    reached = probe.tau(loaded, method, knobs, folder, settings.probe)
    used = {key: value for key, value in knobs.items() if key != "weights"}
    return add(folder, {"probe": {"tau_micro": reached, "knobs": used, **asdict(settings.probe)}})

"""The commits that a results folder was measured with: ``<results>/hub.lock.json``, written by ``draftbench prefetch``.

A branch moves, so a configuration that names none of a repository's commits gets it from here, and a run without one is
refused. The file lies with the records, not with the code: a cell's id holds the commit, so whoever copies a results
folder and redraws its tables needs the same pins to find the same cells.

    {"model": {"org/name": {"main": "<40 hex>"}}, "dataset": {...}, "files": {"org/set@<40 hex> config split": [...]}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.plan.schema import Hub, Model, Setup
from bench.records.store import DamagedRecordError
from methods.common.atomic_write import write_atomically
from methods.common.errors import ConfigError, prefixed
from methods.loading.hub import PREFETCH, is_commit
from methods.loading.sources import source_of

FILE = "hub.lock.json"


@dataclass
class Pins:
    """Commits by kind (``model`` or ``dataset``), repository and the revision that was asked for."""

    commits: dict[str, dict[str, dict[str, str]]] = field(default_factory=lambda: {"model": {}, "dataset": {}})
    files: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, results: Path) -> Pins:
        """The pins of a results folder; none if it has no lock file.

        Raises:
            DamagedRecordError: if the file is not one that ``write`` makes.
        """
        path = results / FILE
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            pins = cls({kind: found[kind] for kind in ("model", "dataset")}, found["files"])
            every = [commit for kind in pins.commits.values() for asked in kind.values() for commit in asked.values()]
            if not all(map(is_commit, every)):
                raise ValueError("a commit has 40 hex digits")
        except FileNotFoundError:
            return cls()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedRecordError(f"{path} is damaged ({error}); remove it and run {PREFETCH}") from None
        return pins

    def write(self, results: Path) -> Path:
        results.mkdir(parents=True, exist_ok=True)
        write_atomically(
            results / FILE, json.dumps({**self.commits, "files": self.files}, indent=1, sort_keys=True) + "\n"
        )
        return results / FILE

    def commit(self, kind: str, repository: str, asked: str | None) -> str | None:
        """The commit for a revision: itself if it is one, else the pinned one, else the revision as it was given."""
        return asked if is_commit(asked) else self.commits[kind].get(repository, {}).get(asked or "main", asked)

    def add(self, kind: str, repository: str, asked: str | None, commit: str) -> None:
        if not is_commit(asked):
            self.commits[kind].setdefault(repository, {})[asked or "main"] = commit

    def pin(self, setup: Setup) -> Setup:
        """A configuration with every hub revision replaced by its commit, where one is known."""
        model, hub = setup.model, setup.task.hub
        if model.kind == "hub":
            model = replace(model, revision=self.commit("model", model.id, model.revision))
        if setup.task.source == "hub" and not hub.local:
            hub = replace(hub, revision=self.commit("dataset", hub.id, hub.revision))
            hub = replace(hub, files=hub.files or tuple(self.files.get(files_key(hub), ())))
        knobs = {name: self._pin_weights(name, each) for name, each in setup.methods.items()}
        return replace(setup, model=model, task=replace(setup.task, hub=hub), methods=knobs)

    def _pin_weights(self, name: str, knobs: dict[str, Any]) -> dict[str, Any]:
        source = hub_weights(name, knobs)
        if source is None:
            return knobs
        repository, asked = source
        commit = self.commit("model", repository, asked)
        return {**knobs, "weights": {"kind": "hub", "id": repository, "revision": commit}}


def files_key(hub: Hub) -> str:
    """What the files of a data set are kept under: one config's split at one commit."""
    return f"{hub.id}@{hub.revision} {hub.config or 'default'} {hub.split}"


def hub_weights(method: str, knobs: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """The repository and revision of a method's weights; None if they are not the hub's, or there are none."""
    weights = knobs.get("weights")
    if weights is None:
        return None
    with prefixed(f"methods.{method}."):
        source = source_of(weights, method)
    return (source.id, source.revision) if source.kind == "hub" else None


def refuse_unpinned(model: Model, knobs: Mapping[str, Mapping[str, Any]], results: Path) -> None:
    """Nothing is measured with what may be other weights tomorrow.

    Raises:
        ConfigError: naming the repository, and what to run.
    """
    wanted = {f"model={model.name}": (model.id, model.revision)} if model.kind == "hub" else {}
    for name, each in knobs.items():
        if source := hub_weights(name, each):
            wanted[f"methods.{name}.weights"] = source
    for setting, (repository, revision) in wanted.items():
        if not is_commit(revision):
            raise ConfigError(
                f"{setting}: {repository} has no commit (revision {revision}), neither in its YAML nor in "
                f"{results / FILE}; run {PREFETCH}"
            )

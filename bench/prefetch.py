"""Download all that a run needs, and pin it: models, draft heads, data sets, and the paper's question files.

    python -m bench.prefetch table=table1 profile=paper [model=...] [plan.dry_run=true]   as bench.run takes them
    python -m bench.prefetch questions [URL]                                              the six files alone

Sizes are printed first. Files go to the hub's cache (``HF_HOME``), where whole files are kept when a transfer stops;
the commits go to ``<results>/hub.lock.json``, which every run reads, and which keeps what it has: delete an entry to
take a newer commit. Afterwards a run needs no network (``HF_HUB_OFFLINE=1``). Exit 0 done, 2 refused.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from omegaconf import DictConfig

from bench.cli.launch import launch
from bench.plan import grid, paper_questions, questions
from bench.plan.hub_lock import Pins, files_key, hub_weights
from bench.plan.schema import Hub, Setup
from bench.report.output import results_folder
from methods.common.atomic_write import write_atomically
from methods.common.errors import ConfigError
from methods.loading import hub

_QUESTIONS = f"https://raw.githubusercontent.com/{paper_questions.REPOSITORY}/{paper_questions.COMMIT}"


@dataclass(frozen=True)
class Need:
    """One repository at one commit, and what is wanted of it."""

    kind: str
    repository: str
    commit: str
    files: dict[str, int]  # name: bytes
    absent: tuple[str, ...]

    @property
    def bytes_to_fetch(self) -> int:
        return sum(self.files[name] for name in self.absent)


def prefetch(config: DictConfig) -> int:
    """Resolve, show, refuse what cannot fit, pin, download."""
    setups, _, _ = grid.setups(config)
    results = results_folder(config)
    pins = Pins.read(results)
    needs = _needs(setups, pins)
    paper = any(setup.task.source == "paper" for setup in setups)
    missing = _show(needs)
    summary: dict[str, int | str] = {
        "repositories": len(needs),
        "bytes_to_fetch": missing,
        "questions": len(paper_questions.FILES) if paper else 0,
    }
    if not config.plan.dry_run:
        if needs:
            summary["lock"] = str(pins.write(results))
        if paper:
            fetch_questions()
        for need in needs:
            if need.absent:
                print(f"fetching {need.repository}", file=sys.stderr)
            hub.download(need.repository, need.commit, list(need.files), need.kind)
    print(json.dumps(summary))
    return 0


def _needs(setups: Iterable[Setup], pins: Pins) -> list[Need]:
    """Every repository once, resolved. What is refused is said of all of them together: a licence takes days."""
    models: dict[tuple[str, str | None], None] = {}
    data: dict[str, Hub] = {}
    for setup in setups:
        if setup.model.kind == "hub":
            models[setup.model.id, setup.model.revision] = None
        models.update({found: None for name, knobs in setup.methods.items() if (found := hub_weights(name, knobs))})
        if setup.task.source == "hub" and not setup.task.hub.local:
            data[files_key(setup.task.hub)] = setup.task.hub
    needs, refused = [], []
    for repository, asked in models:
        try:
            needs.append(_model(repository, asked, pins))
        except ConfigError as error:
            refused.append(str(error))
    for each in data.values():
        try:
            needs.append(_data_set(each, pins))
        except ConfigError as error:
            refused.append(str(error))
    if refused:
        raise ConfigError(" | ".join(refused))
    return needs


def _model(repository: str, asked: str | None, pins: Pins) -> Need:
    commit = asked if asked and hub.is_commit(asked) else hub.resolve(repository, asked)
    pins.add("model", repository, asked, commit)
    listed = hub.sizes(repository, commit)
    return _need("model", repository, commit, {name: listed[name] for name in hub.needed(listed)})


def _data_set(asked: Hub, pins: Pins) -> Need:
    commit = asked.revision if hub.is_commit(asked.revision) else hub.resolve(asked.id, asked.revision, "dataset")
    pins.add("dataset", asked.id, asked.revision, commit)
    pinned = Hub(asked.id, asked.split, commit, asked.config)
    listed = hub.sizes(asked.id, commit, "dataset")
    files = [*asked.files] or questions.hub_files(pinned)
    pins.files[files_key(pinned)] = files
    return _need("dataset", asked.id, commit, {name: listed[name] for name in files})


def _need(kind: str, repository: str, commit: str, files: dict[str, int]) -> Need:
    return Need(kind, repository, commit, files, tuple(hub.absent(repository, commit, files, kind)))


def _show(needs: list[Need]) -> int:
    """Print each size and the sum; the bytes to fetch.

    Raises:
        ConfigError: if they don't fit on the disk.
    """
    for need in needs:
        whole, lacking = sum(need.files.values()), need.bytes_to_fetch
        state = f"{_gb(lacking)} to fetch" if need.absent else "in the cache"
        print(f"{need.kind:8}{need.repository:44}{need.commit[:8]}  {len(need.files):3} files {_gb(whole):>9}  {state}")
    total = sum(need.bytes_to_fetch for need in needs)
    folder = hub.cache()
    free = shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists())).free
    print(f"{_gb(total)} to fetch into {folder}, {_gb(free)} free there")
    if total > free:
        raise ConfigError(f"{_gb(total)} do not fit into {folder} ({_gb(free)} free); set HF_HOME to a larger disk")
    return total


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e7 else f"{size / 1e6:.2f} MB"


def fetch_questions(source: str = _QUESTIONS) -> None:
    """The six question files of the paper's authors into the cache folder, each whole and with the right hash or not.

    Raises:
        ConfigError: naming the file that could not be had.
    """
    for task, file in paper_questions.FILES.items():
        target = paper_questions.where(task)
        if not (target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == file.sha256):
            data = hub.read_whole(f"{source.rstrip('/')}/{file.path}", f"put the file at {target}")
            found = hashlib.sha256(data).hexdigest()
            if found != file.sha256:
                raise ConfigError(
                    f"{file.path} from {source} has sha256 {found}, expected {file.sha256}: it was changed or damaged "
                    f"on its way; run it again, or put the right file at {target}"
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(target, data)
        print(f"questions {task:10} {target}")


def main() -> None:
    """Entry point."""
    if sys.argv[1:2] != ["questions"]:
        launch(prefetch)
        return
    try:
        if len(sys.argv) > 3:
            raise ConfigError(f"{sys.argv[3]!r} is one word too many; type: draftbench prefetch questions [URL]")
        fetch_questions(*sys.argv[2:3])
    except (ConfigError, OSError) as error:  # a cache folder that cannot be written names itself
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

"""The settings of a run as frozen dataclasses, one a Hydra group, each with its own checks. No torch is imported.

Each group's YAML is merged into its class, so a typo or a wrong type is refused while composing, before anything loads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import methods
from methods.common.errors import ConfigError
from methods.common.limits import check_sampling


@dataclass(frozen=True)
class Model:
    """Where the target comes from, and how it is talked to.

    ``weights`` and ``settings`` are what methods need for this model: their YAML reads them, so that they are part of
    a method's identity and not of the model's, and any of them can be overridden as ``methods.<name>.<setting>``.
    """

    name: str
    kind: str
    id: str
    dtype: str
    template: str
    revision: str | None = None
    file: str | None = None
    sha256: str | None = None
    device: str = "auto"
    attention: str = "sdpa"
    runtime: str = "hf"
    context: int | None = None
    eos_tokens: list[str] = field(default_factory=list)
    weights: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _file_name("model.name", self.name)
        if self.context is not None and self.context < 2:
            raise ConfigError(
                f"model.context={self.context} must be 2 or more tokens, or null for what the model takes"
            )
        _one_of("model.kind", self.kind, ("hub", "folder", "wheel"))
        _one_of("model.dtype", self.dtype, ("float32", "bfloat16", "float16", "float64"))
        _one_of("model.attention", self.attention, ("sdpa", "eager"))
        _one_of("model.runtime", self.runtime, ("hf", "fused", "graph"))
        if self.runtime != "hf" and self.attention == "eager":
            raise ConfigError("model.attention=eager works only with model.runtime=hf")

    @property
    def arithmetic(self) -> str:
        """The dtype and, where it is not the stock module's, the runtime: what a row of a table is told apart by."""
        return self.dtype if self.runtime == "hf" else f"{self.dtype} {self.runtime}"


@dataclass(frozen=True)
class Hub:
    """A hub data set and how a row becomes turns: a column that holds them, or a template over columns.

    ``files`` are the split's files in the repository; empty: asked of the hub, by ``datasets``.
    """

    id: str
    split: str
    revision: str = "main"
    config: str | None = None
    turns: str | None = None
    template: str | None = None
    reference: str | None = None
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.id.strip():
            raise ConfigError("task.hub.id is empty; give a data set of the hub, or a folder")
        object.__setattr__(self, "files", tuple(self.files))  # OmegaConf makes lists, and a Task is a key of a dict

    @property
    def local(self) -> bool:
        """Whether ``id`` is a folder in the hub's layout rather than a repository."""
        return Path(self.id).is_dir() or self.id.startswith((".", "/", "~"))


@dataclass(frozen=True)
class Task:
    """Which questions. ``path`` names a JSONL file; else ``source`` is builtin, hub or paper."""

    name: str
    source: str
    hub: Any  # a Hub; frozen apart, since OmegaConf cannot fill a frozen dataclass inside another
    path: str | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        _file_name("task.name", self.name)
        _one_of("task.source", self.source, ("builtin", "paper", "hub", "file"))
        if self.count is not None and self.count < 1:
            raise ConfigError(f"task.count={self.count} must be 1 or more, or null for all questions")
        if self.source == "file" and not self.path:
            raise ConfigError("task.source=file needs task.path=FILE.jsonl")


@dataclass(frozen=True)
class Decode:
    """How the target decodes: the same for vanilla and every method of a cell."""

    name: str
    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int
    seed: int

    def __post_init__(self) -> None:
        _file_name("decode.name", self.name)
        if self.max_new_tokens < 1:
            raise ConfigError(f"decode.max_new_tokens={self.max_new_tokens} must be 1 or more")
        check_sampling(self.temperature, self.top_p, self.top_k)


@dataclass(frozen=True)
class Measure:
    """How carefully it is measured."""

    name: str
    warmup_tokens: int
    repeats: int
    audit: bool
    history: str
    questions: str = "builtin"
    trace: int = 0
    nodes: bool = False

    def __post_init__(self) -> None:
        _one_of("measure.history", self.history, ("vanilla", "self"))
        _one_of("measure.questions", self.questions, ("builtin", "paper"))
        if self.warmup_tokens < 0 or self.repeats < 1:
            raise ConfigError("measure.warmup_tokens must be 0 or more and measure.repeats 1 or more")
        if self.trace < 0:
            raise ConfigError(f"measure.trace={self.trace} must be 0 (off) or more: questions a cell with draft trees")


@dataclass(frozen=True)
class Profile:
    """Sizes for a kind of machine: which models a table runs, and overrides that yield to the command line.

    ``for_models`` are overrides for the profile's own models alone, such as trees that fit their heads. ``by_table``
    holds further overrides for single tables, ``models_by_table`` the models of those that do not run all.
    """

    name: str
    models: list[str]
    overrides: list[str]
    for_models: list[str] = field(default_factory=list)
    by_table: dict[str, list[str]] = field(default_factory=dict)
    models_by_table: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A grid of cells that belong on one page. ``methods`` is ``all`` or a list of names.

    ``variants`` are further rows: a label that starts with a method's name, and the settings it changes.
    ``overrides`` are settings that this grid needs; they outrank the profile's, not its ``by_table``.
    ``figure`` names the drawing made of the cells instead of a table.
    """

    name: str
    title: str
    methods: Any
    tasks: list[str]
    decodes: list[str]
    variants: dict[str, Any] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    figure: str | None = None

    def __post_init__(self) -> None:
        _file_name("table.name", self.name)


@dataclass(frozen=True)
class Style:
    """Which estimators a table shows; its CSV holds all of them."""

    estimator: str

    def __post_init__(self) -> None:
        _one_of("report.estimator", self.estimator, ("paper", "ours"))


@dataclass(frozen=True)
class Plan:
    """What of a grid is asked about or run. ``index`` is the one cell that a task of an array takes."""

    dry_run: bool
    status: bool
    index: int | None = None
    gpu: str | None = None
    gpus: int | None = None

    def __post_init__(self) -> None:
        if self.gpus is not None and self.gpus < 1:
            raise ConfigError(f"plan.gpus={self.gpus} must be 1 or more, or null for what the machine has")


@dataclass(frozen=True)
class Launcher:
    """Where cells run: ``local``, in this process, or ``slurm``, an array of a task a cell. Never in a cell id."""

    name: str
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    cpus: int | None = None
    memory_gb: int | None = None
    minutes: int = 60
    parallel: int = 1
    warn_s: int = 120
    setup: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        _one_of("launcher.name", self.name, ("local", "slurm"))
        for setting in ("minutes", "parallel", "warn_s"):
            if getattr(self, setting) < 1:
                raise ConfigError(f"launcher.{setting}={getattr(self, setting)} must be 1 or more")


@dataclass(frozen=True)
class Setup:
    """One composed configuration: a single cell's worth of groups."""

    model: Model
    task: Task
    decode: Decode
    measure: Measure
    methods: dict[str, dict[str, Any]]


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}={value} is not known{methods.hint(value, list(allowed))}")


def _file_name(setting: str, name: str) -> None:
    """Names become part of a file's name, and a cell of a table that spreadsheets and Markdown read."""
    wrong = not name.strip() or name[0] in ".=+-@" or len(name.encode()) > 64
    if wrong or re.search(r"[/\\|\x00-\x1f\x7f]", name):
        raise ConfigError(
            f"{setting}={name[:80]!r} becomes part of a file's name: give 1 to 64 bytes without /, \\ and |, starting "
            "with none of . = + - @"
        )

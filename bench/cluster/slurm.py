"""``launcher=slurm``: hands the cells that lack something to hydra-submitit-launcher, as one array, and waits.

The command that was typed is run again as a Hydra sweep over ``plan.index``, so a task runs the same code as a run on a
laptop. Nothing of the launcher is part of a cell's id.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from bench.plan.schema import Launcher
from methods.common.errors import ConfigError

_FOR_EVER = 1000
"""Requeues allowed. Every run of a task adds blocks if its time limit holds one, so any small number would be wrong."""


def submit(launcher: Launcher, given: Sequence[str], indices: Sequence[int], results: Path) -> int:
    """Run the cells of these indices as a Slurm array and wait for the end of it; the launcher's exit code.

    Raises:
        ConfigError: if the package is missing.
    """
    if find_spec("submitit") is None:
        raise ConfigError("launcher=slurm needs hydra-submitit-launcher; run: pip install 'draftbench[slurm]'")
    command = [sys.executable, "-m", "bench.run", "--multirun", *given, *_overrides(launcher, results)]
    command.append(f"plan.index={','.join(str(index) for index in indices)}")
    print(f"submitting {len(indices)} tasks; their logs: {results / 'slurm'}", file=sys.stderr)
    code = subprocess.run(command, stdout=sys.stderr, check=False).returncode  # noqa: S603 our own command line
    if code:
        print(f"a task ended without its cell: see {results / 'slurm'}; the same command goes on", file=sys.stderr)
    return code


def _overrides(launcher: Launcher, results: Path) -> list[str]:
    settings = {
        "partition": launcher.partition,
        "account": launcher.account,
        "qos": launcher.qos,
        "constraint": launcher.constraint,
        "gres": launcher.gres,
        "cpus_per_task": launcher.cpus,
        "mem_gb": launcher.memory_gb,
        "timeout_min": launcher.minutes,
        "array_parallelism": launcher.parallel,
        "signal_delay_s": launcher.warn_s,
        "max_num_timeout": _FOR_EVER,
        "name": "draftbench",
        "submitit_folder": str(results / "slurm" / "%j"),
    }
    given = [f"hydra.launcher.{key}={_quoted(value)}" for key, value in settings.items() if value is not None]
    if launcher.setup:
        given.append(f"hydra.launcher.setup=[{','.join(_quoted(line) for line in launcher.setup)}]")
    folder = _quoted(str(results / "slurm"))
    return ["hydra/launcher=submitit_slurm", f"hydra.sweep.dir={folder}", "hydra.sweep.subdir=.", *given]


def _quoted(value: str | int) -> str:
    """A value that Hydra's grammar reads as it stands."""
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "\\'") + "'"

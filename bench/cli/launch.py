"""From ``sys.argv`` to a composed config, and from any mistake to one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import hydra
from omegaconf import DictConfig

from bench.cli import outside_methods
from bench.cli.mistakes import explain
from bench.cli.signals import Stopped, heeding_signals, in_slurm_task
from bench.records.store import DamagedRecordError
from methods.common import command_line
from methods.common.paths import CONF


def launch(task: Callable[[DictConfig], int]) -> None:
    """Run a Hydra task and turn the user's mistakes into one line and exit code 2."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises, and the one line below is ours to write
    if code := _guarded(lambda: command_line.refuse_unsafe(sys.argv[1:], CONF)):
        sys.exit(code)
    outside_methods.register()
    codes = [0]

    def body(config: DictConfig) -> None:
        codes.append(_guarded(lambda: task(config)))
        if codes[-1] and in_slurm_task():
            raise RuntimeError(f"exit code {codes[-1]}; the reason stands above")

    with heeding_signals():
        run = hydra.main(version_base=None, config_path=str(CONF), config_name="config")(body)
        codes.append(_guarded(run))
    sys.exit(max(codes))


def _guarded(action: Callable[[], int | None]) -> int:
    def heeding() -> int | None:
        try:
            return action()
        except Stopped as stopped:
            print(f"stopped by {stopped.signal}; the same command goes on with what is missing", file=sys.stderr)
            return stopped.code

    return command_line.guarded(heeding, explain, (DamagedRecordError,))

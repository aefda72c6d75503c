"""Entry point: ``python -m methods.train method=eagle model=smollm2_135m``. Exit 0 done, 1 disk error, 2 wrong request.

Every stage looks for its own finished work first, so the same command goes on after a kill.
"""

from __future__ import annotations

import json
import os
import sys

import hydra
from omegaconf import DictConfig, OmegaConf

import methods
from methods.common import command_line
from methods.common.paths import CONF
from methods.train.settings import Settings, settings_of


def main() -> None:
    """Compose, check, train, export; the last line of stdout is JSON."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises, and the one line below is ours to write
    if code := command_line.guarded(lambda: command_line.refuse_unsafe(sys.argv[1:], CONF)):
        sys.exit(code)
    codes = [0]

    def body(config: DictConfig) -> None:
        # Inside Hydra too: it would print a line of its own before ours.
        codes.append(command_line.guarded(lambda: _run(config)))

    codes.append(command_line.guarded(hydra.main(version_base=None, config_path=str(CONF), config_name="train")(body)))
    sys.exit(max(codes))


def _run(config: DictConfig) -> None:
    names = [str(name) for name in config.methods]
    methods.refuse_untrainable(names)  # before torch loads, which takes seconds
    own = OmegaConf.to_container(config, resolve=True)
    assert isinstance(own, dict)
    settings = settings_of({key: own[key] for key in Settings.__dataclass_fields__})
    from methods.train.stages import train_head

    print(json.dumps(train_head(names[0], own["model"], dict(own["methods"][names[0]] or {}), settings)))


if __name__ == "__main__":
    main()

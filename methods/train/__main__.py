"""Entry point: ``python -m methods.train method=eagle model=smollm2_135m``. Exit 0 done, 1 disk error, 2 wrong request.

Every stage looks for its own finished work first, so the same command goes on after a kill.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from methods.common import command_line
from methods.common.errors import ConfigError
from methods.common.paths import CONF
from methods.train.settings import Settings, settings_of

_HEADS = ("eagle", "medusa", "hydra", "sps")


def main() -> None:
    """Compose, check, train, export; the last line of stdout is JSON."""
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises, and the one line below is ours to write
    if code := _guarded(lambda: command_line.check(sys.argv[1:], CONF)):
        sys.exit(code)
    codes = [0]

    def body(config: DictConfig) -> None:
        # Inside Hydra too: it would print a line of its own before ours.
        codes.append(_guarded(lambda: _run(config)))

    codes.append(_guarded(hydra.main(version_base=None, config_path=str(CONF), config_name="train")(body)))
    sys.exit(max(codes))


def _guarded(action: Callable[[], object]) -> int:
    try:
        action()
    except (HydraException, OmegaConfBaseException, ConfigError) as error:
        print(f"error: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"error: {what}; what was written before is intact, and the same command goes on", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; run the same command again to go on", file=sys.stderr)
        return 130
    return 0


def _run(config: DictConfig) -> None:
    names = [str(name) for name in config.methods]
    if len(names) != 1 or names[0] not in _HEADS:
        hint = "; eagle2 drafts with EAGLE's head: train method=eagle" if "eagle2" in names else ""
        raise ConfigError(f"method={','.join(names)} cannot be trained; choose one of {', '.join(_HEADS)}{hint}")
    own = OmegaConf.to_container(config, resolve=True)
    assert isinstance(own, dict)
    settings = settings_of({key: own[key] for key in Settings.__dataclass_fields__})
    from methods.train.stages import train_head  # torch loads only when the request stands

    print(json.dumps(train_head(names[0], own["model"], dict(own["methods"][names[0]] or {}), settings)))


if __name__ == "__main__":
    main()

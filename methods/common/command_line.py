"""What the commands share: what a command line may hold, and from any mistake to one line and an exit code.

Settings are data and end up on disk, so the command line is checked before Hydra reads it.

Hydra by itself would call whatever ``hydra.callbacks`` names, unpickle a job, write its own copy of the command line
wherever ``hydra.run.dir`` points, and paste an environment variable into any setting.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from methods.common.errors import ConfigError
from methods.common.redact import redact

_FLAGS = {
    *("-h", "--help", "--hydra-help", "--version", "-c", "--cfg", "--resolve", "-p", "--package", "-i", "--info"),
    *("-m", "--multirun", "-sc", "--shell-completion"),
}
_SLURM = re.compile(r"hydra/launcher|hydra\.sweep\.(sub)?dir|hydra\.launcher\.[a-z]\w*")
"""What ``launcher=slurm`` itself adds; a name that starts with an underscore would be a class to call."""
_RESOLVER = re.compile(r"\$\{[^}]*:")
_OPTION = re.compile(r"(?!(null|true|false)$)[A-Za-z_][\w.-]*")


def refuse_unsafe(arguments: Sequence[str], conf: Path) -> None:
    """Refuse what is not a setting of ours; ``conf`` holds a folder for each group of options.

    Raises:
        ConfigError: naming the argument, credentials taken out.
    """
    groups = {path.name: sorted(option.stem for option in path.glob("*.yaml")) for path in conf.iterdir()}
    for argument in arguments:
        if redact(argument) != argument:
            raise ConfigError(
                f"{redact(argument)}: settings are written beside the results, so none may be a credential; log in "
                "with: hf auth login (or set HF_TOKEN)"
            )
        if argument.startswith("-"):
            _check_flag(argument.partition("=")[0])
            continue
        key, _, value = argument.partition("=")
        name, _, package = key.lstrip("+~").partition("@")
        if not name:
            raise ConfigError(f"{argument!r} is not a setting; settings are given as key=value")
        if package:
            raise ConfigError(f"{argument}: where an option's settings go is fixed here; write {name}=OPTION")
        if re.match(r"hydra\b", name) and not _SLURM.fullmatch(name):
            raise ConfigError(f"{argument}: Hydra's own settings are fixed here; see python -m bench.run --help")
        if _RESOLVER.search(value):
            raise ConfigError(f"{argument}: a value is taken as it stands; write it out instead of ${{...:...}}")
        if groups.get(name) and not all(_OPTION.fullmatch(each.strip(" '\"")) for each in _listed(value)):
            raise ConfigError(f"{argument} names no option of {name}; choose from {', '.join(groups[name])}")


def guarded(
    action: Callable[[], int | None],
    explain: Callable[[Exception], str] = lambda error: str(error).splitlines()[0],
    mistakes: tuple[type[Exception], ...] = (),
) -> int:
    """Run ``action`` and return its exit code: 2 for a user's mistake, 1 for the system's error, 130 for Ctrl-C.

    Each is one line on stderr. ``explain`` writes that of a mistake; ``mistakes`` are further errors that count as one.
    """
    refused: tuple[type[Exception], ...] = (HydraException, OmegaConfBaseException, ConfigError, *mistakes)
    try:
        return action() or 0
    except refused as error:
        print(f"error: {explain(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output left (| head); nothing was lost
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"error: {what}; what was written before is intact, and the same command goes on", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; run the same command again to finish what is missing", file=sys.stderr)
        return 130


def _listed(value: str) -> list[str]:
    inside = value[1:-1] if value[:1] == "[" and value[-1:] == "]" else value
    return inside.split(",")


def _check_flag(flag: str) -> None:
    if flag in _FLAGS:
        return
    close = difflib.get_close_matches(flag, sorted(_FLAGS), n=1)
    meant = f"; did you mean {close[0]}?" if close else ";"
    raise ConfigError(f"unknown flag {flag}{meant} settings are given as key=value, such as plan.dry_run=true")

"""The console script ``draftbench COMMAND ...``: one word for each program of this package.

``draftbench run table=table1`` is ``python -m bench.run table=table1``, but for the folder where it is typed: Python's
``-m`` looks there first and would take a ``bench/`` of the user's for this package.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

from bench import __version__
from methods import hint

COMMANDS = {
    "run": ("bench.run", "measure what is missing of a cell or a table, and print the table"),
    "report": ("bench.report.__main__", "redraw tables, figures and the page from the records"),
    "tau": ("bench.tau", "tokens per cycle of a cell's methods, without a clock"),
    "train": ("methods.train.__main__", "make draft heads for a model"),
    "prefetch": ("bench.prefetch", "download what a run needs, and pin it"),
    "convert": ("methods.loading.convert", "turn a pickled head into safetensors"),
}
"""By name: the module whose ``main`` does it, and what it does."""


def main() -> int | None:
    """Hand the rest of the command line to a command. Exit 2 for an unknown one, else what the command says."""
    given = sys.argv[1:2]
    if given and given[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if given == ["--version"]:
        print(f"draftbench {__version__}")
        return 0
    if not given or given[0] not in COMMANDS:
        said = f"unknown command {given[0]!r}{hint(given[0], [*COMMANDS])}" if given else "no command given"
        print(f"error: {said}; see draftbench --help", file=sys.stderr)
        return 2
    _keep_to_this_package()
    sys.argv[:2] = [f"draftbench {given[0]}"]
    code: int | None = import_module(COMMANDS[given[0]][0]).main()
    return code


def _keep_to_this_package() -> None:
    """Let the programs started from here (a sweep, a Slurm task) not look into the current folder either.

    Where this one itself was found there (``python -m bench`` in a checkout), they must.
    """
    if Path(sys.path[0]).resolve() != Path.cwd():
        os.environ["PYTHONSAFEPATH"] = "1"


def _usage() -> str:
    lines = [f"  {name:10}{what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: draftbench COMMAND ...",
            "",
            *lines,
            "",
            "Each has a --help of its own. Settings are given as key=value: draftbench run method=pld task=gsm8k",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())

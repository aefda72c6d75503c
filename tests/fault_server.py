"""Runs the entry points in forks of one process that has imported everything: a trial costs no import of torch.

A request is a line of JSON, a list of runs that start together; the answer is a line with how each ended (``-9`` is a
kill). ``tests/fault_support.py`` talks to it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import tqdm
from fault_points import Fault, strike

import bench.figures
import bench.layout
import bench.report
import bench.run
import bench.session
import bench.tables
import methods.train.__main__
import methods.train.stages

ENTRY_POINTS = {
    "bench.run": bench.run.main,
    "bench.report": bench.report.main,
    "methods.train": methods.train.__main__.main,
}


def main() -> None:
    """Serve until the input ends."""
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        started = [_start(run) for run in json.loads(line)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started]
        answers.write(json.dumps(codes) + "\n")
        answers.flush()


def _start(run: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        _redirect(run["out"], run["err"])
        # The bar's own lock is shared between forks: whoever is killed holding it would stop all others.
        tqdm.tqdm.set_lock(threading.RLock())
        sys.argv = [run["module"], *run["arguments"]]
        if run["bytes"] is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (run["bytes"], run["bytes"]))
        if run["log"]:
            strike(Path(run["folder"]), Path(run["log"]), Fault(**run["fault"]) if run["fault"] else None)
        ENTRY_POINTS[run["module"]]()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001 a traceback is what a user would see
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(out: str, err: str) -> None:
    for path, handle in ((out, 1), (err, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, handle)
        os.close(opened)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)


if __name__ == "__main__":
    main()

"""``bench.run`` with a watch on it: after each block, how much memory and CPU time this process has taken.

``python -m tests.support.load_run OUTPUT ARGUMENTS...`` writes a JSON list to OUTPUT, an entry a block.
"""

from __future__ import annotations

import atexit
import json
import sys
import time
from pathlib import Path

import psutil
import torch

import bench.run
from bench.records.block import Block
from bench.records.store import Store


def main() -> None:
    """Run, and remember."""
    torch.set_num_threads(1)
    output, seen, process = Path(sys.argv[1]), [], psutil.Process()
    real = Store.append_block

    def append_block(store: Store, block: Block) -> None:
        before = time.process_time()
        real(store, block)
        now = time.process_time()
        steps = sum(len(turn.emitted) for run in block.runs for turn in run.turns)
        seen.append({"cpu_s": now, "append_s": now - before, "steps": steps, "bytes": process.memory_info().rss})

    Store.append_block = append_block  # type: ignore[method-assign]
    atexit.register(lambda: output.write_text(json.dumps(seen)))
    del sys.argv[1]
    bench.run.main()


if __name__ == "__main__":
    main()

"""One of many processes that want the same cells: takes whatever nobody holds, writes its records, goes on.

``python -m tests.support.race_worker FOLDER CELLS RECORDS SEED``; prints the cells that it wrote.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from bench.records.block import Block
from bench.records.lock import Busy
from bench.records.store import Store


def main(folder: Path, cells: int, records: int, seed: int) -> None:
    """Go round until every cell is done, each time in another order."""
    order = list(range(cells))
    chance = random.Random(seed)
    while order:
        chance.shuffle(order)
        for number in list(order):
            store = Store(folder / f"cell{number}")
            try:
                with store.writing():
                    if store.done() is None:
                        for index in range(len(store.blocks()), records):
                            store.append_block(Block(session=str(seed), question_id=str(index), runs=[]))
                        store.mark_done({"by": seed})
                        print(number)
            except Busy:
                continue
            order.remove(number)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))

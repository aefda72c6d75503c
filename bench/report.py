"""Entry point: ``python -m bench.report [table=...]``: records to tables and the page, without torch and a model."""

from __future__ import annotations

import sys

from omegaconf import DictConfig

from bench import grid, page
from bench.run import finish, launch, results_folder


def _report(config: DictConfig) -> int:
    cells, table, _ = grid.resolve(config)
    results = results_folder(config)
    code = finish(cells, table, results)
    print(f"wrote {page.write(results)}", file=sys.stderr)
    return code


def main() -> None:
    """Redraw from the records; exit 1 and a list where cells are missing or invalid, 2 if the request was wrong."""
    launch(_report)


if __name__ == "__main__":
    main()

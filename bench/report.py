"""Entry point: ``python -m bench.report [table=...]``: records to tables, without torch and without a model."""

from __future__ import annotations

from omegaconf import DictConfig

from bench import grid
from bench.run import finish, launch, results_folder


def _report(config: DictConfig) -> int:
    cells, table, _ = grid.resolve(config)
    return finish(cells, table, results_folder(config))


def main() -> None:
    """Redraw from the records; exit 1 and a list where cells are missing or invalid, 2 if the request was wrong."""
    launch(_report)


if __name__ == "__main__":
    main()

"""Lets a package outside this repository bring the YAML of its method: its ``conf`` folder joins Hydra's search path.

A package that registers ``draftbench.methods`` entry points and holds ``conf/method/<name>.yaml`` is then selected
like a built-in method, ``method=<name>``, without a fork and without ``--config-dir``.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin


class OutsideMethods(SearchPathPlugin):
    """Appends the ``conf`` folder of every package that registers a method. The package itself is not imported."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra when it starts."""
        entries = entry_points(group="draftbench.methods")
        for package in sorted({entry.value.split(":")[0].split(".")[0] for entry in entries}):
            spec = find_spec(package)
            for location in (spec.submodule_search_locations or []) if spec else []:
                if (Path(location) / "conf").is_dir():
                    search_path.append("draftbench", f"file://{Path(location) / 'conf'}")


def register() -> None:
    """Tell Hydra; must precede its start. Registering twice is harmless."""
    Plugins.instance().register(OutsideMethods)

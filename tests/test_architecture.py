"""docs/architecture.md shows the layers that the import contracts enforce, and every module stands in one of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def contract_layers(package: str) -> list[set[str]]:
    for contract in CONTRACTS:
        if contract["type"] == "layers" and contract["layers"][0].startswith(f"{package}."):
            return [
                {part.strip().removeprefix(f"{package}.") for part in layer.split("|")} for layer in contract["layers"]
            ]
    raise AssertionError(f"no layers contract for {package}")


def drawn_layers(package: str) -> list[set[str]]:
    picture = re.search(rf"^{package}\n((?:  .+\n)+)", PAGE, re.M)
    assert picture, f"no picture of {package}"
    # Names are one space or two apart; the explanation stands further right.
    return [set(re.split(r" {3,}", line.strip())[0].split()) for line in picture.group(1).splitlines()]


def modules_of(folder: Path) -> set[str]:
    """The packages and modules directly in a package, by name."""
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return modules | {path.parent.name for path in folder.glob("*/__init__.py")}


def expected_names(package: str, layers: set[str]) -> set[str]:
    """What must stand in the layers: every package and top module, or every module of a package that is split up."""
    split_up = {name.partition(".")[0] for name in layers if "." in name}
    names = modules_of(ROOT / package) - split_up
    return names | {f"{part}.{name}" for part in split_up for name in modules_of(ROOT / package / part)}


@pytest.mark.parametrize("package", ["bench", "methods"])
def test_the_picture_shows_the_contract(package: str) -> None:
    assert drawn_layers(package) == contract_layers(package)


@pytest.mark.parametrize("package", ["bench", "methods"])
def test_every_module_stands_in_a_layer(package: str) -> None:
    layers = set().union(*contract_layers(package))
    assert layers == expected_names(package, layers)


def test_the_page_is_one_screen() -> None:
    assert len(PAGE.splitlines()) <= 80

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
    # Names are one space or two apart; two columns of explanation stand further right.
    return [set(re.split(r" {3,}", line.strip())[0].split()) for line in picture.group(1).splitlines()]


@pytest.mark.parametrize("package", ["bench", "methods"])
def test_the_picture_shows_the_contract(package: str) -> None:
    assert drawn_layers(package) == contract_layers(package)


@pytest.mark.parametrize("package", ["bench", "methods"])
def test_every_module_stands_in_a_layer(package: str) -> None:
    modules = {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__"}
    modules |= {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert modules == set().union(*contract_layers(package))

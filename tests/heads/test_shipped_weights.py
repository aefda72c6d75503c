"""The heads that come with the package are the files that their manifests describe, and small enough for git."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from methods.common.paths import shipped

FOLDERS = sorted(path.parent for path in shipped("").rglob("manifest.json"))


def test_every_file_is_the_one_in_its_manifest() -> None:
    assert FOLDERS
    for folder in FOLDERS:
        listed = json.loads((folder / "manifest.json").read_text())["files"]
        assert set(listed) | {"manifest.json"} == {path.name for path in folder.iterdir()}
        for name, facts in listed.items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == facts["sha256"], f"{folder.name}/{name}"


def test_all_of_them_fit_in_45_mb() -> None:
    assert sum(path.stat().st_size for folder in FOLDERS for path in Path(folder).iterdir()) <= 45e6

"""Turn a pickled head (``.bin``, ``.pt``) into safetensors, with a manifest of what was read and written.

    python -m methods.loading.convert FOLDER_OR_FILE [--out FOLDER]

Only tensors are rebuilt from the pickle (``weights_only``); anything else in it is refused. ``config.json`` is copied.
Tensors that share memory (Hydra's tied blocks) are stored once per name, as safetensors wants.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from functools import partial
from pathlib import Path

from safetensors.torch import save_file

from methods.common.atomic_write import write_atomically
from methods.common.errors import ConfigError
from methods.common.file_hash import sha256
from methods.loading.tensor_files import read_tensors


def convert(source: Path, out: Path) -> Path:
    """Convert every ``.bin`` and ``.pt`` of a folder, or one file; return the manifest's path.

    Raises:
        ConfigError: if there is nothing to convert, or a file holds more than tensors.
    """
    files = [source] if source.is_file() else sorted([*source.glob("*.bin"), *source.glob("*.pt")])
    if not files:
        raise ConfigError(f"{source} holds no .bin or .pt file")
    out.mkdir(parents=True, exist_ok=True)
    entries = []
    for file in files:
        tensors = {name: tensor.clone().contiguous() for name, tensor in read_tensors(file).items()}
        target = out / f"{file.stem}.safetensors"
        write_atomically(target, partial(save_file, tensors, metadata={"format": "pt"}))
        entries.append(
            {
                "source": file.name,
                "source_sha256": sha256(file),
                "file": target.name,
                "sha256": sha256(target),
                "tensors": {
                    name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
                    for name, tensor in sorted(tensors.items())
                },
            }
        )
    config = files[0].parent / "config.json"
    if config.exists() and config.parent.resolve() != out.resolve():
        shutil.copy(config, out / "config.json")
    manifest = out / "manifest.json"
    write_atomically(manifest, json.dumps(entries, indent=1) + "\n")
    return manifest


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--out", type=Path, help="default: beside the source")
    options = parser.parse_args()
    beside = options.source if options.source.is_dir() else options.source.parent
    try:
        print(convert(options.source, options.out or beside))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

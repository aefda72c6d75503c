"""Repositories of the Hugging Face hub: which commit, which of its files, and those files in the hub's own cache.

The only file that reaches the network. Files come from a commit and never from a branch, so that a number can be
measured again; no code of a repository is fetched or run. A file in the cache is not asked for again, so a run after
``draftbench prefetch`` needs no network (``HF_HUB_OFFLINE=1``).
"""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from methods.common.errors import ConfigError
from methods.common.file_hash import sha256

PREFETCH = "draftbench prefetch with the settings of the run"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TEXT = (".json", ".model", ".jinja")
_TEXT_NAMES = ("merges.txt", "vocab.txt")
_PICKLED = (".bin", ".pt")
_SMALL = (".gitattributes", "config.json")
_LEFTOVERS = ("training_args", "optimizer", "scheduler", "rng_state", "consolidated")
"""What trainers leave beside the weights, and LLaMA's own format of the same weights."""


def is_commit(revision: str | None) -> bool:
    """Whether a revision names one state of a repository for good: 40 hex digits. A branch or a tag can move."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def needed(paths: Iterable[str]) -> list[str]:
    """The files of a model or a draft head that loading reads: config, tokenizer, weights in one format.

    Weights are safetensors where there are any; a pickle is taken only where it is all there is (EAGLE, Medusa and
    Hydra heads, Vicuna v1.3), and read through ``weights_only``.
    """
    top = [PurePosixPath(path) for path in paths if "/" not in path]
    top = [path for path in top if not path.name.startswith(_LEFTOVERS)]
    safe = {_weights(path) for path in top if path.suffix == ".safetensors"}
    kept = [
        path
        for path in top
        if path.suffix == ".safetensors"
        or (path.suffix in _PICKLED and _weights(path) not in safe)
        or ((path.suffix in _TEXT or path.name in _TEXT_NAMES) and not path.name.endswith(".index.json"))
        or (path.name.endswith(".index.json") and (".safetensors." in path.name or not safe))
    ]
    return sorted(path.name for path in kept)


def _weights(path: PurePosixPath) -> str:
    """What a weights file holds, whatever its format and however it is cut: ``model`` for a whole model."""
    return re.sub(r"-\d+-of-\d+$", "", path.stem).removeprefix("pytorch_")


def resolve(repository: str, revision: str | None, kind: str = "model") -> str:
    """The commit that a branch or tag stands for now (None: the default branch).

    Raises:
        ConfigError: if the hub cannot be asked, has no such repository or revision, or this user may not see it.
    """
    from huggingface_hub import HfApi

    with _in_one_line(repository, f"revision {revision or 'main'}", kind):
        commit = HfApi().repo_info(repository, revision=revision, repo_type=kind).sha
    assert commit is not None
    return commit


def sizes(repository: str, commit: str, kind: str = "model") -> dict[str, int]:
    """Every file of a commit with its size in bytes; from the cache where the listing was fetched before.

    A small file is fetched with it: a licence guards the files, while anybody may see the listing.

    Raises:
        ConfigError: as ``resolve``.
    """
    from huggingface_hub import get_cached_repo_tree, snapshot_download
    from huggingface_hub.errors import CachedRepoTreeNotFoundError
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    def listed() -> dict[str, int]:
        found = get_cached_repo_tree(repository, repo_type=kind, revision=commit)
        return {file.path: file.size for file in found}

    try:
        files = listed()
        if not absent(repository, commit, files.keys() & set(_SMALL), kind):
            return files
    except CachedRepoTreeNotFoundError:
        pass
    quiet = are_progress_bars_disabled()
    disable_progress_bars()  # three bars for a kilobyte
    try:
        with _in_one_line(repository, commit, kind):
            # Leaves the listing in the cache, which no call that only lists does.
            folder = snapshot_download(repository, revision=commit, repo_type=kind, allow_patterns=list(_SMALL))
            files = listed()
    finally:
        if not quiet:
            enable_progress_bars()
    for path in map(Path(folder).joinpath, _SMALL):
        if path.is_file():
            _check_hash(path, repository)
    return files


def cache() -> Path:
    """Where the hub's files are kept: ``HF_HUB_CACHE``, else under ``HF_HOME``."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def absent(repository: str, commit: str, files: Iterable[str], kind: str = "model") -> list[str]:
    """Those of a commit's files that the cache lacks."""
    from huggingface_hub import try_to_load_from_cache

    found = {file: try_to_load_from_cache(repository, file, revision=commit, repo_type=kind) for file in files}
    return [file for file, path in found.items() if not isinstance(path, str)]


def download(repository: str, commit: str | None, files: Sequence[str] | None = None, kind: str = "model") -> Path:
    """The folder of a commit with these files in it (None: what ``needed`` says), each checked by its hash when new.

    Raises:
        ConfigError: if ``commit`` is none, or a file cannot be had whole; it then is not there at all.
    """
    from huggingface_hub import hf_hub_download

    if commit is None or not is_commit(commit):
        raise ConfigError(
            f"{repository} has no commit (revision {commit}): a branch can move; run {PREFETCH}, or give a revision of "
            "40 hex digits"
        )
    wanted = needed(sizes(repository, commit, kind)) if files is None else list(files)
    if not wanted:
        raise ConfigError(f"{repository} (revision {commit}) holds no config and no weights in a format we read")
    new = set(absent(repository, commit, wanted, kind))
    folder = Path()
    for file in wanted:
        with _in_one_line(repository, file, kind):
            path = Path(hf_hub_download(repository, file, revision=commit, repo_type=kind))
        if file in new:
            _check_hash(path, repository)
        folder = path.parents[file.count("/")]
    return folder


def read_whole(url: str, otherwise: str) -> bytes:
    """A small file from the web. urllib counts its bytes: of a connection that is cut nothing is returned.

    Raises:
        ConfigError: if it is no web address, or the file cannot be had; ``otherwise`` says what else the user can do.
    """
    if not url.startswith(("https://", "http://")):
        raise ConfigError(f"{url} is no web address; give one that starts with https://")
    try:
        with urlopen(url, timeout=60) as answer:  # noqa: S310 the scheme is checked above
            data: bytes = answer.read()
            return data
    except HTTPError as error:
        why = f"the server answered {error.code}"
    except URLError as error:
        why = str(error.reason)
    except (HTTPException, OSError) as error:
        why = f"the transfer broke off ({type(error).__name__})"
    raise ConfigError(f"{url}: {why}; run it again, or {otherwise}")


def _check_hash(path: Path, repository: str) -> None:
    """The cache names a file's content by its hash: SHA-256, or git's SHA-1 for a small one. The transfer only counted
    bytes. A file that is another is removed."""
    blob = path.parent / path.readlink() if path.is_symlink() else path  # one step: a blob may itself be shared by link
    if re.fullmatch(r"[0-9a-f]{64}", blob.name):
        found = sha256(blob)
    elif _COMMIT.fullmatch(blob.name):
        data = blob.read_bytes()
        found = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    else:
        return  # a file system without symlinks: the name is the file's own
    if found != blob.name:
        path.unlink()
        blob.unlink(missing_ok=True)
        raise ConfigError(f"{repository}: {path.name} came with hash {found}, expected {blob.name}; run it again")


@contextmanager
def _in_one_line(repository: str, what: str, kind: str) -> Iterator[None]:
    """Say what is wrong in one line that names the file. No URL is shown: a signed one is as good as a password."""
    from huggingface_hub import errors

    page = f"https://huggingface.co/{'datasets/' if kind == 'dataset' else ''}{repository}"
    try:
        yield
    except errors.GatedRepoError:
        said = f"its licence must be accepted at {page}; then log in with: hf auth login (or set HF_TOKEN)"
    except errors.RepositoryNotFoundError:
        said = f"the hub shows no such {kind}; check {page}, and if it is private, log in with: hf auth login"
    except errors.RevisionNotFoundError:
        said = f"there is no such revision; see {page}/commits/main"
    except errors.OfflineModeIsEnabled:
        said = f"it is not in the cache and HF_HUB_OFFLINE is set; where there is a network, run {PREFETCH}"
    except errors.LocalEntryNotFoundError as error:
        offline = isinstance(error.__cause__, errors.OfflineModeIsEnabled)
        why = "HF_HUB_OFFLINE is set" if offline else f"the hub cannot be reached ({_cause(error)})"
        said = f"it is not in the cache and {why}; where there is a network, run {PREFETCH}"
    except errors.HfHubHTTPError as error:
        login = error.response.status_code in (401, 403)
        then = "log in anew with: hf auth login (or set HF_TOKEN)" if login else "run it again later"
        said = f"the hub answered {error.response.status_code} {error.response.reason_phrase}; {then}"
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        more = "; free some, or set HF_HOME to a larger disk" if full else "; run it again, whole files are kept"
        said = f"{error.strerror or _cause(error)} (in {cache()}){more}"
    except Exception as error:  # noqa: BLE001 each transport below (httpx, xet) has errors of its own
        said = f"the transfer broke off ({_cause(error)}); run it again, whole files are kept"
    else:
        return
    raise ConfigError(f"{repository} ({what}): {said}") from None


def _cause(error: BaseException) -> str:
    inner = error.__cause__ or error
    text = (str(inner).strip() or type(inner).__name__).splitlines()[0]
    return f"{type(inner).__name__}: {re.sub(r'https?://[^ ]+', 'URL', text)}"

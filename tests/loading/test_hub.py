"""Files of the hub, served by a server on this machine: which are taken, how they arrive, and what is said if not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from safetensors.torch import load, save

from methods.common.errors import ConfigError
from methods.loading import hub
from methods.loading.model import Source, outline
from tests.support.hub_server import HubServer, Repository, serving

WEIGHTS = bytes(range(256)) * 40
FILES = {
    ".gitattributes": b"*.safetensors filter=lfs\n",
    "README.md": b"# a model",
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": WEIGHTS,
    "original/consolidated.00.pth": WEIGHTS,
    "modeling_stranger.py": b"raise SystemExit",
}


@pytest.fixture
def server() -> Iterator[HubServer]:
    with serving(HubServer({"models/org/tiny": Repository(dict(FILES))})) as running:
        yield running


@pytest.fixture(autouse=True)
def client(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's client in this process asks that server and keeps what it gets in the test's own folder."""
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1024)  # what arrived in whole chunks is kept
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("time.sleep", lambda _: None)  # the client waits a second before it resumes
    return tmp_path / "hub"


def commit(server: HubServer, name: str = "models/org/tiny") -> str:
    return server.repositories[name].commit


def refusal(server: HubServer, repository: str = "org/tiny", revision: Any = "main") -> str:
    with pytest.raises(ConfigError) as refused:
        hub.download(repository, hub.resolve(repository, revision))
    assert "\n" not in str(refused.value)
    assert server.url not in str(refused.value)
    return str(refused.value)


def partial(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file() and "incomplete" in path.name]


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        # LLaMA: shards in two formats and Meta's own
        (
            "config.json generation_config.json tokenizer.json tokenizer.model tokenizer_config.json "
            "model-00001-of-00002.safetensors model-00002-of-00002.safetensors model.safetensors.index.json "
            "pytorch_model-00001-of-00002.bin pytorch_model-00002-of-00002.bin pytorch_model.bin.index.json "
            "original/consolidated.00.pth original/params.json LICENSE.txt USE_POLICY.md README.md .gitattributes",
            "config.json generation_config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors "
            "model.safetensors.index.json tokenizer.json tokenizer.model tokenizer_config.json",
        ),
        # Vicuna v1.3: pickled shards alone
        (
            "config.json tokenizer.model pytorch_model-00001-of-00002.bin pytorch_model-00002-of-00002.bin "
            "pytorch_model.bin.index.json README.md",
            "config.json pytorch_model-00001-of-00002.bin pytorch_model-00002-of-00002.bin "
            "pytorch_model.bin.index.json tokenizer.model",
        ),
        ("config.json pytorch_model.bin optimizer.bin training_args.bin", "config.json pytorch_model.bin"),
        ("config.json pytorch_model.bin model.safetensors", "config.json model.safetensors"),
        ("config.json medusa_lm_head.pt medusa_lm_head.safetensors", "config.json medusa_lm_head.safetensors"),
        ("config.json hydra_lm_head.pt", "config.json hydra_lm_head.pt"),
        ("config.json model.safetensors vocab.json merges.txt chat_template.jinja modeling_x.py tf_model.h5 "
         "flax_model.msgpack model.gguf", "chat_template.jinja config.json merges.txt model.safetensors vocab.json"),
    ],
    ids=["llama", "vicuna", "eagle head", "two formats", "medusa in two", "hydra", "every kind"],
)  # fmt: skip
def test_config_tokenizer_and_weights_in_one_format_are_taken(there: str, taken: str) -> None:
    assert hub.needed(there.split()) == taken.split()


def test_what_is_needed_arrives_and_is_asked_for_once(server: HubServer, client: Path) -> None:
    ours = hub.resolve("org/tiny", None)
    assert ours == commit(server) == hub.resolve("org/tiny", "main")
    folder = hub.download("org/tiny", ours)
    assert sorted(path.name for path in folder.iterdir() if path.suffix != "") == ["config.json", "model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    before = len(server.log)
    assert hub.download("org/tiny", ours) == folder
    assert hub.absent("org/tiny", ours, ["config.json", "model.safetensors"]) == []
    assert len(server.log) == before


def test_the_headers_of_a_target_in_the_cache_are_held_against_its_config(
    server: HubServer, tiny_model_folder: Path
) -> None:
    """Before it is there only the config is fetched; a wrong one that is there is refused by the tensor's name."""
    files = {path.name: path.read_bytes() for path in tiny_model_folder.iterdir()}
    fewer = load(files["model.safetensors"])
    fewer.pop("model.norm.weight")
    for name, weights in (("whole", files["model.safetensors"]), ("fewer", save(fewer, {"format": "pt"}))):
        server.repositories[f"models/org/{name}"] = Repository(files | {"model.safetensors": weights})
        source = Source("hub", f"org/{name}", commit(server, f"models/org/{name}"))
        assert outline(source).config.vocab_size
        assert hub.absent(source.id, str(source.revision), ["model.safetensors"])
        hub.download(source.id, source.revision)
    assert outline(Source("hub", "org/whole", commit(server, "models/org/whole"))).config.vocab_size
    with pytest.raises(ConfigError, match=r"org/fewer lacks the weights .*missing model\.norm\.weight"):
        outline(Source("hub", "org/fewer", commit(server, "models/org/fewer")))


def test_offline_serves_what_was_fetched_and_names_what_was_not(
    server: HubServer, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = commit(server)
    hub.sizes("org/tiny", ours)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"^org/tiny \(model\.safetensors\): .*HF_HUB_OFFLINE.*draftbench prefetch"):
        hub.download("org/tiny", ours)
    with pytest.raises(ConfigError, match=r"HF_HUB_OFFLINE is set; .*draftbench prefetch"):
        hub.download("org/other", ours)
    with pytest.raises(ConfigError, match=r"HF_HUB_OFFLINE is set; .*draftbench prefetch"):
        hub.resolve("org/tiny", "main")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.download("org/tiny", ours)
    before = len(server.log)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert (hub.download("org/tiny", ours) / "model.safetensors").read_bytes() == WEIGHTS
    assert len(server.log) == before


def test_a_cut_transfer_goes_on_where_it_stopped(server: HubServer, client: Path) -> None:
    server.cuts["model.safetensors"] = 2
    folder = hub.download("org/tiny", commit(server))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    # Half of 10,240 bytes, then half of the rest, each down to a whole chunk.
    assert server.fetched("model.safetensors") == [None, "bytes=5120-", "bytes=7168-"]
    assert partial(client) == []


def test_a_transfer_that_stays_cut_leaves_nothing_half_written(
    server: HubServer, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.repositories["models/org/tiny"].files["model-2.safetensors"] = WEIGHTS[::-1]
    server.failing["model.safetensors"] = 404
    said = refusal(server)
    assert said.startswith("org/tiny (model.safetensors): ")
    server.failing.clear()
    server.cuts["model.safetensors"] = 10**6
    assert refusal(server).startswith("org/tiny (model.safetensors): the transfer broke off (")
    assert partial(client) == []
    ours = commit(server)
    assert hub.absent("org/tiny", ours, ["model-2.safetensors", "model.safetensors"]) == ["model.safetensors"]
    server.cuts.clear()
    hub.download("org/tiny", ours)
    assert len(server.fetched("model-2.safetensors")) == 1  # what was whole was kept


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"], ids=["sha256", "git's sha1"])
def test_a_file_that_arrives_changed_is_named_and_removed(server: HubServer, client: Path, name: str) -> None:
    server.altered.add(name)
    said = refusal(server)
    data = FILES[name]
    right = hashlib.sha256(data) if name == "model.safetensors" else hashlib.sha1(b"blob %d\0" % len(data) + data)
    assert said.startswith(f"org/tiny: {name} came with hash ")
    assert f"expected {right.hexdigest()}" in said
    assert hub.absent("org/tiny", commit(server), [name]) == [name]
    server.altered.clear()
    assert (hub.download("org/tiny", commit(server)) / name).read_bytes() == data


def test_a_gated_model_says_which_page_and_how_to_log_in(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.repositories["models/org/tiny"].gated = True
    for token in (None, "hf_someoneelses"):
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        said = refusal(server)
        assert "accepted at https://huggingface.co/org/tiny" in said
        assert "hf auth login" in said
        assert "hf_someone" not in said
    assert not server.fetched("model.safetensors")
    server.tokens.add("hf_accepted1")
    monkeypatch.setenv("HF_TOKEN", "hf_accepted1")
    folder = hub.download("org/tiny", commit(server))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    written = [path for path in folder.parents[2].rglob("*") if path.is_file()]
    assert not any(b"hf_accepted1" in path.read_bytes() for path in written)


def test_what_is_not_there_is_said(server: HubServer) -> None:
    said = refusal(server, "org/tinny")
    assert said.startswith("org/tinny (revision main): the hub shows no such model; check https://huggingface.co/org")
    assert "there is no such revision" in refusal(server, revision="v2")
    for revision in (None, "main", "abc123"):
        with pytest.raises(ConfigError, match=r"has no commit \(revision .*draftbench prefetch.*40 hex digits"):
            hub.download("org/tiny", revision)


def test_a_server_in_trouble_is_named_by_its_answer(server: HubServer, client: Path) -> None:
    server.failing["api/models"] = 503
    assert refusal(server).startswith("org/tiny (revision main): the hub answered 503")
    server.failing = {"api/models": 403}
    assert "the hub answered 403 Forbidden; log in anew with: hf auth login" in refusal(server)
    server.failing = {"resolve": 500}
    assert refusal(server).startswith("org/tiny (")
    assert partial(client) == []


def test_a_disk_that_takes_no_more_is_said_with_the_file(
    server: HubServer, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    import signal

    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # the system then refuses to write on, as if full
    try:
        said = refusal(server)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old)
    assert said.startswith("org/tiny (model.safetensors): File too large")
    assert "set HF_HOME to a larger disk" in said
    assert partial(client) == []

"""A hub on this machine: a web server that speaks as much of the Hugging Face hub's protocol as its client needs.

Repositories are dictionaries of bytes. A file above 512 bytes counts as large: its name in the cache is then its
SHA-256, as on the hub. What can go wrong on the way is a setting of the server.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

LARGE = 512


@dataclass
class Repository:
    """One commit of one repository."""

    files: dict[str, bytes]
    gated: bool = False

    @property
    def commit(self) -> str:
        return hashlib.sha1(b"".join(name.encode() + data for name, data in sorted(self.files.items()))).hexdigest()


@dataclass
class HubServer:
    """``models/org/name`` or ``datasets/org/name`` -> repository; other paths are plain files."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    plain: dict[str, bytes] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)  # a file's name: how often its transfer stops in the middle
    altered: set[str] = field(default_factory=set)  # files that arrive with one byte changed
    failing: dict[str, int] = field(default_factory=dict)  # a part of a path: the status it is answered with
    claimed: dict[str, int] = field(default_factory=dict)  # a file's name: the size that its listing shows
    log: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, range
    tokens: set[str] = field(default_factory=set)  # who accepted the licence of gated repositories
    url: str = ""

    def fetched(self, name: str) -> list[str | None]:
        """The ranges asked of a file, one for each transfer."""
        return [span for method, path, span in self.log if method == "GET" and path.endswith(name)]


@contextmanager
def serving(hub: HubServer) -> Iterator[HubServer]:
    """Run it until the block ends."""

    class Handler(_Handler):
        server_hub = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server_hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer()

    def _answer(self) -> None:
        hub, path = self.server_hub, unquote(urlsplit(self.path).path).strip("/")
        hub.log.append((self.command, path, self.headers.get("Range")))
        for part, status in hub.failing.items():
            if part in path:
                return self._send(status, b"the server is unwell")
        if path in hub.plain:
            return self._file(path, hub.plain[path], {})
        listing = path.startswith("api/")
        kind, _, rest = path.removeprefix("api/").partition("/") if listing else ("models", "", path)
        if not listing and path.startswith("datasets/"):
            kind, rest = "datasets", path.removeprefix("datasets/")
        name, _, call = "/".join(rest.split("/")[:2]), "", "/".join(rest.split("/")[2:])
        found = hub.repositories.get(f"{kind}/{name}")
        if found is None:
            return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        verb, _, behind = call.partition("/")
        revision, _, file = behind.partition("/")
        if revision not in ("", "main", found.commit):
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if verb in ("", "revision"):
            return self._json({"id": name, "sha": found.commit, "siblings": [], "gated": found.gated and "manual"})
        if verb in ("tree", "paths-info"):
            return self._json([self._entry(each, data) for each, data in found.files.items()])
        if found.gated and (self.headers.get("Authorization") or "").removeprefix("Bearer ") not in hub.tokens:
            known = "Authorization" in self.headers
            return self._send(403 if known else 401, b"", {"X-Error-Code": "GatedRepo"})
        if file not in found.files:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": found.commit})
        tag = self._entry(file, found.files[file])
        etag = tag["lfs"]["oid"] if "lfs" in tag else tag["oid"]
        return self._file(file, found.files[file], {"X-Repo-Commit": found.commit, "ETag": f'"{etag}"'})

    def _entry(self, name: str, data: bytes) -> dict[str, object]:
        size = self.server_hub.claimed.get(name, len(data))
        git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        entry: dict[str, object] = {"type": "file", "path": name, "size": size, "oid": git}
        if len(data) > LARGE:
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": size, "pointerSize": 130}
        return entry

    def _file(self, name: str, data: bytes, headers: dict[str, str]) -> None:
        hub = self.server_hub
        if name in hub.altered:
            data = data[:-1] + bytes([data[-1] ^ 1])
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        whole, data = len(data), data[start:]
        if start:
            headers = headers | {"Content-Range": f"bytes {start}-{whole - 1}/{whole}"}
        cut = self.command == "GET" and hub.cuts.get(name, 0) > 0
        self._send(206 if start else 200, data, headers, len(data) // 2 if cut else None)
        if cut:
            hub.cuts[name] -= 1

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None, stop: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:stop])
            self.wfile.flush()
        if stop is not None:
            self.close_connection = True

"""A headless Chromium on a pipe: enough of the DevTools protocol to open a page, press keys and ask it questions."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KEYS = {"Enter": 13, "Tab": 9, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
PATIENCE_S = 60  # for one answer, on a machine that is busy


def executable() -> str:
    """The browser on PATH."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    raise AssertionError(
        f"no browser on PATH ({', '.join(NAMES)}); apt-get install chromium, or leave these tests out: -m 'not browser'"
    )


class Browser:
    """Speaks the protocol: NUL-terminated JSON down one pipe and up the other."""

    def __init__(self, down: int, up: int) -> None:
        self._down, self._up = down, up
        self._buffer = b""
        self._sent = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params}
        os.write(self._down, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self._sent:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def receive(self) -> dict[str, Any]:
        """The next message; events are kept too."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._up], [], [], PATIENCE_S)
            assert ready, "the browser does not answer"
            data = os.read(self._up, 1 << 16)
            assert data, "the browser has gone"
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message


class Page:
    """One tab. ``troubles`` are uncaught errors, console errors and refusals by the page's own policy."""

    def __init__(self, browser: Browser, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, path: Path) -> None:
        self._call("Page.navigate", url=path.as_uri())
        while not self._events("Page.loadEventFired"):
            self._browser.receive()

    def evaluate(self, expression: str) -> Any:
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, f"{expression}: {found['exceptionDetails']}"
        return found["result"].get("value")

    def press(self, *keys: str) -> None:
        for key in keys:
            same = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
            text = {"text": "\r"} if key == "Enter" else {}
            self._call("Input.dispatchKeyEvent", type="keyDown", **same, **text)
            self._call("Input.dispatchKeyEvent", type="keyUp", **same)

    def wait_for(self, expression: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"never became true: {expression}"
            time.sleep(0.05)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    @property
    def requests(self) -> dict[str, str | None]:
        """Everything the page tried to fetch, and what stopped it."""
        failed = self._events("Network.loadingFailed")
        stopped = {event["params"]["requestId"]: event["params"].get("blockedReason") for event in failed}
        tried = [event["params"] for event in self._events("Network.requestWillBeSent")]
        return {one["request"]["url"]: stopped.get(one["requestId"]) for one in tried}

    @property
    def troubles(self) -> list[str]:
        self.evaluate("new Promise((done) => setTimeout(done, 0))")  # what the page did so far has been reported
        log = [event["params"]["entry"] for event in self._events("Log.entryAdded")]
        thrown = [str(event["params"]["exceptionDetails"]) for event in self._events("Runtime.exceptionThrown")]
        return thrown + [entry["text"] for entry in log if entry["level"] == "error"]

    def _events(self, method: str) -> list[dict[str, Any]]:
        return [
            event
            for event in self._browser.events
            if event["method"] == method and event.get("sessionId") == self._session
        ]

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)


@contextmanager
def launched(profile: Path) -> Iterator[Browser]:
    """A browser of its own profile, gone at the end."""
    flags = [
        "--headless=new",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
        "--no-first-run",
        "--disable-gpu",
    ]
    flags += ["--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"]
    flags += ["--no-sandbox"] * (os.geteuid() == 0)  # root cannot have one
    theirs_in, down = os.pipe()
    up, theirs_out = os.pipe()
    # The protocol's ends are descriptors 3 and 4; moved up first, none of ours is in their place.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (theirs_in, theirs_out)]
    null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    dup = [(os.POSIX_SPAWN_DUP2, end, number) for end, number in zip(ends, (3, 4), strict=True)]
    path = executable()
    process = os.posix_spawn(path, [path, *flags], os.environ, file_actions=[*null, *dup], setpgroup=0)
    for end in (theirs_in, theirs_out, *ends):
        os.close(end)
    try:
        yield Browser(down, up)
    finally:
        os.close(down)
        os.close(up)
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)

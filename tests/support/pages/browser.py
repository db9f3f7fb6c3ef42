"""Chromium without a window, driven through its protocol for developer tools over two pipes.

Source: https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
_ACTING: dict[str, dict[str, Any]] = {
    "Tab": {"windowsVirtualKeyCode": 9},
    "Enter": {"windowsVirtualKeyCode": 13, "text": "\r"},
}
"""What the browser needs to know of keys that do something by themselves."""
_OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe")


class Page:
    """A page of the browser, with all that it has written to its console in ``messages``.

    ``requests`` has the addresses that it asked for, once the domain ``Network`` is enabled.
    """

    def __init__(self, to: BinaryIO, back: BinaryIO) -> None:
        self._to, self._back = to, back
        self._number = 0
        self._session: str | None = None
        self.messages: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            if answer.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                self.messages.append(json.dumps(answer["params"]))
            elif answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])

    def _read(self) -> Any:
        data = bytearray()
        while not data.endswith(b"\0"):
            byte = self._back.read(1)
            if not byte:
                raise RuntimeError("the browser has ended")
            data += byte
        return json.loads(data[:-1])

    def open(self, url: str) -> None:
        """Open an address, and wait until it is loaded."""
        self.call("Page.navigate", url=url)
        self.wait(f"location.href.startsWith({url!r}) && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression; of a promise, that which it is resolved with."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Wait until an expression is true."""
        script = (
            f"new Promise((done, failed) => {{ const end = Date.now() + {1000 * seconds}; (function look() {{"
            f" if ({condition}) done(true); else if (Date.now() > end) failed(new Error('never true'));"
            " else setTimeout(look, 20); })(); })"
        )
        self.run(script)

    def key(self, name: str) -> None:
        """Press a key."""
        more = _ACTING.get(name, {})
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, **more)

    def size(self, width: int, height: int, *, is_dark: bool = False) -> None:
        """Give the page a size, and a colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self) -> bytes:
        """A picture of the whole page, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Start the browser with a profile in ``folder``."""
    assert BROWSER is not None
    ends = [*os.pipe(), *os.pipe()]
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]  # above the numbers that the browser expects
    for end in ends:
        os.close(end)
    theirs_in, ours_out, ours_in, theirs_out = high
    null = os.open(os.devnull, os.O_WRONLY)
    actions = [
        (os.POSIX_SPAWN_DUP2, null, 2),  # first, for it may have one of the numbers below
        (os.POSIX_SPAWN_DUP2, theirs_in, 3),
        (os.POSIX_SPAWN_DUP2, theirs_out, 4),
    ]
    arguments = [BROWSER, *_OPTIONS, f"--user-data-dir={folder}"]
    process = os.posix_spawn(BROWSER, arguments, dict(os.environ), file_actions=actions)
    for end in (theirs_in, theirs_out, null):
        os.close(end)
    try:
        with os.fdopen(ours_out, "wb") as to, os.fdopen(ours_in, "rb") as back:
            yield Page(to, back)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)

"""Headless Chromium, driven through the pipe of its DevTools protocol: no driver, no port, no
library.

Messages are JSON, each ended by a zero byte, on the file descriptors 3 (to the browser) and 4 (from
it).
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
SECONDS = 30
NAMED_KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Escape": 27, "Enter": 13}


def chromium() -> str | None:
    """Return the path of a Chromium, or None."""
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


class Browser:
    """One page in a headless Chromium; ``messages`` collects errors and whatever was said on the
    console.
    """

    def __init__(self, profile: Path, *, width: int = 1400, height: int = 1000):
        to_browser, ours = os.pipe()
        theirs, from_browser = os.pipe()
        # The descriptors must be 3 and 4 over there, whatever they are here.
        script = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        command = [
            str(chromium()),
            *FLAGS,
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            "about:blank",
        ]
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", script, *command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.ours, self.theirs, self.buffer, self.number = ours, theirs, b"", 0
        self.session: str | None = None
        self.messages: list[str] = []
        (target,) = [
            t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page"
        ]
        self.session = self.send(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def send(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.ours, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page; a promise is waited for."""
        result = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a report and wait until it can be used."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=f"{path.as_uri()}{fragment}")
        self.wait("document.documentElement?.dataset.ready")

    def wait(self, condition: str) -> Any:
        """Return the value of ``condition`` once it is true."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            value = self.run(condition)
            if value:
                return value
            time.sleep(0.02)
        raise AssertionError(f"{SECONDS} seconds passed without: {condition}; {self.messages}")

    def key(self, name: str, *, shift: bool = False) -> None:
        """Press and release a key."""
        text = {} if name in NAMED_KEYS else {"text": name}
        code = {"windowsVirtualKeyCode": NAMED_KEYS[name]} if name in NAMED_KEYS else {}
        modifiers = 8 if shift else 0
        self.send(
            "Input.dispatchKeyEvent", type="keyDown", key=name, modifiers=modifiers, **text, **code
        )
        self.send("Input.dispatchKeyEvent", type="keyUp", key=name, modifiers=modifiers, **code)
        self.settle()

    def move(self, x: float, y: float, *, pressed: bool = False) -> None:
        """Move the pointer."""
        self.send(
            "Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, buttons=1 if pressed else 0
        )
        self.settle()

    def click(self, x: float, y: float, *, shift: bool = False) -> None:
        """Click at a place of the window."""
        self.drag((x, y), (x, y), shift=shift)

    def drag(
        self, start: tuple[float, float], end: tuple[float, float], *, shift: bool = False
    ) -> None:
        """Press at ``start``, move to ``end``, release."""
        event = {"button": "left", "clickCount": 1, "modifiers": 8 if shift else 0}
        self.move(*start)
        self.send(
            "Input.dispatchMouseEvent",
            type="mousePressed",
            x=start[0],
            y=start[1],
            buttons=1,
            **event,
        )
        if end != start:
            for share in (0.3, 0.7, 1):
                self.move(*(a + share * (b - a) for a, b in zip(start, end)), pressed=True)
        self.send("Input.dispatchMouseEvent", type="mouseReleased", x=end[0], y=end[1], **event)
        self.settle()

    def settle(self) -> None:
        """Wait until what was asked for is on the screen."""
        self.run(
            "new Promise((done) => requestAnimationFrame(() => setTimeout(() => "
            "requestAnimationFrame(done), 0)))"
        )

    def dark(self, dark: bool) -> None:
        """Prefer dark or light pages from now on."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)
        self.settle()

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write what is seen, or the whole page, as a PNG."""
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)[
            "data"
        ]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """End the browser."""
        self.session = None
        try:
            self.send("Browser.close")
        except (OSError, AssertionError):
            self.process.kill()
        self.process.wait(timeout=SECONDS)
        os.close(self.ours)
        os.close(self.theirs)

    def _receive(self) -> Any:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.theirs], [], [], SECONDS)
            data = os.read(self.theirs, 1 << 20) if ready else b""
            if not data:
                raise AssertionError(f"the browser does not answer; it said {self.messages}")
            self.buffer += data
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: Any) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.messages.append(
                str(
                    parameters["exceptionDetails"]
                    .get("exception", {})
                    .get("description", parameters)
                )
            )
        elif method == "Runtime.consoleAPICalled":
            self.messages.append(
                f"console.{parameters['type']}: {[a.get('value') for a in parameters['args']]}"
            )
        elif method == "Log.entryAdded":
            self.messages.append(f"{parameters['entry']['level']}: {parameters['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if not url.startswith(("file:", "data:", "blob:", "about:")):
                self.messages.append(f"asked for {url}")

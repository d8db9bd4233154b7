"""Headless Chromium by its DevTools protocol, over a pipe: nothing to install, no port."""

import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
needs_chromium = pytest.mark.skipif(not (CHROMIUM and shutil.which("bash")), reason="no Chromium here")
COMMAND = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "about:blank",
    ),
]
PATIENCE = 30  # seconds


class Browser:
    """A page in Chromium.

    Attributes:
        errors: What the console or an exception said, of the level of errors and warnings.
        requests: All that was asked for.
    """

    def __init__(self, commands: int, answers: int) -> None:
        """Take the two ends of the pipe, and open an empty page."""
        self._commands, self._answers = commands, answers
        self._left, self._numbers, self._session = b"", itertools.count(1), ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Any:
        """One command; its answer, once it is there."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self._note(answer.get("method", ""), answer.get("params", {}))
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            assert select.select([self._answers], [], [], PATIENCE)[0], "the browser is silent"
            more = os.read(self._answers, 1 << 20)
            assert more, "the browser has gone"
            self._left += more
        message, _, self._left = self._left.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, event: str, params: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params["args"]))

    def open(self, page: Path | str, width: int, dark: bool = False) -> None:
        """Open a file or an address in a window so wide."""
        url = page if isinstance(page, str) else page.as_uri()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=url)
        self.wait_for(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    @contextlib.contextmanager
    def in_frame(self) -> Iterator[None]:
        """Scripts run in the page's only frame, which has a process of its own as soon as it is loaded."""
        end = time.monotonic() + PATIENCE
        while not (
            frames := [each for each in self.send("Target.getTargets")["targetInfos"] if each["type"] == "iframe"]
        ):
            assert time.monotonic() < end, "there is no frame"
            time.sleep(0.02)
        (frame,) = frames
        session = self.send("Target.attachToTarget", targetId=frame["targetId"], flatten=True)["sessionId"]
        self._session, outside = session, self._session
        try:
            for domain in ("Runtime", "Log", "Network"):
                self.send(f"{domain}.enable")
            yield
        finally:
            self._session = outside

    def run(self, script: str) -> Any:
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, script: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.run(script):
            assert time.monotonic() < end, script
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """A key, as a hand presses it."""
        text = {"Enter": "\r"}.get(key)
        code = {"Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}[key]
        common: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def middle(self, selector: str) -> dict[str, float]:
        """Where the middle of an element is, once it has been scrolled to."""
        script = f"""(() => {{
            const element = document.querySelector({json.dumps(selector)});
            element.scrollIntoView({{block: "center", behavior: "instant"}});
            const box = element.getBoundingClientRect();
            return {{x: box.x + box.width / 2, y: box.y + box.height / 2}};
        }})()"""
        found: dict[str, float] = self.run(script)
        return found

    def point_at(self, selector: str) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", **self.middle(selector))

    def click(self, selector: str) -> None:
        at = self.middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Browser]:
    """A browser with a profile in an empty folder."""
    (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
    theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]  # where 3 and 4 are not
    for end in (theirs_in, theirs_out):
        os.close(end)
    words = [CHROMIUM, f"--user-data-dir={folder}", *COMMAND]
    shell = ["bash", "-c", f'exec "$0" "$@" 3<&{theirs[0]} 4>&{theirs[1]}', *words]
    with subprocess.Popen(shell, pass_fds=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        for end in theirs:
            os.close(end)
        try:
            yield Browser(ours_out, ours_in)
        finally:
            for end in (ours_out, ours_in):  # without its pipe it ends by itself
                os.close(end)
            process.wait(PATIENCE)

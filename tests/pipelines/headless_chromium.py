"""Headless Chromium, controlled through pipes with the DevTools protocol, without a port, a driver or a network."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from itertools import count
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class PageError(AssertionError):
    """The page raised an error or did not reach the expected state in time."""


class Page:
    """A tab of a separate Chromium process, which ends with the context. ``renew()`` replaces it by a new tab.

    ``errors`` collects exceptions and console errors. ``dialogs`` collects the texts of alert() and similar dialogs,
    which no hgld page opens. ``requests`` collects the requested URLs after ``call("Network.enable")``.
    """

    def __init__(self, profile: Path, width: int, height: int) -> None:
        self.size = width, height
        self._ids, self._buffer = count(1), b""
        command_out, self._write = os.pipe()
        self._read, answer_in = os.pipe()
        self._process = subprocess.Popen(
            [
                "bash",  # dash cannot redirect file descriptors above 9
                "-c",
                f'exec "$@" 3<&{command_out} 4>&{answer_in}',
                "sh",
                str(CHROMIUM),
                *_FLAGS,
                f"--user-data-dir={profile}",
            ],
            pass_fds=(command_out, answer_in),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_out)
        os.close(answer_in)
        self._context: str | None = None
        try:
            self.renew()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def renew(self) -> None:
        """Open a tab of the first size, without the storage, settings and errors of the tab before, which is closed."""
        self._session: str | None = None
        if self._context:
            self.call("Target.disposeBrowserContext", browserContextId=self._context)
        self._context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=self._context)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.errors: list[str] = []
        self.dialogs: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(*self.size)

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        self.call("Browser.close")
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(60)
            if answer.get("id") == number:
                if "error" in answer:
                    raise PageError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _next(self, timeout: float) -> dict[str, Any]:
        until = time.monotonic() + timeout
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, until - time.monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise PageError("Chromium does not answer")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(parameters["exceptionDetails"])[:500])
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Page.javascriptDialogOpening":
                self.dialogs.append(parameters["message"])

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression; await promises."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise PageError(f"{script}: {json.dumps(answer['exceptionDetails'])[:500]}")
        return answer["result"].get("value")

    def until(self, script: str, seconds: float = 60) -> Any:
        """Wait until an expression is true and return its value; errors of a loading page are ignored."""
        end, thrown = time.monotonic() + seconds, ""
        while time.monotonic() < end:
            try:
                if value := self.run(script):
                    return value
            except PageError as error:
                thrown = f"; it threw: {error}"
            time.sleep(0.02)
        raise PageError(f"never came true: {script}{thrown}; errors: {self.errors}")

    def press(self, key: str, *, text: str | None = None, modifiers: int = 0) -> None:
        text = text if text is not None else (key if len(key) == 1 else {"Enter": "\r"}.get(key, ""))
        code = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39}
        fields = {"key": key, "modifiers": modifiers, "windowsVirtualKeyCode": code.get(key, ord(key[0].upper()))}
        self.call("Input.dispatchKeyEvent", type="keyDown", **fields, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **fields)

    def write(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def mouse(self, kind: str, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

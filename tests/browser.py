"""A real browser, spoken to over its debugging pipe: what a page logs and loads, and what pointer and keys do in it."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

CHROMIUM = next(
    filter(
        None, map(shutil.which, ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome"))
    ),
    None,
)
FLAGS = shlex.split(
    "--headless --no-sandbox --disable-gpu --remote-debugging-pipe --no-first-run --disable-dev-shm-usage"
)


class Page:
    """One open page; commands are those of the Chrome DevTools Protocol."""

    def __init__(self, send, receive):
        self._send, self._receive = send, receive
        self._number, self._session = 0, None
        self._left = b""
        self.events = []

    def call(self, method, **params):
        """Run one command and return its result; events that come meanwhile are kept."""
        self._number += 1
        words = {"id": self._number, "method": method, "params": params}
        if self._session:
            words["sessionId"] = self._session
        os.write(self._send, json.dumps(words).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def _next(self):
        while b"\0" not in self._left:
            more = os.read(self._receive, 1 << 20)
            assert more, "the browser ended"
            self._left += more
        first, _, self._left = self._left.partition(b"\0")
        return json.loads(first)

    def open(self, address):
        """Load a page in a new tab and wait for it."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def run(self, script):
        """Return the value of a JavaScript expression, or of what it promises."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key):
        """Press a key where the focus is."""
        codes = {"ArrowRight": 39, "ArrowLeft": 37, "ArrowDown": 40, "Tab": 9, "Escape": 27}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key]
            )

    def point_at(self, selector):
        """Move the pointer to the middle of the first element."""
        self.run(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
        middle = f"(b => [b.x + b.width / 2, b.y + b.height / 2])(document.querySelector('{selector}').getBoundingClientRect())"
        x, y = self.run(middle)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def said(self, *methods):
        """Return the events of some kinds."""
        return [event["params"] for event in self.events if event.get("method") in methods]


@contextmanager
def browser(folder) -> Iterator[Page]:
    """Yield a page of a browser that starts with an empty profile and ends with the block."""
    to_browser, send = os.pipe()
    receive, from_browser = os.pipe()
    words = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
    process = subprocess.Popen(
        ["bash", "-c", words, CHROMIUM, *FLAGS, f"--user-data-dir={folder}"],
        pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_browser)
    os.close(from_browser)
    page = Page(send, receive)
    try:
        yield page
        page._session = None
        page.call("Browser.close")
    finally:
        process.kill()
        process.wait()
        os.close(send)
        os.close(receive)

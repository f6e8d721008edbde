"""A running `capplan serve` on a free port of this machine, and how tests ask it."""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[1]
JSON = {"Content-Type": "application/json"}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Served:
    """A server and its address."""

    def __init__(self, port, process, folder, token=""):
        self.port, self.process, self.folder = port, process, folder
        self.token = {"Authorization": f"Bearer {token}"} if token else {}

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method, path, body=None, headers=None, timeout=120):
        """Return status, headers and text of an answer; a body that is no text is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        text = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
        try:
            connection.request(
                method, path, text, {**(JSON if method == "POST" else {}), **self.token, **(headers or {})}
            )
            answer = connection.getresponse()
            text = answer.read().decode()
            return SimpleNamespace(status=answer.status, headers=answer.headers, text=text)
        finally:
            connection.close()

    def post(self, command, body, **more):
        return self.ask("POST", f"/v1/{command}", body, **more)

    def problem(self, command, body, **more):
        """Return the problem details of a request that is refused."""
        answer = self.post(command, body, **more)
        assert answer.status >= 400, answer.text
        assert answer.headers["Content-Type"] == "application/problem+json"
        return json.loads(answer.text)


@contextmanager
def server(folder, *flags, token=""):
    port = free_port()
    log = folder / "log"
    with log.open("w") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "capplan", "serve", "--port", str(port), "--offline", *flags],
            cwd=folder,
            stderr=written,
            stdout=written,
            env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
        )
    try:
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
        yield Served(port, process, folder, token)
    finally:
        process.terminate()
        process.wait(30)

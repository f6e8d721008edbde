"""What reaches the application: host, origin and token of a request, its size and its time, and the headers that keep a page from other sites."""

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from capplan.cli.api.jobs import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

API = "/v1/"
PROBLEM = "application/problem+json"
READ_TIMES = 4
"""A body of up to this many times the largest accepted one is read and dropped, so that its client receives the error."""
DRAINED_BYTES = 65_536
"""Most bytes that are read of the body of a request that its headers decide: a connection that closes on unread bytes loses the answer."""
DRAIN_S = 1.0
"""Longest time for reading them."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def problem(status: int, detail: str, **more: object) -> bytes:
    """Return problem details, as RFC 9457 has them."""
    said = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **more,
    }
    return json.dumps(said, ensure_ascii=False).encode("utf-8", "backslashreplace")


class _RefusedError(Exception):
    """A request that is answered with an error; `unread`: before its body was read."""

    def __init__(self, status: int, detail: str, *, unread: bool = True) -> None:
        super().__init__(detail)
        self.status, self.detail, self.unread = status, detail, unread


@dataclass
class Guard:
    """Passes the requests that may be answered on to the application, and answers the others with an error.

    Without a token only the names of this machine are hosts, so that no name that a stranger points to it is one. With a token any host is, because
    no browser sends a token by itself.
    """

    application: Application
    limits: Limits
    port: int
    token: str = ""
    held_bytes: int = 0
    """Bytes of the bodies of all requests that are not answered yet."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await (
                self.application(scope, receive, send)
                if scope["type"] == "lifespan"
                else send({"type": "websocket.close"})
            )
            return
        begun = False

        async def sent(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                own = {name for name, _ in message.get("headers", ())}
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [
                    *message.get("headers", ()),
                    *(one for one in added if one[0] not in own),
                ]
            async with asyncio.timeout(self.limits.read_s):
                await send(message)

        try:
            self._refuse_strangers(scope)
            body = await self._body(scope, receive)
            self.held_bytes += len(body)
            try:
                await self.application(scope, _replayed(body, receive), sent)
            finally:
                self.held_bytes -= len(body)
        except _RefusedError as refused:
            if refused.unread:
                await _drain(receive)
            await _refuse(sent, refused.status, refused.detail)
        except asyncio.CancelledError:  # the server ends
            if not begun:
                await _refuse(sent, 503, "the server ends")
        except TimeoutError:  # the client does not read
            if not begun:
                raise

    def _refuse_strangers(self, scope: Message) -> None:
        given: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            given.setdefault(name, []).append(value)
        hosts = [value.decode("latin-1").lower() for value in given.get(b"host", [])]
        known = {f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        known |= {"127.0.0.1", "localhost", "[::1]"} if self.port == 80 else set()
        if len(hosts) != 1 or not (self.token or hosts[0] in known):
            raise _RefusedError(421, "this server answers to its own address only: open it as it was printed")
        for origin in given.get(b"origin", []):
            if origin.decode("latin-1").lower() not in (f"http://{hosts[0]}", f"https://{hosts[0]}"):
                raise _RefusedError(403, "another site may not ask this server")
        if given.get(b"sec-fetch-site", [b"none"])[0] in (b"cross-site", b"same-site"):
            raise _RefusedError(403, "another site may not ask this server")
        if self.token and scope["path"].startswith(API):
            said = given.get(b"authorization", [b""])[0]
            if not hmac.compare_digest(said, f"Bearer {self.token}".encode()):
                raise _RefusedError(401, "a token is needed: Authorization: Bearer TOKEN")

    async def _body(self, scope: Message, receive: Receive) -> bytes:
        if scope["method"] not in ("POST", "PUT", "PATCH"):
            return b""
        headers = dict(scope["headers"])
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if kind != b"application/json":
            raise _RefusedError(415, "the body is a JSON object: Content-Type: application/json")
        most = self.limits.body_bytes
        too_large = _RefusedError(413, f"the body is larger than {most / 1e6:g} MB", unread=False)
        stated = headers.get(b"content-length", b"0")
        if stated.isdigit() and int(stated) > READ_TIMES * most:
            raise too_large
        body, left = bytearray(), READ_TIMES * most
        try:
            async with asyncio.timeout(self.limits.read_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return bytes(body)
                    part = message.get("body", b"")
                    left -= len(part)
                    if left < 0:
                        raise too_large
                    if self.held_bytes + len(body) > self.limits.held_bytes:
                        raise _RefusedError(
                            503, "other requests fill the memory of the server; try again", unread=False
                        )
                    body += part if len(body) <= most else b""
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise _RefusedError(
                408, f"the body took longer than {self.limits.read_s:g} s", unread=False
            ) from None
        if len(body) > most:
            raise too_large
        return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body that was read, and then waits until the client disconnects."""
    left = [body]

    async def received() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return received


async def _drain(receive: Receive) -> None:
    """Read and drop the beginning of a body that no answer needs."""
    left = DRAINED_BYTES
    try:
        async with asyncio.timeout(DRAIN_S):
            while left > 0:
                message = await receive()
                if not message.get("more_body"):
                    return
                left -= len(message["body"])
    except TimeoutError:
        return


async def _refuse(send: Send, status: int, detail: str) -> None:
    headers = [(b"content-type", PROBLEM.encode()), (b"connection", b"close")]
    if status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": problem(status, detail)})


class TimedHeaders(H11Protocol):  # type: ignore[misc]
    """Closes a connection whose request line and headers do not arrive in time."""

    HEADERS_S = 10.0

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        self._late: Any = None
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait until the headers are whole."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait()
        elif self._late is not None:
            self._late.cancel()
            self._late = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(self.HEADERS_S, self.transport.close)

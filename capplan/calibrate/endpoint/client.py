"""Send streamed completions to a server and note when each token arrives; what a server may do wrong becomes an error of one request."""

import http.client
import json
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

from capplan.readers.web_address import WebAddress, web_address

KEY = "OPENAI_API_KEY"
"""Environment variable that may hold the API key; it is neither written nor printed, not even where a server repeats it."""
MOST_LINE_BYTES = 1 << 20
MOST_ANSWER_BYTES = 64 << 20
MOST_ERROR_CHARACTERS = 160
OK = 200


@dataclass(frozen=True, slots=True)
class Endpoint(WebAddress):
    """A server, and how long one answer may take."""

    model: str = ""
    answer_s: float = 300.0
    """Longest time of one whole answer."""
    silence_s: float = 120.0
    """Longest time without a byte."""

    def without_key(self, text: str) -> str:
        """Return what the server said, with the API key hidden if it repeats it."""
        return text.replace(self.key, "***") if self.key else text

    def quoted(self, said: object) -> str:
        """Return the beginning of what the server said, on one line."""
        return " ".join(self.without_key(str(said)).split())[:MOST_ERROR_CHARACTERS]


@dataclass(frozen=True, slots=True)
class Question:
    """One request: token ids, or text for servers that take no ids."""

    prompt: tuple[int, ...] | str
    output_tokens: int
    priority: int | None = None
    returns_ids: bool = False
    """Ask for the ids of the generated tokens, which vLLM and SGLang stream next to their text (vllm-project/vllm#22587, sgl-project/sglang#30917)."""


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back."""

    sent_s: float
    """When the request was sent, on the monotonic clock."""
    token_s: tuple[float, ...] = ()
    """When each piece of the stream that holds text arrived."""
    input_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    ids: tuple[int, ...] = ()
    """Generated tokens, where the server returns them."""
    ended_s: float = 0.0
    error: str = ""
    """Why the request does not count; empty if it does."""
    busy: bool = False
    """The server refused because it is busy (429 or 503)."""


def endpoint_of(url: str) -> Endpoint:
    """Return the server at an address such as http://localhost:8000 or https://host/v1.

    Raises
    ------
    InputError
        the address has no host, another scheme, or holds a user name or a query
    """
    address = web_address(url, "--endpoint", KEY, "http://localhost:8000")
    path = address.path.removesuffix("/v1")
    return Endpoint(address.host, address.port, address.secure, path, address.key)


def headers(server: Endpoint) -> dict[str, str]:
    """Return the headers of a request."""
    base = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    return {**base, "Authorization": f"Bearer {server.key}"} if server.key else base


def fetched(server: Endpoint, path: str, most_bytes: int = 4 << 20, within_s: float = 10.0) -> str:
    """Return the text at a path of the server; empty if there is none."""
    line = server.connection(server.silence_s)
    line.timeout = min(within_s, server.silence_s)
    try:
        with _Limit(line, within_s):
            line.request("GET", server.path + path, headers=headers(server))
            answer = line.getresponse()
            if answer.status != OK:
                return ""
            text = answer.read(most_bytes + 1)
            if len(text) > most_bytes:
                return ""
            return server.without_key(text.decode("utf-8", errors="replace"))
    except (OSError, http.client.HTTPException, ValueError):
        return ""
    finally:
        line.close()


class _Limit:
    """Shuts a connection when its time is over, however slowly the server sends."""

    def __init__(self, line: http.client.HTTPConnection, seconds: float) -> None:
        self._line = line
        self.over = False
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def _end(self) -> None:
        self.over = True
        if self._line.sock is not None:
            try:
                self._line.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return

    def __enter__(self) -> "_Limit":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


def answered(server: Endpoint, question: Question) -> Answered:
    """Send one request and read its stream to the end."""
    body: dict[str, Any] = {
        "model": server.model,
        "prompt": question.prompt if isinstance(question.prompt, str) else list(question.prompt),
        "max_tokens": question.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if question.priority is not None:
        body["priority"] = question.priority
    if question.returns_ids:
        body["return_token_ids"] = True
    line = server.connection(server.silence_s)
    sent_s = time.monotonic()
    stream = _Stream(server, question.output_tokens)
    with _Limit(line, server.answer_s) as limit:
        try:
            line.request("POST", f"{server.path}/v1/completions", json.dumps(body), headers(server))
            answer = line.getresponse()
            if answer.status != OK:
                return _refused(server, answer, sent_s)
            stream.read(answer)
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as problem:
            why = server.quoted(problem) or type(problem).__name__
            stream.error = f"no whole answer within {server.answer_s:g} s" if limit.over else why
        finally:
            line.close()
    if limit.over and not stream.done:
        stream.error = f"no whole answer within {server.answer_s:g} s"
    return stream.result(sent_s)


def _refused(server: Endpoint, answer: http.client.HTTPResponse, sent_s: float) -> Answered:
    """Return the error of a status other than 200; redirects are not followed."""
    status = answer.status
    why = f"status {status}"
    if 300 <= status < 400:  # redirects
        why += ": the server redirects to another address, which is not followed"
    else:
        why += f": {server.quoted(answer.read(4096).decode('utf-8', errors='replace'))}"
    return Answered(sent_s, error=why, busy=status in (429, 503), ended_s=time.monotonic())


class _Stream:
    """Server-sent events of one answer."""

    def __init__(self, server: Endpoint, wanted_tokens: int) -> None:
        self._server = server
        self._wanted = wanted_tokens
        self._at_s: list[float] = []
        self._text: list[str] = []
        self._ids: list[int] = []
        self._usage: dict[str, Any] = {}
        self.error = ""
        self.done = False

    def read(self, answer: http.client.HTTPResponse) -> None:
        """Read to the end of the stream, or to its first fault."""
        size = 0
        while not self.done and not self.error:
            raw = answer.readline(MOST_LINE_BYTES + 1)
            now_s = time.monotonic()
            size += len(raw)
            if not raw:
                break
            if len(raw) > MOST_LINE_BYTES or size > MOST_ANSWER_BYTES:
                self.error = "the answer is larger than a completion can be"
                break
            self._line(raw, now_s)
        if not self.done and not self.error:
            self.error = self._cut()

    def _cut(self) -> str:
        """Return what is wrong with a stream that ended without its last line; some servers send none."""
        tokens = int(self._usage.get("completion_tokens") or len(self._at_s))
        if tokens >= self._wanted:
            return ""
        if not self._at_s:
            return "the answer is not a stream of server-sent events"
        return f"the stream ended after {tokens} of {self._wanted} tokens"

    def _line(self, raw: bytes, now_s: float) -> None:
        line = raw.strip()
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self.done = True
            return
        record = json.loads(data)
        if not isinstance(record, dict):
            self.error = "the stream holds something other than records"
        elif record.get("error"):
            self.error = f"the server reports: {self._server.quoted(record['error'])}"
        else:
            self._record(record, now_s)

    def _record(self, record: dict[str, Any], now_s: float) -> None:
        choices = record.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            delta = choice.get("delta")
            text = choice.get("text") or (delta.get("content") if isinstance(delta, dict) else "")
            ids = choice.get("token_ids")
            ids = ids if isinstance(ids, list) else []
            if text or ids or (text == "" and choice.get("finish_reason") is None):
                self._at_s.append(now_s)
                self._text.append(str(text or ""))
                self._ids += [token for token in ids if isinstance(token, int)]
        usage = record.get("usage")
        if isinstance(usage, dict):
            self._usage = usage

    def result(self, sent_s: float) -> Answered:
        """Return the answer; it counts only with at least one token and the number of tokens that was asked for."""
        count = self._usage.get("completion_tokens")
        tokens = count if isinstance(count, int) and count > 0 else len(self._at_s)
        prompt = self._usage.get("prompt_tokens")
        error = self.error
        if not error and not self._at_s:
            error = "the stream held no token"
        return Answered(
            sent_s=sent_s,
            token_s=tuple(self._at_s),
            input_tokens=prompt if isinstance(prompt, int) else 0,
            output_tokens=tokens,
            text="".join(self._text),
            ids=tuple(self._ids),
            ended_s=self._at_s[-1] if self._at_s else time.monotonic(),
            error=error,
        )

"""A hub on loopback that speaks the few answers of the protocol, and those that a hub, a mirror or a proxy should not give."""

import contextlib
import gzip
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Answers for a handful of repositories and remembers what it was asked."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.asked = []
        self.dropped = threading.Event()
        self.answering = {}
        """Repository -> what answers for it, one of ANSWERS."""
        self.files = {(name, "main", "config.json"): CONFIG for name in ("tiny/open", "tiny/drops")}
        self.refused = {
            "tiny/gated": (403, "GatedRepo"),
            "tiny/locked": (401, "GatedRepo"),
            "tiny/missing": (404, "RepoNotFound"),
            "tiny/broken": (500, "ServerError"),
        }

    def handle_error(self, *_):
        """Print nothing where a client goes away."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        self.server.asked.append((self.command, self.path, self.headers.get("Authorization")))
        parts = self.path.split("?")[0].strip("/").split("/")
        if len(parts) < 5 or parts[2] != "resolve":
            return self.send(404, {}, b"", body)
        repository, revision, name = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
        if repository == "tiny/slow":
            time.sleep(10)
        if repository == "tiny/drops" and body:
            return self.drops()
        if repository in self.server.answering and name == "config.json":
            return self.server.answering[repository](self, body)
        if repository in self.server.refused:
            status, code = self.server.refused[repository]
            return self.send(status, {"X-Error-Code": code, "X-Error-Message": code}, b"", body)
        if revision not in ("main", COMMIT, "v2"):
            return self.send(404, {"X-Error-Code": "RevisionNotFound"}, b"", body)
        config = self.server.files.get((repository, revision, name))
        if config is None:
            return self.send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, b"", body)
        content = json.dumps(config).encode()
        tag = hashlib.sha1(content).hexdigest()
        return self.send(200, {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT}, content, body)

    def drops(self):
        """Send the beginning of a file, and then a letter now and then."""
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b" ")
                self.server.dropped.set()
                time.sleep(0.05)

    def send(self, status, headers, content, body):
        self.send_response(status)
        for key, value in headers.items():
            if value is not None:
                self.send_header(key, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)


GOOD = json.dumps(CONFIG).encode()
BOMB = gzip.compress(b"{" + b" " * 50_000_000 + b"}")
SENT = {"ETag": '"abc"', "X-Repo-Commit": COMMIT}
HTML = b"<!DOCTYPE html><html><title>Log in</title><form></form></html>"


def sends(content=GOOD, status=200, **headers):
    """Return an answer with these bytes; a header of None is left out."""
    given = {**SENT, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return lambda handler, body: handler.send(status, given, content, body)


def on_get(answer):
    """Return an answer that is a good one while only the headers are asked for."""
    return lambda handler, body: (answer if body else sends())(handler, body)


def cut(share):
    """Return an answer that ends before its length is reached."""

    def answer(handler, body):
        handler.send(200, {**SENT, "Content-Length": str(len(GOOD))}, GOOD[: int(share * len(GOOD))], body)
        handler.close_connection = True

    return answer


def until_closed(handler, body):
    """Send a file without its length."""
    handler.send(200, {**SENT, "Content-Length": None}, GOOD, body)
    handler.close_connection = True


def endless(handler, body):
    """Send 50 MB, or what of them is read."""
    handler.send(200, {**SENT, "Content-Length": "50000000"}, b"", body)
    with contextlib.suppress(OSError):
        for _ in range(50 if body else 0):
            handler.wfile.write(b" " * 1_000_000)
            handler.server.sent_bytes = getattr(handler.server, "sent_bytes", 0) + 1_000_000
    handler.close_connection = True


def closes(handler, body):
    """Close the connection without an answer."""
    handler.close_connection = True


def raw(text):
    """Return what is no HTTP, or hardly."""

    def answer(handler, body):
        handler.wfile.write(text)
        handler.close_connection = True

    return answer


def leads(to):
    """Return a redirect."""
    return lambda handler, body: handler.send(
        302, {**SENT, "Location": to.format(own=handler.server.url, path=handler.path)}, b"", body
    )


ANSWERS = {
    # read all the same
    "a good one": (sends(), None),
    "of another type": (sends(Content_Type="text/html"), None),
    "packed": (on_get(sends(gzip.compress(GOOD), Content_Encoding="gzip")), None),
    "without its length": (until_closed, None),
    "an ETag that is a path": (sends(ETag='"../../../../etag"'), None),
    "no ETag": (sends(ETag=None), None),
    "longer than first stated": (on_get(sends(GOOD + b" " * 1000)), None),
    "after a redirect of its own": (on_get(leads("{own}/tiny/open/resolve/main/config.json")), None),
    # statuses
    **{
        f"status {status}": (sends(b"", status), says)
        for status, says in (
            (400, "status 400"), (401, "refuses access (status 401)"), (403, "refuses access (status 403)"), (404, "status 404"),
            (408, "status 408"), (410, "status 410"), (418, "status 418"), (429, "status 429"), (451, "status 451"),
            (500, "status 500"), (502, "status 502"), (503, "status 503"), (504, "status 504"),
        )
    },
    # other content
    "a page to log in": (sends(HTML, Content_Type="text/html"), "a web page"),
    "a page to log in, of a proxy": (sends(HTML, Content_Type="text/html", X_Repo_Commit=None, ETag=None), "does not answer as a hub"),
    "a list": (sends(b"[1]"), "is a list"),
    "nothing": (sends(b""), "is empty"),
    "no text": (sends(b"\xff\x00\x01" * 30), "is not UTF-8 text"),
    "no JSON": (sends(b"model: tiny"), "is not JSON"),
    "nested": (sends(b'{"a":' * 5000 + b"1" + b"}" * 5000), "nested too deeply"),
    # lengths
    "half": (on_get(cut(0.5)), ""),
    "nothing of it": (on_get(cut(0)), ""),
    "shorter than first stated": (on_get(sends(GOOD[:-9])), "is not JSON"),
    "50 MB": (endless, "more than 8 MB"),
    "a length of -5": (on_get(sends(Content_Length="-5")), ""),
    "a length of words": (on_get(sends(Content_Length="many")), ""),
    "a gzip that unpacks to 50 MB": (on_get(sends(BOMB, Content_Encoding="gzip")), "more than 8 MB"),
    "a gzip that is none": (on_get(sends(Content_Encoding="gzip")), "cannot be reached"),
    # places
    "a commit that is a path": (sends(X_Repo_Commit="../../../../outside"), "does not answer as a hub"),
    "a commit of words": (sends(X_Repo_Commit="main"), "does not answer as a hub"),
    "no commit": (sends(X_Repo_Commit=None), "does not answer as a hub"),
    # redirects and connections
    "a redirect to itself": (leads("{path}"), "redirects"),
    "a redirect to itself, on the file": (on_get(leads("{own}{path}")), "redirects"),
    "a redirect to a file of this machine": (on_get(leads("file:///etc/hostname")), "cannot be reached"),
    "a redirect to nobody": (on_get(leads("http://127.0.0.1:9/x")), ""),
    "a redirect to no address": (on_get(leads("http://[::1")), ""),
    "no answer": (closes, "cannot be reached"),
    "what is no HTTP": (raw(b"SSH-2.0-OpenSSH_9.6\r\n"), "cannot be reached"),
    "a header without end": (raw(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 300_000 + b"\r\n\r\n"), "cannot be reached"),
}  # fmt: skip
"""Answer -> what gives it, and words of the error; None where the model is read."""

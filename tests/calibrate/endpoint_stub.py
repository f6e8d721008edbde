"""A server on this machine that speaks the OpenAI protocol, well or badly."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Stub(BaseHTTPRequestHandler):
    """Answers as `server.behaviour` says; `server.seen` keeps the requests with their headers."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Stay quiet."""

    def do_GET(self):
        behaviour = self.server.behaviour
        if self.path in self.server.pages:
            return self.whole(200, self.server.pages[self.path](len(self.server.seen)).encode())
        if self.path.endswith("/metrics"):
            return self.whole(404, b"")
        if behaviour == "no models":
            return self.whole(404, b"{}")
        if behaviour == "huge models":
            return self.whole(200, b" " * (5 << 20))
        if behaviour == "deep models":
            return self.whole(200, b'{"data": ' + b"[" * 200_000)
        if str(behaviour).startswith("context "):
            said = behaviour.partition(" ")[2]
            return self.whole(200, b'{"data": [{"id": "tiny", "max_model_len": %s}]}' % said.encode())
        if behaviour == "redirects":
            return self.whole(307, b"", Location=f"http://127.0.0.1:{self.server.elsewhere}{self.path}")
        if behaviour == "llama.cpp":
            return self.whole(200, b'{"data": [{"id": "tiny", "owned_by": "llamacpp"}]}')
        names = str(behaviour)[7:].split(", ") if str(behaviour).startswith("serves ") else ["tiny"]
        return self.whole(
            200, json.dumps({"data": [{"id": name, "max_model_len": 600} for name in names]}).encode()
        )

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.seen.append((dict(self.headers), body))
            number = len(self.server.seen)
        behaviour = self.server.behaviour
        if callable(behaviour):
            behaviour = behaviour(number)
        if behaviour == "no ids" and "return_token_ids" in body:
            return self.whole(400, b'{"error": "extra inputs are not permitted"}')
        if behaviour == "echoes":
            return self.whole(401, f'{{"error": "bad key: {self.headers["Authorization"]}"}}'.encode())
        if behaviour == "text only" and not isinstance(body["prompt"], str):
            return self.whole(400, b'{"error": "prompt must be text"}')
        ways = {
            "redirects": self.redirects,
            "busy": self.busy,
            "fails": self.fails,
            "no stream": self.no_stream,
        }
        if behaviour in ways:
            return ways[behaviour]()
        return self.stream(body, behaviour)

    def whole(self, status, data, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def redirects(self):
        self.whole(307, b"", Location=f"http://127.0.0.1:{self.server.elsewhere}/v1/completions")

    def busy(self):
        self.whole(429, b'{"error": "too many requests"}')

    def fails(self):
        self.whole(500, b"out of memory")

    def no_stream(self):
        self.whole(200, b'{"choices": [{"text": "all at once"}]}')

    def piece(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def stream(self, body, behaviour):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        begun_s = self.ended_s = time.monotonic()
        with contextlib.suppress(OSError):
            self.pieces(body, behaviour)
        self.server.spans.append((begun_s, self.ended_s, body))

    def pieces(self, body, behaviour):
        wanted, prompt = body["max_tokens"], body["prompt"]
        length = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
        if behaviour == "hangs":
            self.server.over.wait(20.0)
        time.sleep(self.server.prompt_s)
        begin = time.perf_counter()
        for place in range(wanted):
            if behaviour == "cuts" and place == wanted // 2:
                self.close_connection = True
                return self.connection.close()
            if behaviour == "drips":
                for _ in range(50):
                    self.piece(b": \r\n")
                    time.sleep(0.05)
            self.token(place, behaviour, body)
            time.sleep(self.server.token_s)
        self.ended_s = time.monotonic()
        self.server.took_s.append((time.perf_counter() - begin) / wanted)
        usage = {"prompt_tokens": length, "completion_tokens": wanted}
        if behaviour != "no usage":
            self.piece(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        if behaviour != "no end":
            self.piece(b"data: [DONE]\n\n")
        return self.piece(b"")

    def token(self, place, behaviour, body):
        text = f" w{place}"
        choice = (
            {"delta": {"content": text}} if behaviour == "chat" else {"text": text, "finish_reason": None}
        )
        if body.get("return_token_ids"):
            choice["token_ids"] = [len(body["prompt"]) + place]
        if behaviour == "not json":
            return self.piece(b"data: {half of\n\n")
        if behaviour == "nested":
            return self.piece(b"data: " + b"[" * 200_000 + b"\n\n")
        if behaviour == "reports":
            return self.piece(b'data: {"error": {"message": "engine died"}}\n\n')
        if behaviour == "reports the key":
            said = json.dumps({"error": {"message": f"no such key: {self.headers['Authorization']}"}})
            return self.piece(b"data: " + said.encode() + b"\n\n")
        if behaviour == "huge":
            return self.piece(b"data: " + b"x" * (3 << 20) + b"\n\n")
        data = json.dumps({"choices": [choice]}).encode()
        if behaviour == "other lines":
            return self.piece(b"event: token\r\nid: 1\r\n: keep-alive\r\ndata:" + data + b"\r\n\r\n")
        return self.piece(b"data: " + data + b"\n\n")


PAGES = {"/metrics": lambda count: f'vllm:iteration_tokens_total_count{{engine="0"}} {count}.0\n'}
"""What the server says of itself, by path, after a number of requests."""


@contextlib.contextmanager
def stub(behaviour="", *, prompt_s=0.004, token_s=0.001, elsewhere=9, pages=PAGES):
    """Yield a running server.

    `url` is its address, `took_s` what a token of each answer took on the machine at hand, `spans` when each request came and its last token was sent.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    server.daemon_threads = True
    server.behaviour, server.seen, server.took_s, server.lock = behaviour, [], [], threading.Lock()
    server.spans = []
    server.prompt_s, server.token_s, server.elsewhere, server.over = (
        prompt_s,
        token_s,
        elsewhere,
        threading.Event(),
    )
    server.pages = pages
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()

"""Debian's Prometheus on loopback, and what engines expose: it scrapes a server of this process, or starts with a recorded past."""

import contextlib
import http.server
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import pytest

NEEDS_PROMETHEUS = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")),
    reason="no Prometheus is installed (apt-get install prometheus)",
)
BOUNDS = {
    "vllm:request_prompt_tokens": (100, 1000, 10000),
    "vllm:request_generation_tokens": (50, 100, 1000),
    "vllm:time_to_first_token_seconds": (0.1, 0.5, 1.0),
    "vllm:request_time_per_output_token_seconds": (0.01, 0.05, 0.1),
}


def exposed(
    requests, labels, *, shares=(0.5, 0.5, 0.0), means=(400.0, 60.0, 0.3, 0.02), hits=0.25, model="m"
):
    """Yield name, labels and value of each series of an engine after so many requests."""
    own = f'engine="0",model_name="{model}"{labels}'
    for (name, bounds), mean in zip(BOUNDS.items(), means, strict=True):
        reached = 0.0
        for bound, share in zip(bounds, shares, strict=True):
            reached += share
            yield f"{name}_bucket", f'{own},le="{bound}"', requests * reached
        yield f"{name}_bucket", f'{own},le="+Inf"', requests
        yield f"{name}_sum", own, requests * mean
        yield f"{name}_count", own, requests
    yield "vllm:request_success_total", f'{own},finished_reason="stop"', 0.75 * requests
    yield "vllm:request_success_total", f'{own},finished_reason="length"', 0.25 * requests
    yield "vllm:prefix_cache_queries_total", own, 400.0 * requests
    yield "vllm:prefix_cache_hits_total", own, 400.0 * hits * requests
    yield "vllm:num_requests_running", own, 3.0
    yield "vllm:num_requests_waiting", own, 1.0


def text_of(series, stamp=None, prefix="vllm:"):
    """Return series as Prometheus text."""
    tail = "" if stamp is None else f" {stamp}"
    return "".join(
        f"{name.replace('vllm:', prefix)}{{{labels}}} {value}{tail}\n" for name, labels, value in series
    )


class Exporter:
    """A server on loopback that exposes a text at every scrape."""

    def __init__(self, text):
        """Serve what `text()` returns."""

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = text().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self):
        """Start, and return the address."""
        self.thread.start()
        return f"127.0.0.1:{self.server.server_address[1]}"

    def __exit__(self, *_):
        """Stop."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def recorded(folder: Path, lines) -> None:
    """Write a past of Prometheus: lines of text, each with its time, name after name."""
    past = folder / "past.txt"
    with past.open("w", encoding="utf-8") as file:
        file.writelines(lines)
        file.write("# EOF\n")
    subprocess.run(
        [
            "promtool",
            "tsdb",
            "create-blocks-from",
            "openmetrics",
            "--max-block-duration=64h",
            past,
            folder / "data",
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )


@contextlib.contextmanager
def running(folder: Path, targets=(), jobs=("vllm",)):
    """Run Prometheus, which scrapes each target in each job every second, and give its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    scrapes = "".join(
        f"- job_name: {job}\n  static_configs: [{{targets: {[*targets]!r}}}]\n" for job in jobs if targets
    )
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        + (f"scrape_configs:\n{scrapes}" if scrapes else ""),
        encoding="utf-8",
    )
    command = [
        "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=60d", "--log.level=error",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}"
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{address}/-/ready", timeout=5) as answer,
            ):
                if answer.status == 200:
                    break
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(30)

"""`capplan calibrate --endpoint` against the live vLLM: `python -m calibrate.live.endpoint ENVIRONMENT FOLDER`; writes FOLDER/endpoint.calibration.yaml.

The loads of `calibrate.live.loads` are not in it, and `calibrate.live.queueing` compares them with what it predicts.
"""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from calibrate.live.loads import warmed
from calibrate.live.model import write_model
from calibrate.live.server import LIMITS, on_processor, running
from capplan.calibrate.endpoint.client import endpoint_of

MINUTES, MOST_IN_FLIGHT = "3", "12"
ENGINE = (
    "--weight-dtype", "fp32", "--kv-dtype", "fp32", "--engine", "vllm", "--engine-version", "0.32.0", "--max-model-len", "4096",
    "--max-num-seqs", "32", "--max-num-batched-tokens", "512",
)  # fmt: skip


def main(words: list[str]) -> int:
    """Start the engine, warm it, and calibrate it."""
    environment, folder = map(Path, words)
    model = write_model(folder / "tiny")
    with running(on_processor(environment), model, folder / "server", LIMITS) as live:
        warmed(replace(endpoint_of(live.url), model="tiny"))
        command = [
            sys.executable, "-m", "capplan", "calibrate", "--endpoint", live.url, "--minutes", MINUTES,
            "--max-concurrency", MOST_IN_FLIGHT, "--model", str(model), "--hardware", "measured",
            "--calibration", str(folder / "device.calibration.yaml"), *ENGINE, "-o", str(folder / "endpoint.calibration.yaml"),
        ]  # fmt: skip
        return subprocess.run(command, check=False).returncode  # noqa: S603  # the words above


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

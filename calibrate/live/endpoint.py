"""`capplan calibrate --endpoint` against the live vLLM, and right after it the open loops that it predicts: `python -m calibrate.live.endpoint ENVIRONMENT FOLDER`.

Writes FOLDER/endpoint/endpoint.calibration.yaml and records of loads that are not in it, which `calibrate.live.queueing` compares with what it
predicts. Rates are those of the closed loops in FOLDER.
"""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from calibrate.live.loads import CLOSED, OPEN, capacity_per_s, sent_in_turn, warmed
from calibrate.live.model import write_model
from calibrate.live.server import LIMITS, on_processor, running
from capplan.calibrate.endpoint.client import endpoint_of

MINUTES, MOST_IN_FLIGHT = "3", "12"
ENGINE = (
    "--weight-dtype", "fp32", "--kv-dtype", "fp32", "--engine", "vllm", "--engine-version", "0.32.0", "--max-model-len", "4096",
    "--max-num-seqs", "32", "--max-num-batched-tokens", "512",
)  # fmt: skip
ALONE = CLOSED[:1]
"""One user tells what a request spends outside the engine."""
REPEATS = 2


def main(words: list[str]) -> int:
    """Start the engine, warm it, calibrate it, and send each open loop as often as there are repeats."""
    environment, loops = map(Path, words)
    folder = loops / "endpoint"
    model = write_model(folder / "tiny")
    with running(on_processor(environment), model, folder / "server", LIMITS) as live:
        warmed(replace(endpoint_of(live.url), model="tiny"))
        command = [
            sys.executable, "-m", "capplan", "calibrate", "--endpoint", live.url, "--minutes", MINUTES,
            "--max-concurrency", MOST_IN_FLIGHT, "--model", str(model), "--hardware", "measured",
            "--calibration", str(loops / "device.calibration.yaml"), *ENGINE, "-o", str(folder / "endpoint.calibration.yaml"),
        ]  # fmt: skip
        code = subprocess.run(command, check=False).returncode  # noqa: S603  # the words above
        if code:
            return code
        highest = capacity_per_s(loops)
        for repeat in range(1, 1 + REPEATS):
            sent_in_turn(OPEN, live, folder, repeat, lambda load: load.share * highest)
        sent_in_turn(ALONE, live, folder, 1, lambda _: 0.0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

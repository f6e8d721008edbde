"""Everything about the live engine in turn: `python -m calibrate.live ENVIRONMENT FOLDER [PART ...]`; Ctrl-C ends engine and all."""

import subprocess
import sys
from pathlib import Path

from calibrate.live.environment import beside

PARTS = (
    "scheduler",
    "calibration",
    "loads",
    "endpoint",
    "fit",
    "table",
    "claims",
    "memory",
    "llamacpp",
    "results",
)


def words_of(part: str, environment: str, folder: str) -> list[list[str]]:
    """Return the commands of a part."""
    engine = [
        "--model", f"{folder}/tiny", "--hardware", "measured", "--calibration", f"{folder}/device.calibration.yaml",
        "--weight-dtype", "fp32", "--kv-dtype", "fp32", "--engine", "vllm", "--engine-version", "0.32.0",
        "--max-model-len", "4096", "--max-num-seqs", "32", "--max-num-batched-tokens", "512",
    ]  # fmt: skip
    measured, llamacpp = f"{folder}/device.calibration.yaml", str(beside(Path(environment)))
    closed = sorted(map(str, Path(folder).glob("closed-*.json")))
    fitted = f"{folder}/fitted.calibration.yaml"
    return {
        "scheduler": [
            ["calibrate.live.record_scheduler", environment, f"{folder}/scheduler"],
            ["calibrate.live.scheduler_table", f"{folder}/scheduler"],
        ],
        "calibration": [["capplan", "calibrate", "--device", "cpu", "--minutes", "2", "-o", measured]],
        "loads": [
            ["calibrate.live.loads", environment, folder, series, "1", "2", "3"]
            for series in ("closed", "open")
        ],
        "endpoint": [["calibrate.live.endpoint", environment, folder]],
        "fit": [["capplan", "calibrate", "--from", *closed, *engine, "-o", fitted]],
        "table": [
            ["calibrate.live.queueing", folder, f"{folder}/tiny", measured, fitted],
            [
                "calibrate.live.queueing",
                f"{folder}/endpoint",
                f"{folder}/tiny",
                f"{folder}/endpoint/endpoint.calibration.yaml",
            ],
        ],
        "claims": [["calibrate.live.claims", folder, fitted, environment]],
        "memory": [["calibrate.live.memory", environment, folder]],
        "llamacpp": [
            ["calibrate.live.llamacpp", llamacpp, f"{folder}/slots"],
            ["calibrate.live.llamacpp_loads", llamacpp, f"{folder}/llamacpp", measured],
            ["calibrate.live.llamacpp_table", f"{folder}/llamacpp"],
            ["calibrate.live.llamacpp_bench", llamacpp, f"{folder}/bench"],
        ],
        "results": [["calibrate.live.results", folder, environment], ["calibrate.live.evidence_files"]],
    }[part]


def main(words: list[str]) -> int:
    """Run all parts, or the named ones, until one fails."""
    environment, folder, *parts = words
    Path(folder).mkdir(parents=True, exist_ok=True)
    for part in parts or PARTS:
        print(f"== {part}", flush=True)
        for command in words_of(part, environment, folder):
            code = subprocess.run([sys.executable, "-m", *command], check=False).returncode  # noqa: S603  # the words above
            if code:
                return code
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

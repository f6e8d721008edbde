"""Everything worth knowing about a card that is at hand for ten minutes, in one command, into one folder.

    python -m calibrate.campaign OUT                 a full calibration, four models verified, kernels that it leaves out
    python -m calibrate.campaign OUT --minutes 5     in less time
    bash calibrate/campaign.sh OUT                   the same where pydantic, PyYAML or scipy are not installed (see there)

Each step is a process of its own: an error of CUDA that stays with its process costs only that step. A step that takes too
long gets the signal of Ctrl-C, upon which it writes what it has. `summary.json` says what each step did and how long it took.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from capplan.readers.local_machine import ask_tool

MINUTES = 9.0
MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite", "qwen3-32b")
CALIBRATION = "card.calibration.yaml"
CALIBRATED_FRACTION = 0.5
"""Of the time, for measuring; the fit and the start of torch come on top."""
FIT_S = 75.0
"""Kept for the fit and the start of a process."""
VERIFIED_S = 45.0
EXTRA_S = 60.0
GRACE_S = 25.0
"""After the signal, for writing what was measured."""
LIBRARIES = (
    "torch", "triton", "numpy", "scipy", "pydantic", "transformers", "flashinfer-python", "flash-attn", "flash-attn-3",
    "flash-mla", "deep-gemm", "vllm", "sglang", "tensorrt-llm",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One process of a campaign."""

    name: str
    command: tuple[str, ...]
    longest_s: float


@dataclass(frozen=True, slots=True)
class Done:
    """How a step ended."""

    name: str
    command: str
    seconds: float
    code: int | None
    """Exit code; None where it had to be killed."""
    ended: str
    """by itself, interrupted (out of time), killed, or skipped (no time left)."""


def steps_of(folder: Path, device: str, minutes: float, models: Sequence[str]) -> list[Step]:
    """Return the processes of a campaign, in the order of their worth.

    Parameters
    ----------
    folder : that everything is written to
    device : as torch names it
    minutes : for all of it [min]
    models : to verify
    """
    capplan = (sys.executable, "-m", "capplan", "calibrate", "--device", device)
    calibration = str(folder / CALIBRATION)
    measuring = max(CALIBRATED_FRACTION * minutes, 0.05)
    plan = Step("plan", (*capplan, "--dry-run", "--format", "json", "-o", str(folder / "plan.json")), 40.0)
    calibrate = Step(
        "calibrate",
        (*capplan, "--force", "--minutes", f"{measuring:.2f}", "-o", calibration, "--format", "json"),
        60.0 * measuring + FIT_S,
    )
    extra = Step(
        "extra kernels",
        (sys.executable, "-m", "calibrate.extra_kernels", str(folder / "extra.json"), "--device", device),
        EXTRA_S,
    )
    verify = [
        Step(
            f"verify {model}",
            (
                *capplan, "--force", "--verify", model, "--calibration", calibration, "--quick", "--offline", "--format",
                "json", "-o", str(folder / f"verify-{model}.json"),
            ),
            VERIFIED_S,
        )
        for model in models
    ]  # fmt: skip
    return [plan, calibrate, *verify[:2], extra, *verify[2:]]


def run_step(step: Step, folder: Path, left_s: float) -> Done:
    """Run one process, with its output in files; end it in time.

    Parameters
    ----------
    step : what to run
    folder : for the output
    left_s : of the campaign [s]
    """
    longest_s = min(step.longest_s, left_s - GRACE_S)
    command = " ".join(step.command)
    if longest_s <= 1.0:
        return Done(step.name, command, 0.0, None, "skipped (no time left)")
    base = folder / step.name.replace(" ", "-").replace("/", "-")
    begin = time.monotonic()
    with base.with_suffix(".out").open("w") as out, base.with_suffix(".err").open("w") as err:
        process = subprocess.Popen(  # noqa: S603 - commands of this file
            step.command,
            stdout=out,
            stderr=err,
            preexec_fn=_hear_ctrl_c,  # noqa: PLW1509 - there is one thread
        )
        ended = _wait(process, longest_s)
    return Done(step.name, command, time.monotonic() - begin, process.returncode, ended)


def _hear_ctrl_c() -> None:
    """Let a step hear the signal that ends it: where a campaign runs in the background, shells ignore it for all its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _wait(process: subprocess.Popen[bytes], longest_s: float) -> str:
    try:
        process.wait(longest_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    else:
        return "by itself"
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "killed"
    return "interrupted (out of time)"


def surroundings() -> dict[str, object]:
    """Return the software of this machine, by name and version; None where it is not installed."""
    versions: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {"python": platform.python_version(), "system": platform.platform(), "libraries": versions}


def driver_text() -> str:
    """Return everything that the driver's tool says of the cards; empty without it."""
    for command in (["nvidia-smi", "-q"], ["rocm-smi", "--showallinfo"]):
        if text := ask_tool(*command, longest_s=30.0).text:
            return text
    return ""


def campaign(
    folder: Path, steps: Sequence[Step], minutes: float, tell: Callable[[str], None] = print
) -> list[Done]:
    """Run the steps one after the other, and write the summary after each.

    Parameters
    ----------
    folder : that everything is written to
    steps : in order
    minutes : for all of them [min]
    tell : receives a line for each step
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "driver.txt").write_text(driver_text(), encoding="utf-8")
    end, done = time.monotonic() + 60.0 * minutes, []
    for step in steps:
        done.append(run_step(step, folder, end - time.monotonic()))
        tell(f"{step.name}: {done[-1].ended} after {done[-1].seconds:.0f} s, exit code {done[-1].code}")
        summary = {**surroundings(), "steps": [asdict(one) for one in done]}
        (folder / "summary.json").write_text(json.dumps(summary, indent=1), encoding="utf-8")
    return done


def main(words: Sequence[str] | None = None) -> int:
    """Run a campaign; the exit code is 0 where a calibration was written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    asked = parser.parse_args(words)
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    campaign(asked.folder, steps_of(asked.folder, asked.device, asked.minutes, asked.models), asked.minutes)
    return 0 if (asked.folder / CALIBRATION).exists() else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""What all tests share: the program in this process or in one of its own, and the golden files."""

import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from hypothesis import settings

# Continuous integration asks the same questions every time; new ones are asked at every run elsewhere.
settings.register_profile("ci", derandomize=True, print_blob=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Ran:
    """What a run of the program left behind."""

    code: int
    out: str
    err: str


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden anew; review the difference"
    )


@pytest.fixture
def root():
    return ROOT


@pytest.fixture
def capplan(capsys, monkeypatch):
    """Run a command line in this process, from the root of the repository."""
    from capplan.cli.main import main

    monkeypatch.chdir(ROOT)

    def run(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        caught = capsys.readouterr()
        return Ran(code, caught.out, caught.err)

    return run


@pytest.fixture
def program():
    """Run the program in a process of its own, with chosen environment variables."""

    def run(*words, env=None, cwd=ROOT, timeout=60):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "NO_COLOR"))}
        environment |= {"PYTHONPATH": str(ROOT), **(env or {})}
        done = subprocess.run(
            [sys.executable, "-m", "capplan", *map(str, words)],
            capture_output=True,
            text=True,
            env=environment,
            cwd=cwd,
            timeout=timeout,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def golden(request):
    """Compare text with a file of tests/golden; `pytest --update-golden` writes it."""

    def compare(name, text):
        path = ROOT / "tests" / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path.relative_to(ROOT)} is missing: write it with pytest --update-golden"
        assert text == path.read_text(encoding="utf-8"), (
            "differs: pytest --update-golden, then review the diff"
        )

    return compare


@pytest.fixture(scope="session")
def numbers():
    """Return the numbers of an answer in order, without what only echoes the question: words, and values of that name."""

    def found(value, asked):
        if isinstance(value, dict):
            return [
                n
                for key, inner in value.items()
                if key != asked or isinstance(inner, (dict, list))
                for n in found(inner, asked)
            ]
        if isinstance(value, list):
            return [len(value), *(number for inner in value for number in found(inner, asked))]
        return [value] if isinstance(value, (int, float)) else []

    return found


@pytest.fixture(scope="session")
def host_file():
    """Return the text of a calibration whose host takes 20 ms a step: vLLM on an H100."""
    from capplan.engine.lookup import profile
    from capplan.readers.calibration.file import calibration_text
    from capplan.readers.calibration.record import HostRefit, ResultPoint

    own = profile("vllm")
    point = ResultPoint("run.json", "tpot_s", "llama-3.1-8b", 1.0, 0.03, 0.01, 0.03, 0.03)
    slow = asdict(own.host) | {"step_s": 0.02}
    return calibration_text(
        None,
        HostRefit(
            "vllm", own.version, "h100-sxm", (), (), {}, slow, 0.1, 0.1, 0.1, "2026-01-01", (), (point,)
        ),
    )

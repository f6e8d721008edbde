"""The steps of the Dockerfile, run without a builder: how much they add to the base image, and whether the installed program answers and serves.

    python -m tests.installs.container

The packages of the system and Python are those of the machine at hand.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.installs.built import copied
from tests.installs.environment import ROOT, record
from tests.served import free_port

MOST_MB = 300 - 125
"""Largest size of the installed program: an image of at most 300 MB less the 125 MB of Python's slim image [MB]."""


def steps() -> list[str]:
    """Return the commands of the first stage, without those of the system."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    first, _, _ = text.partition("\nFROM base\n")
    return [line for line in re.findall(r"^RUN (.*)$", first, re.MULTILINE) if "apt-get" not in line]


def built(constraints: str, folder: Path) -> tuple[int, str]:
    """Run the steps with some constraints in a folder, and return the size of what is installed [MB] and what the program answers."""
    source, target = copied(folder / "src"), folder / "capplan"
    here = f"python{sys.version_info.major}.{sys.version_info.minor}"
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "CONSTRAINTS": constraints}
    for step in steps():
        script = step.replace("/capplan", str(target)).replace("python3.12", here)
        subprocess.run(["bash", "-ec", script], cwd=source, env=env, check=True)
    files = [path for path in target.rglob("*") if path.is_file() and not path.is_symlink()]
    program = str(target / "bin" / "capplan")
    if constraints == "serve":
        return _megabytes(files), _page(program, folder, env)
    words = [program, "fleet", "small-team", "--offline"]
    shown = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout
    return _megabytes(files), shown.splitlines()[0]


def _megabytes(files: list[Path]) -> int:
    return round(sum(path.stat().st_blocks * 512 for path in files) / 1e6)


def _page(program: str, folder: Path, env: dict[str, str]) -> str:
    """Return the title of the page that the program serves."""
    port = free_port()
    server = subprocess.Popen([program, "serve", "--port", str(port), "--offline"], cwd=folder, env=env)
    try:
        until = time.monotonic() + 60.0
        while True:
            try:
                with urlopen(f"http://127.0.0.1:{port}/") as answer:
                    return re.findall("<title>(.*)</title>", answer.read().decode())[0]
            except URLError:
                if time.monotonic() > until or server.poll() is not None:
                    raise
                time.sleep(0.2)
    finally:
        server.terminate()
        server.wait()


def main() -> int:
    """Build both images, measure them, and ask each a question."""
    largest = 0
    for constraints in ("plan", "serve"):
        with tempfile.TemporaryDirectory() as name:
            size_mb, said = built(constraints, Path(name))
        print(f"{constraints}: {size_mb} MB; {said}")
        largest = max(largest, size_mb)
        if constraints == "plan":
            record("build", "container", {"mb": size_mb})
    return 0 if largest <= MOST_MB else 1


if __name__ == "__main__":
    sys.exit(main())

"""The steps of the Dockerfile, run without a builder: how much they add to the base image, and whether the installed program answers.

    python -m tests.installs.container

The packages of the system and Python are those of the machine at hand.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.installs.built import copied
from tests.installs.environment import ROOT, record

MOST_MB = 300 - 125
"""Largest size of the installed program: an image of at most 300 MB less the 125 MB of python:3.12-slim [MB]."""


def steps() -> list[str]:
    """Return the commands of the first stage, without those of the system."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    first, _, _ = text.partition("\nFROM python:3.12-slim\n")
    return [line for line in re.findall(r"^RUN (.*)$", first, re.MULTILINE) if "apt-get" not in line]


def main() -> int:
    """Run the steps in a folder of their own, measure it, and ask a question."""
    with tempfile.TemporaryDirectory() as name:
        source, target = copied(Path(name) / "src"), Path(name) / "capplan"
        here = f"python{sys.version_info.major}.{sys.version_info.minor}"
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        for step in steps():
            script = step.replace("/capplan", str(target)).replace("python3.12", here)
            subprocess.run(["bash", "-ec", script], cwd=source, env=env, check=True)
        files = [path for path in target.rglob("*") if path.is_file() and not path.is_symlink()]
        size_mb = round(sum(path.stat().st_blocks * 512 for path in files) / 1e6)
        words = [str(target / "bin" / "capplan"), "fleet", "small-team", "--offline"]
        shown = subprocess.run(words, cwd=name, env=env, capture_output=True, text=True, check=True).stdout
    print(f"{size_mb} MB; {shown.splitlines()[0]}")
    record("build", "container", {"mb": size_mb})
    return 0 if size_mb <= MOST_MB else 1


if __name__ == "__main__":
    sys.exit(main())

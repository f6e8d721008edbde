"""Where the data files that ship with the package are: inside it when installed, beside it in a checkout."""

from importlib.resources import files
from pathlib import Path


def data_folder(name: str) -> Path:
    """Return a folder of shipped data, such as hardware_specs or scenarios."""
    package = Path(str(files("capplan")))
    inside = package / name
    return inside if inside.is_dir() else package.parent / name

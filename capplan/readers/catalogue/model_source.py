"""Where the config of a model was read, for the list of sources of a report."""

from pathlib import Path

from capplan.hardware.device import Source
from capplan.readers.catalogue.models import FOLDER, shipped_folder, shipped_id
from capplan.readers.data_folder import data_folder
from capplan.readers.yaml_file import read_yaml


def model_source(name: str, revision: str | None = None) -> Source:
    """Return where MODEL was read: a file, the shipped catalogue with its own source, or the hub.

    Parameters
    ----------
    name : as given to `read_model`
    revision : asks the hub even where the model is shipped

    Returns
    -------
    a source with a title, and an address where there is one

    Examples
    --------
    >>> model_source("llama-3.1-8b-instruct").title
    'meta-llama/Llama-3.1-8B-Instruct, config as shipped'
    """
    if Path(name).expanduser().exists():
        return Source("model", f"config of {Path(name).name}", note="a file beside the scenario")
    model = None if revision else shipped_id(name)
    if model is None:
        at = revision or "main"
        return Source("model", f"{name}, revision {at}", url=f"https://huggingface.co/{name}/tree/{at}")
    folder = shipped_folder(model)
    origin = read_yaml(data_folder(FOLDER) / folder / "source.yaml", kind="a model's source").value
    base = folder.replace("--", "/", 1)
    of = "" if base == model else f" (a variant of {base})"
    return Source("model", f"{model}, config as shipped{of}", note=_first_source(origin))


def _first_source(origin: dict[str, object]) -> str | None:
    text = origin.get("source")
    return str(text) if text else None

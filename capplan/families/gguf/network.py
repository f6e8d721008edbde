"""The header of a GGUF file -> a Network in the formats of its tensors."""

from dataclasses import replace

from capplan.families.gguf.architectures import config_of
from capplan.families.gguf.tensors import tables, with_stored_formats
from capplan.families.model_config import read_network
from capplan.model.network import Network
from capplan.model.stored_tensor import StoredModel


def read_gguf_network(stored: StoredModel, name: str, place: str) -> Network:
    """Return the network that a GGUF file holds.

    Parameters
    ----------
    stored : its header
    name : of the model
    place : the file, as errors name it

    Returns
    -------
    the network, every matrix in the format of its tensors

    Raises
    ------
    InputError
        The architecture is not modelled, or the tensors are not those that the metadata describe.
    """
    config, keys = config_of(stored, place)
    network = with_stored_formats(read_network(config, name, place), stored, place)
    parts = f", over {stored.parts} files" if stored.parts > 1 else ""
    held = [f"GGUF: {len(stored.tensors):,} tensors of {stored.tensor_bytes:,} bytes{parts}"]
    beside = tables(stored)
    if beside:
        size = sum(table.size_bytes for table in beside)
        held.append(
            f"{len(beside)} tables ({beside[0].name}, ...) of {size:,} bytes are not parameters and not counted"
        )
    return replace(network, notes=(*network.notes, *held), keys_used=keys)

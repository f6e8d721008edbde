"""Quantised checkpoints: the rows of tests/rows/checkpoints.yaml."""

from capplan.families.model_config import read_network
from capplan.families.quantization.network_formats import quantised
from capplan.readers.catalogue.models import shipped_config
from tests.tables import rows

ROWS = rows("checkpoints")


def checkpoint(of, section):
    """Return the network of a config of the rows, or of a shipped model, with a section."""
    config, name = (ROWS["configs"][of], "tiny") if of in ROWS["configs"] else shipped_config(of)
    return quantised(read_network(config, name), config | {"quantization_config": section})


def formats(network, layer=0):
    """Return the format of each matrix of a layer, by name."""
    found = {p.name: p.weight_format for p in network.layers[layer].projections}
    experts = network.layers[layer].experts
    return found | ({"experts": experts.weight_format} if experts else {})

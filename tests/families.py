"""Models, and what others counted of them: the rows of tests/rows/families.yaml."""

from dataclasses import replace

from capplan.families.model_config import read_network
from capplan.model.kv_cache import kv_bytes_per_token
from capplan.model.network import Attention, Layer
from tests.tables import rows

ROWS = rows("families")
COUNTED, CACHED, REFUSED = ROWS["counted"], ROWS["cached"], ROWS["refused"]
STATEFUL = [name for name, row in CACHED.items() if "states" in row]


def config_of(name):
    """Return the config.json of a row."""
    return next(ROWS[kind][name] for kind in ("counted", "cached", "other") if name in ROWS[kind])["config"]


def changed(config, changes):
    """Return a config with changed keys, in its sections too."""
    merged = {
        key: changed(config[key], value)
        if isinstance(value, dict) and isinstance(config.get(key), dict)
        else value
        for key, value in changes.items()
    }
    return config | merged


def network_of(name, **changes):
    """Return the network of a row, with changed keys."""
    return read_network(changed(config_of(name), changes), name)


def unread(network):
    """Return the remarks that something of a file is not read or not counted."""
    return [note for note in network.notes if "not read" in note or "not counted" in note]


def elements_per_token(network, mixer, ranks=1.0):
    """Return what the first token leaves in the cache of one layer on one rank, at a byte per element."""
    return kv_bytes_per_token(replace(network, layers=(Layer((mixer,), ()),)), 0.0, 1.0, ranks)


def cached_layers(network):
    """Return [layers, elements per token] of the full and of the sliding layers that cache anything."""
    found = {False: [], True: []}
    for mixer in (mixer for layer in network.layers for mixer in layer.mixers):
        elements = float(elements_per_token(network, mixer))
        if elements:
            found[isinstance(mixer, Attention) and mixer.window_tokens is not None].append(elements)
    assert all(len(set(elements)) <= 1 for elements in found.values())
    return [[len(found[slides]), found[slides][0]] if found[slides] else None for slides in (False, True)]

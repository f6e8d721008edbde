"""Which models run on a device: shipped ones and those in the cache of the hub."""

from collections.abc import Iterable, Iterator

from capplan.errors import InputError, unknown
from capplan.fleet.runnable import BY_QUALITY, LEAST_CONTEXT, Runnable, as_stored, runnable_models
from capplan.hardware.device import Device
from capplan.model.network import Network
from capplan.model.weight_format import stored_formats
from capplan.readers.catalogue.models import cached_names, checkpoint_name, read_model, shipped_networks

KV_DTYPES = ("fp16", "bf16", "fp32")
"""Formats of the cache that keep no scales."""


def models_that_run(
    device: Device,
    *,
    weight_dtype: str | None = None,
    kv_dtype: str | None = None,
    context_tokens: int | None = None,
) -> list[Runnable]:
    """Return the models that run on a device, each in its best quantisation.

    Parameters
    ----------
    device : whose memory is free
    weight_dtype : the only quantisation to try; None: all
    kv_dtype : of the cache; None: fp16
    context_tokens : [tokens]
        that have to fit; None: LEAST_CONTEXT
    """
    dtypes = BY_QUALITY if weight_dtype is None else (weight_dtype.lower(),)
    if dtypes[0] not in BY_QUALITY:
        raise unknown("weight dtype", dtypes[0], BY_QUALITY, place="--weight-dtype")
    needed = context_tokens or LEAST_CONTEXT
    cache = (kv_dtype or "fp16").lower()
    if cache not in KV_DTYPES:
        raise unknown("KV dtype of llama.cpp", cache, KV_DTYPES, place="--kv-dtype")
    files = [as_stored(network, device, cache, needed) for network in _cached(files=True)]
    networks = _one_of_each([*_cached(files=False), *shipped_networks()[0]])
    found = runnable_models(networks, device, cache, dtypes, needed)
    return [*(row for row in files if row is not None), *found]


def _cached(*, files: bool) -> Iterator[Network]:
    """Yield the models in the cache of the hub that are modelled: GGUF files, or those with a config."""
    for name in cached_names():
        if name.endswith(".gguf") == files:
            try:
                yield read_model(name, offline=True)
            except InputError:
                continue


_AS_TRAINED = frozenset({"bf16", "fp16", "fp32", "fp8", "fp8_block", "mxfp4"})
"""Formats in which models are published first; a checkpoint in another one was quantised from it."""


def _one_of_each(networks: Iterable[Network]) -> list[Network]:
    """Return of each model that generates text one checkpoint as it was trained, the one with the shortest name."""
    first: dict[str, Network] = {}
    for network in sorted(networks, key=lambda one: (len(one.name), one.name)):
        if network.generates and set(stored_formats(network)) <= _AS_TRAINED:
            first.setdefault(checkpoint_name(network.name), network)
    return list(first.values())

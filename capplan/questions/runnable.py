"""Which models run on a device: shipped ones and those in the cache of the hub."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from capplan.errors import CapplanError, InputError, unknown
from capplan.fleet.runnable import (
    BY_QUALITY,
    LEAST_CONTEXT,
    STEP_TOKENS,
    Runnable,
    as_stored,
    runnable_models,
)
from capplan.hardware.device import Device
from capplan.model.network import Network
from capplan.model.weight_format import stored_formats
from capplan.operators.llamacpp import ENGINE
from capplan.questions.gguf_speeds import generated_tokens_per_s, prompt_tokens_per_s
from capplan.readers.catalogue.models import cached_names, checkpoint_name, read_model, shipped_networks
from capplan.replica.replica import replica_of
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica

PROMPT_TOKENS = 512
"""Tokens of the prompt whose rate is shown, as llama-bench has it by default."""
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


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast llama.cpp runs a model on a device, one sequence at a time; None where it is not known."""

    generated_tokens_per_s: float | None = None
    """After an empty context."""
    prompt_tokens_per_s: float | None = None
    """Of PROMPT_TOKENS."""
    reason: str = ""
    """Why it is not known."""


def speed_of(row: Runnable, hardware: str, kv_dtype: str | None) -> Speed:
    """Return how fast a model runs on a device, with the code of `estimate`."""
    flags = ServingFlags(
        engine=ENGINE,
        weight_dtype=row.weight_dtype if row.weight_dtype in BY_QUALITY else None,
        kv_dtype=kv_dtype,
        max_num_seqs=1,
        max_num_batched_tokens=STEP_TOKENS,
        max_model_len=LEAST_CONTEXT,
        offline=True,
    )
    try:
        replica = replica_of(asked_replica(row.model, hardware, flags).spec)
        return Speed(generated_tokens_per_s(replica, 1, 0.0), prompt_tokens_per_s(replica, PROMPT_TOKENS, 0))
    except CapplanError as error:
        return Speed(reason=str(error).partition("\n")[0])


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

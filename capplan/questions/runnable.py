"""Which models llama.cpp runs on a device, of those that ship and those in the cache of the hub: memory and speed of `fit` and `estimate`."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from capplan.errors import CapplanError, InputError, unknown
from capplan.fleet.fit import longest_context_tokens
from capplan.hardware.device import Device
from capplan.model.network import Network
from capplan.model.parameters import parameters
from capplan.model.weight_format import stored_formats
from capplan.operators.llamacpp import ENGINE
from capplan.questions.gguf_speeds import generated_tokens_per_s, prompt_tokens_per_s
from capplan.readers.catalogue.models import cached_names, checkpoint_name, read_model, shipped_networks
from capplan.replica.best_split import split_words
from capplan.replica.plans import card_plans
from capplan.replica.replica import memory_of, replica_of
from capplan.replica.spec import ReplicaSpec
from capplan.scenario.flags import ServingFlags
from capplan.scenario.replica import asked_replica

BY_QUALITY = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k")
"""Quantisations of GGUF files, nearest to the model first."""
TRAINED_IN_GGUF = frozenset({"bf16", "fp16", "fp32", "mxfp4"})
"""Formats of checkpoints that GGUF files have too."""
KV_DTYPES = ("fp16", "bf16", "fp32")
"""Formats of the cache that keep no scales."""
SPLIT_DTYPE = "q4_k_m"
"""Quantisation of a model that does not fit on the device, where none is asked for."""
LEAST_CONTEXT = 4096
"""A model counts as running where a request of so many tokens fits."""
PROMPT_TOKENS = 512
"""Tokens of the prompt whose rate is shown, as llama-bench has it by default."""
_AS_TRAINED = frozenset({"bf16", "fp16", "fp32", "fp8", "fp8_block", "mxfp4"})
"""Formats in which models are published first; a checkpoint in another one was quantised from it."""


@dataclass(frozen=True, slots=True)
class Runnable:
    """A model in one quantisation, on one device."""

    model: str
    parameters: float
    weight_dtype: str
    quality: int
    """Place of the quantisation among those by quality, 0 the best."""
    weight_bytes: float
    """Weights on the device, or on all cards of a machine; llama.cpp keeps the embedding in the memory of the host."""
    host_weight_bytes: float
    """Weights that a split keeps in the memory of the host; 0 where the device has room for all."""
    split: str
    """Options of llama.cpp that state the split."""
    longest_context_tokens: int
    generated_tokens_per_s: float | None
    """Rate of one sequence after an empty context; None where no speed is known."""
    prompt_tokens_per_s: float | None
    """Rate of a prompt of PROMPT_TOKENS."""
    reason: str = ""
    """Why no speed is known."""


def models_that_run(
    device: Device, serving: ServingFlags, progress: Callable[[int, int], None] | None = None
) -> list[Runnable]:
    """Return the models that run on a device, each in its best quantisation: the best first, then the most parameters.

    With the memory of the host, models that fit in no quantisation follow, split as is fastest, in SPLIT_DTYPE unless one is asked for.

    Parameters
    ----------
    device : whose memory is free
    serving : the only quantisation to try, else all; the dtype of the cache, else fp16;
        the context that has to fit, which leaves out models of shorter ones, else LEAST_CONTEXT;
        how many such devices have layers in turn; and the memory of the host, with its bandwidth, that weights may take
    progress : gets how many models were tried, and of how many
    """
    dtypes = BY_QUALITY if serving.weight_dtype is None else (serving.weight_dtype.lower(),)
    if dtypes[0] not in BY_QUALITY:
        raise unknown("weight dtype", dtypes[0], BY_QUALITY, place="--weight-dtype")
    cache, context = (serving.kv_dtype or "fp16").lower(), serving.max_model_len or LEAST_CONTEXT
    if cache not in KV_DTYPES:
        raise unknown("KV dtype of llama.cpp", cache, KV_DTYPES, place="--kv-dtype")
    files = [(network, (None,)) for network in _cached(files=True)]
    networks = _one_of_each([*_cached(files=False), *shipped_networks()[0]])
    known = [*files, *((network, _dtypes_of(network, dtypes)) for network in networks)]
    tried = [
        item for item in known if (item[0].max_context_tokens or context) >= (serving.max_model_len or 0)
    ]
    flags = ServingFlags(
        engine=ENGINE,
        kv_dtype=cache,
        max_num_seqs=1,
        pipeline_parallel=serving.pipeline_parallel,
        offline=True,
    )
    split = replace(flags, host_bandwidth=serving.host_bandwidth, host_memory=serving.host_memory)
    found = []
    for count, (network, formats) in enumerate(tried, start=1):
        row = _best(network, device, formats, flags, context)
        if row is None and serving.host_bandwidth is not None:
            split_in = formats if len(formats) == 1 else (SPLIT_DTYPE,)
            row = _best(network, device, split_in, split, context)
        found += [] if row is None else [row]
        if progress is not None:
            progress(count, len(tried))
    return sorted(found, key=_usefulness)


def _usefulness(row: Runnable) -> tuple[float, ...]:
    """Return the order of models: those on the device by quality and size, then those that are split by their speed."""
    if row.split:
        return (1.0, -(row.generated_tokens_per_s or 0.0), -row.parameters)
    return (0.0, float(row.quality), -row.parameters)


def _dtypes_of(network: Network, dtypes: tuple[str, ...]) -> tuple[str | None, ...]:
    """Return the quantisations to try of a model; one whose experts were trained in mxfp4 stays as it is."""
    formats = set(stored_formats(network))
    return (None,) if "mxfp4" in formats and formats <= TRAINED_IN_GGUF else dtypes


def _best(
    network: Network, device: Device, dtypes: tuple[str | None, ...], flags: ServingFlags, least_context: int
) -> Runnable | None:
    """Return a model in the first quantisation that fits; None where none does, or where llama-quantize writes none."""
    needed = min(least_context, network.max_context_tokens or least_context)
    for quality, dtype in enumerate(dtypes):
        try:
            asked = replace(flags, weight_dtype=dtype, max_model_len=needed)
            spec = asked_replica(network.name, device.name, asked).spec
            plan = memory_of(spec)
        except CapplanError:
            return None
        if bool(plan.fits):
            held = spec.offload
            return Runnable(
                network.name,
                float(parameters(network)),
                dtype or "+".join(sorted(set(stored_formats(network)) - {"fp32"})),
                quality,
                float(sum(card.weight_bytes for _, card in card_plans(spec))),
                held.weight_bytes if held else 0.0,
                " ".join(split_words(held)) if held else "",
                longest_context_tokens(spec),
                *_speeds(spec),
            )
    return None


def _speeds(spec: ReplicaSpec) -> tuple[float | None, float | None, str]:
    """Return the rates of generating and of reading a prompt, or why they are not known."""
    try:
        replica = replica_of(spec)
    except CapplanError as error:
        return None, None, str(error).partition("\n")[0]
    return generated_tokens_per_s(replica, 1, 0.0), prompt_tokens_per_s(replica, PROMPT_TOKENS, 0), ""


def _cached(*, files: bool) -> Iterator[Network]:
    """Yield the models in the cache of the hub that are modelled: GGUF files, or those with a config."""
    for name in cached_names():
        if name.endswith(".gguf") == files:
            try:
                yield read_model(name, offline=True)
            except InputError:
                continue


def _one_of_each(networks: Iterable[Network]) -> list[Network]:
    """Return of each model that generates text one checkpoint as it was trained, the one with the shortest name."""
    first: dict[str, Network] = {}
    for network in sorted(networks, key=lambda one: (len(one.name), one.name)):
        if network.generates and set(stored_formats(network)) <= _AS_TRAINED:
            first.setdefault(checkpoint_name(network.name), network)
    return list(first.values())

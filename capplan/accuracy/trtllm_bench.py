"""Requests and limits of `trtllm-bench throughput`: the run behind NVIDIA's published maxima.

Requests: "Preparing a Dataset" in docs/source/performance/perf-overview.md of TensorRT-LLM, versions 0.14 to 1.1;
limits: tensorrt_llm/bench/build/tuning.py. Memory fraction: the same page (0.95), its printed example before 0.17 (0.99).
"""

from math import ceil

from capplan.model.network import Attention, LatentAttention, Network
from capplan.model.parameters import weight_bytes
from capplan.model.sharding import Sharding
from capplan.model.weight_format import stored_dtypes

REQUESTS = {
    (128, 128): 30000, (128, 2048): 3000, (128, 4096): 1500, (500, 2000): 3000, (1000, 1000): 3000,
    (1000, 2000): 1500, (2048, 128): 3000, (2048, 2048): 1500, (5000, 500): 1500, (20000, 2000): 1000,
    (1024, 1024): 3000, (1024, 2048): 1500, (1024, 8192): 1500, (1024, 32768): 1000, (8192, 1024): 1500,
    (32768, 1024): 1000,
}  # fmt: skip
"""Input and output tokens -> requests sent; 1024/2048 is not in the table and taken as 1000/2000."""

MEMORY_FRACTION = 0.95
EARLY_MEMORY_FRACTION = 0.99
"""Share of the memory left by the weights: with the PyTorch backend (from 0.19 on), and before."""

PACKED_RATIO = {"nvfp4": 0.5, "mxfp4": 2.0}
"""Format of two weights per stored element -> bytes that the tool counts for an element."""

MOST_BATCH = 4096.0
MOST_TOKENS = 32768.0


def memory_fraction(version: str) -> float:
    """Return the share of free memory that goes to the cache in runs of an engine version."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return MEMORY_FRACTION if (major, minor) >= (0, 19) else EARLY_MEMORY_FRACTION


def limits(cache_requests: float, input_tokens: float, output_tokens: float, stages: int) -> tuple[int, int]:
    """Return the largest batch and the token budget of a step that the tool configures.

        b = min(r, 4096) / p,  c = min(b (1 + i / o), 32768), both rounded up

    Parameters
    ----------
    cache_requests : [-]
        r, requests that the cache holds, at full length
    input_tokens : [tokens]
        i
    output_tokens : [tokens]
        o
    stages : [-]
        p, pipeline stages; each has its own batch

    Returns
    -------
    [-]
        largest batch of a stage, token budget of its step

    Examples
    --------
    >>> limits(300.0, 1000.0, 1000.0, 1)
    (384, 2048)

    References
    ----------
    TensorRT-LLM, `finetune_setting` in tensorrt_llm/bench/build/tuning.py.
    """
    batch = min(cache_requests, MOST_BATCH) / stages
    tokens = min(batch * (1.0 + input_tokens / output_tokens), MOST_TOKENS)
    steps = 32 if batch < 256 else 128 if batch < 1024 else 256
    grain = 256 if tokens < 4096 else 512 if tokens < 8192 else 1024
    return max(64, steps * ceil(batch / steps)), max(2048, grain * ceil(tokens / grain))


def weight_ratio(network: Network) -> float:
    """Return the weights of a checkpoint by the tool's count over what they take.

    The tool counts the elements that the files of a checkpoint state, each with the bytes of its number format: two fp4 weights are stored as
    one element, and count as half a byte again; a format that the tool does not know counts two bytes an element.

    Examples
    --------
    >>> PACKED_RATIO["nvfp4"], PACKED_RATIO["mxfp4"]
    (0.5, 2.0)

    References
    ----------
    TensorRT-LLM, `ModelConfig.get_param_count` in tensorrt_llm/bench/build/dataclasses.py and `BYTES_PER_ELEM` in tuning.py.
    """
    stored = stored_dtypes(network)
    return next((ratio for name, ratio in PACKED_RATIO.items() if name in stored), 1.0)


def cache_requests(
    network: Network, sharding: Sharding, device_bytes: float, kv_bytes: float, tokens: float
) -> float:
    """Return the tool's estimate of full-length requests in the cache; every layer counts in full.

        r = f (n M - w W) / (2 L max(t, h) d b (i + o))

    Parameters
    ----------
    network : the model as it is served; W its weight bytes, w what the tool makes of them (`weight_ratio`), L its layers, h KV heads,
        d head width
    sharding : n devices; t = n / p, also where attention is data parallel
    device_bytes : [B]
        M
    kv_bytes : [B]
        b, bytes of one cached element
    tokens : [tokens]
        i + o

    Returns
    -------
    [-]
        r, at least 1

    References
    ----------
    TensorRT-LLM, `calc_engine_setting` in tensorrt_llm/bench/build/tuning.py.
    """
    devices = float(sharding.devices)
    heads, width = 1.0, 128.0
    for layer in network.layers:
        for mixer in layer.mixers:
            if isinstance(mixer, Attention):
                heads, width = float(mixer.kv_heads), float(mixer.head_dim)
            elif isinstance(mixer, LatentAttention):
                heads, width = float(mixer.query_heads), network.hidden_size / mixer.query_heads
    heads = max(heads, devices / float(sharding.pipeline))
    free = max(devices * device_bytes - weight_ratio(network) * weight_bytes(network), 0.0) * MEMORY_FRACTION
    return max(1.0, free / (2.0 * len(network.layers) * heads * width * kv_bytes * tokens))

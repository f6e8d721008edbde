"""The KV cache dtype, and what `auto` means."""

from capplan.assumption import Assumption
from capplan.model.network import Network
from capplan.model.weight_format import KV_DTYPES, kv_bytes_per_element

AUTO = "auto"
"""Value of engines, flags and scenarios for an unspecified cache dtype."""


def cache_dtype(network: Network, asked: str | None = None) -> tuple[str, tuple[Assumption, ...]]:
    """Return the cache dtype, and the assumption behind it.

    It never follows from the weight dtype: an fp8 checkpoint without a KV cache scheme is served with a 16-bit cache.

    Parameters
    ----------
    network : the model; `kv_format` is what its checkpoint asks for
    asked : dtype on the command line or in the scenario; None and `auto` leave it open

    Returns
    -------
    name of the dtype; an assumption unless it was requested, the checkpoint states it, or nothing is cached

    Examples
    --------
    >>> from capplan.model.network import Projection
    >>> network = Network("n", "t", 8, 10, (), Projection("lm_head", "lm_head", 8, 10, "columns"), True, 80)
    >>> cache_dtype(network, "fp8")
    ('fp8', ())
    >>> cache_dtype(network)[0]
    'bf16'
    """
    if asked is not None and asked.lower() != AUTO:
        name = asked.lower()
        kv_bytes_per_element(name)
        return name, ()
    if network.kv_format is not None:
        return network.kv_format, ()
    dtype = network.activation_format if network.activation_format in KV_DTYPES else "bf16"
    if network.bidirectional:
        return dtype, ()
    return dtype, (Assumption(f"KV cache in {dtype}, the activation dtype", "--kv-dtype", "kv_dtype"),)

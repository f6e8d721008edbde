"""The dtype of the KV cache where nobody named one."""

from capplan.assumption import Assumption
from capplan.model.network import Network
from capplan.model.weight_format import KV_DTYPES, kv_bytes_per_element

AUTO = "auto"
"""What engines, flags and scenarios call a cache dtype that nobody named."""


def cache_dtype(network: Network, asked: str | None = None) -> tuple[str, tuple[Assumption, ...]]:
    """Return the dtype of the cache, and what was assumed to find it.

    It never follows from the dtype of the weights: an fp8 checkpoint without a cache scheme of its own
    is served with a 16-bit cache.

    Parameters
    ----------
    network : the model; `kv_format` is what its checkpoint asks for
    asked : dtype on the command line or in the scenario; None and `auto` ask for nothing

    Returns
    -------
    name of the dtype, and an assumption unless it was asked for or stated in the checkpoint

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
    return dtype, (
        Assumption(f"KV cache in {dtype}, the dtype of the activations", "--kv-dtype", "kv_dtype"),
    )

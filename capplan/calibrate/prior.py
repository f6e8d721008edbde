"""Priors of the numbers of a form: a starting value, a range, and a width."""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Known:
    """Start and range of a number; its logarithm is within `log_width` of the start in two out of three cases."""

    start: float
    low: float
    high: float
    log_width: float


_MAIN, _SIDE = 2.0, 0.7
BY_NAME: Mapping[str, Known] = {
    "sharpness": Known(4.0, 1.0, 16.0, _MAIN),
    "prefill_sharpness": Known(4.0, 1.0, 16.0, _MAIN),
    "tile_edge": Known(16.0, 0.01, 1e3, _SIDE * 2),
    "start_inputs": Known(64.0, 0.01, 1e4, _SIDE * 2),
    "wave_fraction": Known(0.3, 1e-3, 1.0, _SIDE),
    "starved_exponent": Known(0.3, 1e-3, 2.0, _SIDE),
    "sustained_loss": Known(0.02, 1e-4, 2.0, _SIDE),
    "prefill_tail_fraction": Known(0.3, 1e-3, 1.0, _SIDE),
    "decode_tail_fraction": Known(0.3, 1e-3, 1.0, _SIDE),
    "softmax_width": Known(16.0, 1e-2, 1e4, _SIDE * 2),
    "wide_head_exponent": Known(0.3, 1e-3, 3.0, _SIDE),
    "decode_pad_tokens": Known(16.0, 1e-2, 1e3, _SIDE * 2),
    "decode_split_tokens": Known(256.0, 16.0, 1e5, _SIDE),
    "decode_query_passes": Known(4.0, 0.1, 1e3, _SIDE * 2),
    "routed_passes": Known(8.0, 0.1, 1e4, _MAIN),
    "token_passes": Known(4.0, 0.1, 1e4, _MAIN),
    "quantise_passes": Known(3.0, 0.1, 60.0, 1.0),
    "multicast_fraction": Known(0.01, 1e-6, 1.0, 3.0),
    "crowding_exponent": Known(0.1, 1e-3, 2.0, _SIDE),
    "ring_ramp_bytes": Known(1e5, 1.0, 1e8, 2.0),
    "all_to_all_fraction": Known(0.7, 1e-2, 4.0, _MAIN),
    "decode_compute_fraction": Known(0.3, 1e-4, 1.0, _MAIN),
}
BY_END: Mapping[str, Known] = {
    "_bytes_per_s": Known(1e10, 1e6, 1e14, 3.0),
    "_flop_per_s": Known(1e12, 1e8, 1e17, 3.0),
    "_fraction": Known(0.7, 1e-4, 1.0, _MAIN),
    "_exponent": Known(0.3, 1e-3, 3.0, _SIDE),
    "_floor_s": Known(3e-6, 1e-8, 1e-2, 3.0),
    "_s": Known(2e-6, 1e-9, 1e-1, 3.0),
    "_tokens": Known(64.0, 1e-2, 1e5, _SIDE * 2),
    "_passes": Known(4.0, 0.1, 1e4, _MAIN),
    "": Known(1.0, 1e-3, 1e3, _MAIN),
}
FAMILY_LOG_WIDTH = 0.5
"""Width where another device of the family has the number; fixed costs and rates may be further away."""


def known_beforehand(name: str, family: float | None = None) -> Known:
    """Return the prior of a number, centred on another device of the family where there is one.

    Parameters
    ----------
    name : of the number in its rates record
    family : its value on another device of the same architecture; None or 0 where there is none

    Returns
    -------
    start, range and width

    Examples
    --------
    >>> known_beforehand("prefill_floor_s").start, known_beforehand("sharpness", family=6.0).start
    (3e-06, 6.0)
    """
    prior = BY_NAME.get(name) or next(known for end, known in BY_END.items() if name.endswith(end))
    if not family or not prior.low < family < prior.high:
        return prior
    return replace(
        prior, start=family, log_width=min(prior.log_width, max(FAMILY_LOG_WIDTH, prior.log_width / 2))
    )

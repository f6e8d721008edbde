"""What the host adds to the steps of an engine, by version: fitted on measured serving results.

Written by `python -m capplan.calibrate.fit_serving`; the method and the scores are in docs/accuracy.md.
"""

from capplan.engine.profile import HostOverhead

HOST_TIMES: dict[str, dict[str, HostOverhead]] = {
    "vllm": {
        "0.5.0": HostOverhead(0.0025, 3e-05, 3e-07, 0.012, 6e-05, 0.7, 1),
        "0.8.0": HostOverhead(0.001, 0, 4e-06, 0.02, 0, 0.7, 1, 512),
        "0.13.0": HostOverhead(0.001, 0, 4e-06, 0.02, 0, 0.5, 0.5, 512),
        "0.18.0": HostOverhead(0.0015, 1e-05, 8e-06, 0.02, 0, 0.5, 0.5, 512),
    },
    "sglang": {"0.4.0": HostOverhead(0.0007, 2e-05, 2e-06, 0.02, 0, 0.5, 1)},
    "trtllm": {
        "0.7.0": HostOverhead(0.001, 2e-06, 1e-06, 0.01, 0, 0.6, 0.8),
        "0.20.0": HostOverhead(0.0015, 0, 2e-06, 0.02, 0, 0.4, 1),
        "1.2.0": HostOverhead(0.001, 0, 8e-06, 0.02, 0, 0.3, 0.65),
    },
}
"""Engine -> version from which the numbers hold -> numbers."""

FITTED = 56
"""Count of the numbers above that were fitted; the last of each row is an engine default."""

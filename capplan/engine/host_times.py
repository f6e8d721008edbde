"""What the host adds to the steps of an engine, by version: fitted on measured serving results.

Written by `python -m capplan.calibrate.fit_serving`; the method and the scores are in docs/accuracy.md.
The prefill ratios of vLLM 0.13.0 and 0.18.0 (2.0) were set by hand, below what the loss preferred (2.4).
"""

from capplan.engine.profile import HostOverhead

HOST_TIMES: dict[str, dict[str, HostOverhead]] = {
    "vllm": {
        "0.5.0": HostOverhead(0.003, 8e-05, 0.012, 0, 0.5, 2.2, 0),
        "0.7.0": HostOverhead(0.0045, 8e-05, 0.03, 0, 0.3, 1, 0),
        "0.8.0": HostOverhead(0.001, 5e-06, 0.02, 0, 0.6, 1.6, 512),
        "0.13.0": HostOverhead(0.00083, 8.3e-06, 0.0166, 0, 0.6, 2, 512),
        "0.18.0": HostOverhead(0.0012, 8e-06, 0.02, 0, 0.55, 2, 512),
    },
    "sglang": {
        "0.4.0": HostOverhead(0.002, 1.2e-06, 0.15, 0, 0.5, 1.8, 0),
    },
    "trtllm": {
        "0.7.0": HostOverhead(0.0015, 1.2e-05, 0.02, 0, 0.5, 1, 0),
        "0.11.0": HostOverhead(0.0025, 5e-06, 0.02, 0, 0.6, 0.9, 0),
        "0.14.0": HostOverhead(0.0045, 0, 0.02, 0, 1, 0.9, 0),
        "0.20.0": HostOverhead(0.0012, 5e-06, 0.024, 0, 0.4, 1, 0),
        "1.2.0": HostOverhead(0.00084, 0, 0.03, 0, 0.3, 1, 0),
    },
}
"""Engine -> version from which the numbers hold -> numbers."""

FITTED = 77
"""Count of the numbers above that were fitted; the last of each row is an engine default."""

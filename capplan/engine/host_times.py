"""What the host adds to the steps of an engine, by version: fitted on measured serving results.

Written by `python -m capplan.calibrate.fit_serving`; the method and the scores are in docs/accuracy.md.
"""

from capplan.engine.profile import HostOverhead

HOST_TIMES: dict[str, dict[str, HostOverhead]] = {
    "vllm": {
        "0.5.0": HostOverhead(0.00249, 9.6e-05, 2e-06, 0.02, 0, 0.6, 2.64, 0),
        "0.7.0": HostOverhead(0.00249, 2e-05, 2e-06, 0.045, 0, 0.84, 0.6, 0),
        "0.8.0": HostOverhead(0.0015, 2e-05, 2e-06, 0.0166, 0, 0.4, 1.5, 512),
        "0.13.0": HostOverhead(0.001245, 1.2e-05, 2e-06, 0.02, 0, 0.5, 1.8, 512),
        "0.18.0": HostOverhead(0.0007, 1.66e-05, 2e-06, 0.0072, 0, 0.6, 1.494, 512),
    },
    "sglang": {
        "0.4.0": HostOverhead(0.0036, 0.000192, 2e-06, 0.15, 0, 0.249, 2.64, 0),
    },
    "trtllm": {
        "0.7.0": HostOverhead(0.001245, 1.2e-05, 2e-06, 0.02, 0, 0.5, 1, 0),
        "0.11.0": HostOverhead(0.003, 0, 2e-06, 0.02, 0, 0.5, 0.65, 0),
        "0.14.0": HostOverhead(0.007, 2.4e-06, 2e-06, 0.02, 0, 0.6, 0.664, 0),
        "0.20.0": HostOverhead(0.001245, 1e-05, 2e-06, 0.03, 0, 0.2, 1.2, 0),
        "1.2.0": HostOverhead(0.0018, 0, 2e-06, 0.045, 0, 0.3, 0.8, 0),
    },
}
"""Engine -> version from which the numbers hold -> numbers."""

FITTED = 77
"""Count of the numbers above that were fitted; the last of each row is an engine default."""

"""What the host adds to the steps of an engine, by version: fitted on measured serving results.

Written by `python -m capplan.calibrate.fit_serving`; the method and the scores are in docs/accuracy.md.
"""

from capplan.engine.profile import HostOverhead

HOST_TIMES: dict[str, dict[str, HostOverhead]] = {
    "vllm": {
        "0.5.0": HostOverhead(0.002964, 5.6e-05, 0.01996, 2e-05, 0.5241, 1.72, 0),
        "0.7.0": HostOverhead(0.00334, 6.96e-05, 0.03249, 1.176e-05, 0.66, 1.085, 0),
        "0.8.0": HostOverhead(0.00095, 1.375e-05, 0.02126, 2e-05, 0.6237, 1.562, 512),
        "0.13.0": HostOverhead(0.0004942, 0, 0.01528, 2e-05, 0.8738, 1.86, 512),
        "0.18.0": HostOverhead(0.0007815, 8.078e-06, 0.01599, 2e-05, 0.73, 1.76, 512),
    },
    "sglang": {
        "0.4.0": HostOverhead(0.0008442, 2.52e-05, 0.114, 2e-05, 0.8098, 1.917, 0),
    },
    "trtllm": {
        "0.7.0": HostOverhead(0.00146, 1.193e-05, 0.02, 2e-05, 0.6933, 1.016, 0),
        "0.11.0": HostOverhead(0.00205, 1.521e-05, 0.02, 2e-05, 0.6421, 1.067, 0),
        "0.14.0": HostOverhead(0.0027, 8.191e-08, 0.02, 2e-05, 1.065, 1.07, 0),
        "0.20.0": HostOverhead(0.00148, 9.856e-06, 0.02546, 2e-05, 0.3322, 0.9215, 0),
        "1.0.9": HostOverhead(0.002392, 1.507e-05, 0.056, 2e-05, 0.55, 1.48, 0),
        "1.1.0": HostOverhead(0.0028, 4.338e-06, 0.02, 2e-05, 0.24, 1.159, 0),
        "1.2.0": HostOverhead(0.0005834, 2.588e-06, 0.03099, 2e-05, 0.5784, 1.116, 0),
    },
}
"""Engine -> version from which the numbers hold -> numbers."""

FITTED = 78
"""Count of the numbers above that were fitted; the last of each row is an engine default."""

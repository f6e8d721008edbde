"""What the host adds to the steps of an engine, by version: fitted on measured serving results.

Written by `python -m capplan.calibrate.fit_serving`; the method and the scores are in docs/accuracy.md.
"""

from capplan.engine.profile import HostOverhead

HOST_TIMES: dict[str, dict[str, HostOverhead]] = {
    "vllm": {
        "0.5.0": HostOverhead(0.00295, 5.25e-05, 0.0224, 2.08e-05, 0.582, 1.29, 0),
        "0.7.0": HostOverhead(0.00317, 4.69e-05, 0.0291, 3.3e-05, 0.986, 1.47, 0),
        "0.8.0": HostOverhead(0.000461, 1.33e-05, 0.0276, 2e-05, 0.819, 1.47, 512),
        "0.13.0": HostOverhead(0.000494, 2.64e-06, 0.0141, 2.16e-05, 0.862, 2.07, 512),
        "0.18.0": HostOverhead(0.000542, 8.66e-06, 0.0194, 2.08e-05, 0.828, 1.63, 512),
    },
    "sglang": {
        "0.4.0": HostOverhead(0.000997, 2.98e-05, 0.054, 2e-05, 0.812, 1.82, 0),
    },
    "trtllm": {
        "0.7.0": HostOverhead(0.00215, 1.2e-05, 0.0303, 2e-05, 0.637, 1, 0),
        "0.11.0": HostOverhead(0.00209, 1.6e-05, 0.0252, 2e-05, 0.616, 1.13, 0),
        "0.14.0": HostOverhead(0.00192, 0, 0.02, 2e-05, 1.12, 1.13, 0),
        "0.20.0": HostOverhead(0.00147, 1.06e-05, 0.0242, 2e-05, 0.328, 0.943, 0),
        "1.0.9": HostOverhead(0.00333, 1.32e-05, 0.0665, 2e-05, 0.289, 1.65, 0),
        "1.1.0": HostOverhead(0.00308, 2.63e-06, 0.029, 2e-05, 0.704, 1.09, 0),
        "1.2.0": HostOverhead(0.000634, 2.63e-06, 0.0299, 2e-05, 0.551, 1.04, 0),
    },
}
"""Engine -> version from which the numbers hold -> numbers."""

FITTED = 78
"""Count of the numbers above that were fitted; the last of each row is an engine default."""

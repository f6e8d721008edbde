"""What the host adds to the steps of an engine, by version: fitted on measured serving results.

Written by `python -m capplan.calibrate.fit_serving`; the method and the scores are in docs/accuracy.md.
"""

from capplan.engine.profile import HostOverhead

HOST_TIMES: dict[str, dict[str, HostOverhead]] = {
    "vllm": {
        "0.5.0": HostOverhead(0.002905, 5.489e-05, 0.02197, 2.308e-05, 0.5999, 1.45, 0),
        "0.7.0": HostOverhead(0.003156, 5.14e-05, 0.02846, 3.857e-05, 1.008, 1.466, 0),
        "0.8.0": HostOverhead(0.0006087, 1.6e-05, 0.03053, 2.324e-05, 0.7738, 1.553, 512),
        "0.13.0": HostOverhead(0.0004621, 3.561e-06, 0.01267, 2.292e-05, 0.8787, 2.145, 512),
        "0.18.0": HostOverhead(0.0005664, 1.029e-05, 0.01654, 2.308e-05, 0.8027, 1.698, 512),
    },
    "sglang": {
        "0.4.0": HostOverhead(0.000997, 2.98e-05, 0.054, 2e-05, 0.812, 1.82, 0),
    },
    "trtllm": {
        "0.7.0": HostOverhead(0.002284, 1.25e-05, 0.03069, 2e-05, 0.6299, 1.001, 0),
        "0.11.0": HostOverhead(0.002035, 1.679e-05, 0.03168, 2e-05, 0.639, 1.133, 0),
        "0.14.0": HostOverhead(0.00192, 0, 0.02, 2e-05, 1.12, 1.13, 0),
        "0.20.0": HostOverhead(0.00147, 1.06e-05, 0.0242, 2e-05, 0.328, 0.943, 0),
        "1.0.9": HostOverhead(0.00333, 1.32e-05, 0.0665, 2e-05, 0.289, 1.65, 0),
        "1.1.0": HostOverhead(0.00312, 2.788e-06, 0.03087, 2e-05, 0.6915, 1.085, 0),
        "1.2.0": HostOverhead(0.000634, 2.63e-06, 0.0299, 2e-05, 0.551, 1.04, 0),
    },
}
"""Engine -> version from which the numbers hold -> numbers."""

FITTED = 78
"""Count of the numbers above that were fitted; the last of each row is an engine default."""

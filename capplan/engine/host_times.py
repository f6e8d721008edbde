"""What the host adds to the steps of an engine, by version: fitted on measured serving results.

Written by `python -m calibrate.fit_serving`; the method and the scores are in docs/accuracy.md.
"""

from capplan.engine.profile import HostOverhead

HOST_TIMES: dict[str, dict[str, HostOverhead]] = {
    "vllm": {
        "0.5.0": HostOverhead(
            0.002298,
            4.801e-05,
            0.01999,
            0.00044,
            0.6858,
            1.265,
            0,
            0,
            0.0006217,
            0.00061,
            0.0002,
            0.0014,
            0.00017,
        ),
        "0.7.0": HostOverhead(
            0.002134,
            1.784e-05,
            0.02466,
            0.00044,
            0.6858,
            1.2,
            0,
            9.025e-05,
            0.0006217,
            0.00061,
            0.0002,
            0.0014,
            0.00017,
        ),
        "0.8.0": HostOverhead(
            0.0007948, 7.087e-06, 0.01321, 0.00044, 0.6858, 1.471, 512, 0, 0, 0.00061, 0.0002, 0.0014, 0.00017
        ),
        "0.11.1": HostOverhead(
            0.0003183, 6.624e-06, 0.01321, 0.00044, 0.6858, 1.348, 512, 0, 0, 0.00061, 0.0002, 0.0014, 0.00017
        ),
        "0.19.0": HostOverhead(
            0.0003269, 7.562e-06, 0.01321, 0.00044, 0.6858, 1.348, 512, 0, 0, 0.00061, 0.0002, 0.0014, 0.00017
        ),
    },
    "sglang": {
        "0.4.0": HostOverhead(
            0.000848, 1.612e-05, 0.03987, 0.00044, 0.6858, 1.572, 0, 0, 0, 0.00061, 0.0002, 0, 0
        ),
    },
    "trtllm": {
        "0.7.0": HostOverhead(0.001681, 9.811e-06, 0.02, 2e-05, 0.6858, 1.219, 0, 0, 0.0006217, 0, 0, 0, 0),
        "0.11.0": HostOverhead(0.001306, 3.057e-06, 0.02, 2e-05, 0.6858, 1.184, 0, 0, 0.0006217, 0, 0, 0, 0),
        "0.12.0": HostOverhead(0.001127, 2.342e-05, 0.02, 2e-05, 0.6858, 1.24, 0, 0, 0.0006217, 0, 0, 0, 0),
        "0.14.0": HostOverhead(0.00102, 5.221e-07, 0.02, 2e-05, 0.6858, 1.056, 0, 0, 0.0006217, 0, 0, 0, 0),
        "0.20.0": HostOverhead(0.0001971, 5.246e-06, 0.02501, 2e-05, 0.6858, 1.088, 0, 0, 0, 0, 0, 0, 0),
        "1.0.9": HostOverhead(0.000932, 1.085e-05, 0.06431, 2e-05, 0.6858, 1.556, 0, 0, 0, 0, 0, 0, 0),
        "1.1.0": HostOverhead(0.0001971, 5.246e-06, 0.02501, 2e-05, 0.6858, 1.088, 0, 0, 0, 0, 0, 0, 0),
    },
}
"""Engine -> version from which the numbers hold -> numbers."""

FITTED = 48
"""Count of the fitted numbers above, shared ones once: without launches and graph_tokens."""

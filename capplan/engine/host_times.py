"""What the host adds to the steps of an engine, by version: fitted on measured serving results.

Written by `python -m calibrate.fit_serving`; the method and the scores are in docs/accuracy.md.
"""

from capplan.engine.profile import HostOverhead

HOST_TIMES: dict[str, dict[str, HostOverhead]] = {
    "vllm": {
        "0.5.0": HostOverhead(
            0.002317,
            4.672e-05,
            0.02,
            0.00044,
            0.6894,
            1.296,
            0,
            0,
            0.0006266,
            0.00061,
            0.0002,
            0.0014,
            0.00017,
        ),
        "0.7.0": HostOverhead(
            0.002217,
            2.028e-05,
            0.03145,
            0.00044,
            0.6894,
            1.211,
            0,
            7.521e-05,
            0.0006266,
            0.00061,
            0.0002,
            0.0014,
            0.00017,
        ),
        "0.8.0": HostOverhead(
            0.000724, 7.866e-06, 0.01304, 0.00044, 0.6894, 1.469, 512, 0, 0, 0.00061, 0.0002, 0.0014, 0.00017
        ),
        "0.11.1": HostOverhead(
            0.0003053, 6.583e-06, 0.01304, 0.00044, 0.6894, 1.338, 512, 0, 0, 0.00061, 0.0002, 0.0014, 0.00017
        ),
        "0.19.0": HostOverhead(
            0.0003299, 8.081e-06, 0.01304, 0.00044, 0.6894, 1.338, 512, 0, 0, 0.00061, 0.0002, 0.0014, 0.00017
        ),
    },
    "sglang": {
        "0.4.0": HostOverhead(
            0.000777, 1.645e-05, 0.03921, 0.00044, 0.6894, 1.568, 0, 0, 0, 0.00061, 0.0002, 0, 0
        ),
    },
    "trtllm": {
        "0.7.0": HostOverhead(0.001537, 4.635e-06, 0.02, 2e-05, 0.6894, 1.251, 0, 0, 0.0006266, 0, 0, 0, 0),
        "0.11.0": HostOverhead(0.001184, 2.166e-06, 0.02, 2e-05, 0.6894, 1.207, 0, 0, 0.0006266, 0, 0, 0, 0),
        "0.12.0": HostOverhead(0.001131, 2.238e-05, 0.02, 2e-05, 0.6894, 1.268, 0, 0, 0.0006266, 0, 0, 0, 0),
        "0.14.0": HostOverhead(0.0008918, 4.792e-07, 0.02, 2e-05, 0.6894, 1.071, 0, 0, 0.0006266, 0, 0, 0, 0),
        "0.20.0": HostOverhead(0.0002572, 3.31e-06, 0.02564, 2e-05, 0.6894, 1.084, 0, 0, 0, 0, 0, 0, 0),
        "1.0.9": HostOverhead(0.0008887, 5.956e-06, 0.06459, 2e-05, 0.6894, 1.467, 0, 0, 0, 0, 0, 0, 0),
        "1.1.0": HostOverhead(0.0002572, 3.31e-06, 0.02564, 2e-05, 0.6894, 1.084, 0, 0, 0, 0, 0, 0, 0),
    },
}
"""Engine -> version from which the numbers hold -> numbers."""

FITTED = 48
"""Count of the fitted numbers above, shared ones once: without launches and graph_tokens."""

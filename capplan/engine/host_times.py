"""What the host adds to the steps of an engine, by version: fitted on measured serving results.

Written by `python -m calibrate.fit_serving`; the method and the scores are in docs/accuracy.md.
"""

from capplan.engine.profile import HostOverhead

HOST_TIMES: dict[str, dict[str, HostOverhead]] = {
    "vllm": {
        "0.5.0": HostOverhead(0.002959, 6.572e-05, 0.02122, 2e-05, 0.5351, 1.336, 0, 0),
        "0.7.0": HostOverhead(0.00267, 2.419e-05, 0.03242, 2e-05, 0.5826, 1.212, 0, 0.0001125),
        "0.8.0": HostOverhead(0.0008478, 8.966e-06, 0.02966, 2e-05, 0.76, 1.386, 512, 0),
        "0.11.1": HostOverhead(0.001063, 5.427e-07, 0.01604, 2e-05, 0.5234, 1.277, 512, 0),
        "0.19.0": HostOverhead(0.001274, 8.377e-06, 0.0169, 2e-05, 0.5582, 1.362, 512, 0),
    },
    "sglang": {
        "0.4.0": HostOverhead(0.002061, 2.089e-05, 0.06818, 2e-05, 0.606, 1.745, 0, 0),
    },
    "trtllm": {
        "0.7.0": HostOverhead(0.001664, 1.528e-05, 0.02133, 2e-05, 0.5681, 1.193, 0, 0),
        "0.11.0": HostOverhead(0.002002, 2.206e-05, 0.02109, 2e-05, 0.6685, 1.211, 0, 0),
        "0.14.0": HostOverhead(0.002023, 1.426e-06, 0.02073, 2e-05, 1.103, 1.15, 0, 0),
        "0.20.0": HostOverhead(0.000804, 7.248e-06, 0.0284, 2e-05, 0.4624, 0.9396, 0, 0),
        "1.0.9": HostOverhead(0.002792, 1.235e-05, 0.06648, 2e-05, 0.4312, 1.572, 0, 0),
        "1.1.0": HostOverhead(0.000804, 7.248e-06, 0.0284, 2e-05, 0.4624, 0.9396, 0, 0),
    },
}
"""Engine -> version from which the numbers hold -> numbers."""

FITTED = 56
"""Count of the fitted numbers above: without eager_layer_s and graph_tokens, and without rows that repeat another."""

"""What the host adds to the steps of an engine, by version: fitted on measured serving results.

Written by `python -m calibrate.fit_serving`; the method and the scores are in docs/accuracy.md.
"""

from capplan.engine.profile import HostOverhead

HOST_TIMES: dict[str, dict[str, HostOverhead]] = {
    "vllm": {
        "0.5.0": HostOverhead(0.002508, 5.58e-05, 0.01994, 2e-05, 0.7247, 1.413, 0, 0),
        "0.7.0": HostOverhead(0.001935, 1.862e-05, 0.03222, 2e-05, 0.7247, 1.234, 0, 8.673e-05),
        "0.8.0": HostOverhead(0.0006279, 4.815e-06, 0.01481, 2e-05, 0.7247, 1.701, 512, 0),
        "0.11.1": HostOverhead(0.0002683, 2.674e-07, 0.01481, 2e-05, 0.7247, 1.701, 512, 0),
        "0.19.0": HostOverhead(0.0002634, 3.968e-06, 0.01481, 2e-05, 0.7247, 1.701, 512, 0),
    },
    "sglang": {
        "0.4.0": HostOverhead(0.000651, 2.586e-05, 0.03373, 2e-05, 0.7247, 2.2, 0, 0),
    },
    "trtllm": {
        "0.7.0": HostOverhead(0.002079, 4.145e-06, 0.02, 2e-05, 0.7247, 1.173, 0, 0),
        "0.11.0": HostOverhead(0.001942, 5.074e-06, 0.02, 2e-05, 0.7247, 1.093, 0, 0),
        "0.14.0": HostOverhead(0.002153, 4.093e-06, 0.02, 2e-05, 0.7247, 1.31, 0, 0),
        "0.20.0": HostOverhead(0.000147, 4.387e-06, 0.0242, 2e-05, 0.7247, 1.119, 0, 0),
        "1.0.9": HostOverhead(0.000887, 1.701e-06, 0.06449, 2e-05, 0.7247, 1.471, 0, 0),
        "1.1.0": HostOverhead(0.000147, 4.387e-06, 0.0242, 2e-05, 0.7247, 1.119, 0, 0),
    },
}
"""Engine -> version from which the numbers hold -> numbers."""

FITTED = 42
"""Count of the fitted numbers above, shared ones once: without eager_layer_s and graph_tokens."""

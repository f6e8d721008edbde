"""What the host adds to the steps of an engine, by version: fitted on measured serving results.

Written by `python -m calibrate.fit_serving`; the method and the scores are in docs/accuracy.md.
"""

from capplan.engine.profile import HostOverhead

HOST_TIMES: dict[str, dict[str, HostOverhead]] = {
    "vllm": {
        "0.5.0": HostOverhead(0.002384, 5.395e-05, 0.01998, 2e-05, 0.6985, 1.328, 0, 0, 0.0005559),
        "0.7.0": HostOverhead(0.002334, 2.187e-05, 0.03053, 2e-05, 0.6985, 1.23, 0, 0, 0.0005559),
        "0.8.0": HostOverhead(0.0006989, 7.76e-06, 0.01958, 2e-05, 0.6985, 1.538, 512, 0, 0),
        "0.11.1": HostOverhead(0.0002996, 4.766e-06, 0.01958, 2e-05, 0.6985, 1.409, 512, 0, 0),
        "0.19.0": HostOverhead(0.0003947, 6.905e-06, 0.01958, 2e-05, 0.6985, 1.409, 512, 0, 0),
    },
    "sglang": {
        "0.4.0": HostOverhead(0.0008491, 2.012e-05, 0.04754, 2e-05, 0.6985, 1.723, 0, 0, 0),
    },
    "trtllm": {
        "0.7.0": HostOverhead(0.00227, 1.395e-05, 0.02, 2e-05, 0.6985, 1.22, 0, 0, 0.0005559),
        "0.11.0": HostOverhead(0.001405, 1.722e-05, 0.02, 2e-05, 0.6985, 1.225, 0, 0, 0.0005559),
        "0.14.0": HostOverhead(0.002369, 3.415e-06, 0.02, 2e-05, 0.6985, 1.246, 0, 0, 0.0005559),
        "0.20.0": HostOverhead(0.0002231, 3.825e-06, 0.02558, 2e-05, 0.6985, 1.061, 0, 0, 0),
        "1.0.9": HostOverhead(0.0008431, 9.028e-06, 0.06203, 2e-05, 0.6985, 1.576, 0, 0, 0),
        "1.1.0": HostOverhead(0.0002231, 3.825e-06, 0.02558, 2e-05, 0.6985, 1.061, 0, 0, 0),
    },
}
"""Engine -> version from which the numbers hold -> numbers."""

FITTED = 43
"""Count of the fitted numbers above, shared ones once: without eager_layer_s and graph_tokens."""

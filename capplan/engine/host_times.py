"""What the host adds to the steps of an engine, by version: fitted on measured serving results.

Written by `python -m capplan.calibrate.fit_serving`; the method and the scores are in docs/accuracy.md.
"""

from capplan.engine.profile import HostOverhead

HOST_TIMES: dict[str, dict[str, HostOverhead]] = {
    "vllm": {
        "0.5.0": HostOverhead(0.002958, 6.52e-05, 0.02122, 2e-05, 0.5411, 1.331, 0, 0),
        "0.7.0": HostOverhead(0.002626, 2.377e-05, 0.03202, 2e-05, 0.6037, 1.147, 0, 0.0001157),
        "0.8.0": HostOverhead(0.0005588, 3.821e-06, 0.02145, 2e-05, 0.7863, 1.411, 512, 0),
        "0.11.1": HostOverhead(0.0009391, 1.942e-06, 0.01691, 2e-05, 0.5738, 1.243, 512, 0),
        "0.19.0": HostOverhead(0.0008176, 1.282e-05, 0.01664, 2e-05, 0.5741, 1.539, 512, 0),
    },
    "sglang": {
        "0.4.0": HostOverhead(0.001697, 1.932e-05, 0.06724, 2e-05, 0.6697, 1.734, 0, 0),
    },
    "trtllm": {
        "0.7.0": HostOverhead(0.001636, 1.503e-05, 0.02109, 2e-05, 0.5953, 1.183, 0, 0),
        "0.11.0": HostOverhead(0.002002, 2.206e-05, 0.02109, 2e-05, 0.6685, 1.211, 0, 0),
        "0.14.0": HostOverhead(0.002023, 1.426e-06, 0.02073, 2e-05, 1.103, 1.15, 0, 0),
        "0.20.0": HostOverhead(0.0007677, 7.256e-06, 0.02885, 2e-05, 0.4834, 0.9255, 0, 0),
        "1.0.9": HostOverhead(0.002587, 1.523e-05, 0.06527, 2e-05, 0.4765, 1.569, 0, 0),
        "1.1.0": HostOverhead(0.0007677, 7.256e-06, 0.02885, 2e-05, 0.4834, 0.9255, 0, 0),
    },
}
"""Engine -> version from which the numbers hold -> numbers."""

FITTED = 57
"""Count of the numbers above that were fitted: not eager_layer_s and graph_tokens, nor a row that repeats another."""

"""What the host adds to the steps of an engine, by version: fitted on measured serving results.

Written by `python -m capplan.calibrate.fit_serving`; the method and the scores are in docs/accuracy.md.
"""

from capplan.engine.profile import HostOverhead

HOST_TIMES: dict[str, dict[str, HostOverhead]] = {
    "vllm": {
        "0.5.0": HostOverhead(0.0025, 3e-05, 3e-07, 0.012, 6e-05),
        "0.8.0": HostOverhead(0.001, 5e-06, 3e-07, 0.008, 4e-05, graph_tokens=512.0),
    },
    "sglang": {"0.4.0": HostOverhead(0.0004, 4e-06, 1e-07, 0.008, 4e-05)},
    "trtllm": {"0.7.0": HostOverhead(0.0004, 4e-06, 5e-08, 0.005, 0.0)},
}
"""Engine -> version from which the numbers hold -> numbers."""
FITTED = 24
"""Count of the numbers above that were fitted."""

"""Networks between servers: rates of the standards, for one port of one device."""

from collections.abc import Mapping
from types import MappingProxyType

NETWORKS: Mapping[str, float] = MappingProxyType(
    {
        "ethernet-25g": 3.125e9,
        "ethernet-100g": 12.5e9,
        "ethernet-200g": 25e9,
        "ethernet-400g": 50e9,
        "ethernet-800g": 100e9,
        "infiniband-edr": 12.5e9,
        "infiniband-hdr": 25e9,
        "infiniband-ndr": 50e9,
        "infiniband-xdr": 100e9,
    }
)
"""Name of a network -> data rate of one four-lane port per direction [B/s].

References
----------
InfiniBand Trade Association, "InfiniBand Roadmap" (EDR 100, HDR 200, NDR 400, XDR 800 Gb/s),
https://www.infinibandta.org/infiniband-roadmap/; IEEE 802.3by, 802.3ba, 802.3bs, 802.3df (25, 100, 200 and 400, 800 Gb/s Ethernet).
"""

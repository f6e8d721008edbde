"""What a process is given as the memory of a device: less than the datasheet and less than the driver prints."""

from capplan.hardware.device import Device

DRIVER_RESERVED_BYTES = 0.5 * 2.0**30
"""What the driver keeps of what it prints as the total: 0.44 to 0.6 GiB on the devices where both were logged."""

SOLD_IN_BINARY = 2.0**30 / 1e9
"""Memory sold as 24 GB holds 24 GiB: what the driver prints exceeds the decimal figure on every device logged."""


FAST_LINKS = ("nvlink", "xgmi")
"""Links over which engines set up all-reduce buffers of their own."""

PADDED_INPUTS = {"amd": 256.0}
"""Multiple that inputs of mxfp4 experts are padded to, by vendor."""

USUAL_PADDED_INPUTS = 128.0


def has_fast_links(device: Device) -> bool:
    """Return whether tensor-parallel ranks talk over links of their own instead of PCIe.

    Parameters
    ----------
    device : as the catalogue has it

    Returns
    -------
    True or False

    Examples
    --------
    >>> has_fast_links(Device("x", "X", "v", "hopper", 80e9, None, 1.0, {}, None, None, None, "nvlink4", None, 1, None, 8, None, {}))
    True
    """
    return device.link is not None and device.link.startswith(FAST_LINKS)


def padded_inputs_multiple(device: Device) -> float:
    """Return the multiple that kernels of a device pad the inputs of mxfp4 experts to.

    Parameters
    ----------
    device : as the catalogue has it

    Returns
    -------
    [elements]

    Examples
    --------
    >>> padded_inputs_multiple(Device("x", "X", "AMD", "cdna3", 1e9, None, 1.0, {}, None, None, None, None, None, 1, None, 8, None, {}))
    256.0
    """
    return PADDED_INPUTS.get(device.vendor.lower(), USUAL_PADDED_INPUTS)


def engine_memory_bytes(device: Device) -> float:
    """Return the total that an engine divides up.

    Parameters
    ----------
    device : as the catalogue has it

    Returns
    -------
    [B]
        what a process is given, where that is known; else what the driver prints, or the nominal capacity
        in binary units, less what the driver keeps

    Examples
    --------
    >>> from dataclasses import replace
    >>> blank = Device("x", "X", "v", "hopper", 80e9, None, 1.0, {}, None, None, None, None, None, 1, None, 8, None, {})
    >>> engine_memory_bytes(blank) == 79.5 * 2**30
    True
    >>> engine_memory_bytes(replace(blank, reported_memory_bytes=85e9))
    85000000000.0
    """
    if device.reported_memory_bytes is not None:
        return device.reported_memory_bytes
    if device.driver_memory_bytes is not None:
        return device.driver_memory_bytes - DRIVER_RESERVED_BYTES
    return device.memory_bytes * SOLD_IN_BINARY - DRIVER_RESERVED_BYTES

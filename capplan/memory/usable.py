"""Device memory that a process sees: less than the datasheet states, and less than the driver prints."""

from capplan.hardware.device import Device

DRIVER_RESERVED_BYTES = 0.5 * 2.0**30
"""What the driver withholds from the total it prints: 0.44 to 0.6 GiB on the devices where both were logged."""

BINARY_OVER_DECIMAL = 2.0**30 / 1e9
"""Memory sold as 24 GB is 24 GiB: the driver prints more than the decimal figure on every device logged."""


FAST_LINKS = ("nvlink", "xgmi")
"""Links over which engines set up additional all-reduce buffers."""

PADDED_INPUTS = {"amd": 256.0}
"""Multiple to which the inputs of mxfp4 experts are padded, by vendor."""

USUAL_PADDED_INPUTS = 128.0


def has_fast_links(device: Device) -> bool:
    """Return whether tensor-parallel ranks communicate over a GPU link instead of PCIe.

    Parameters
    ----------
    device : from the catalogue

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
    """Return the multiple to which kernels of a device pad the inputs of mxfp4 experts.

    Parameters
    ----------
    device : from the catalogue

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
    """Return the device memory that an engine budgets.

    Parameters
    ----------
    device : from the catalogue

    Returns
    -------
    [B]
        what a process sees, where that is known; else what the driver prints, or the nominal capacity
        in binary units, less what the driver withholds

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
    return device.memory_bytes * BINARY_OVER_DECIMAL - DRIVER_RESERVED_BYTES

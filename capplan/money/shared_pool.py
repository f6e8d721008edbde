"""Devices of a pool that several models share by the hour."""

from collections.abc import Sequence

import numpy as np

from capplan.fleet.over_time import Counts


def devices_by_hour(replicas: Counts, devices_each: Sequence[int]) -> Counts:
    """Return the devices that several models need in each hour, if each device holds one model at a time.

        g_h = sum_i d_i max(n_i,h, n_i,h+1)

    A replica that the next hour needs is started in this one, beside all that this one still needs.

    Parameters
    ----------
    replicas : [-]
        n, of each model (row) in each hour of a day (column); the last hour is followed by the first
    devices_each : [-]
        d, of one replica of each model

    Returns
    -------
    [-]
        g, of each hour

    Examples
    --------
    One model by day, one by night, which share their hours of change:

    >>> devices_by_hour(np.array([[4, 4, 1, 1], [1, 1, 4, 4]]), [1, 2])
    array([ 6, 12,  9, 12])
    """
    with_next = np.maximum(replicas, np.roll(replicas, -1, axis=1))
    return np.asarray(np.asarray(devices_each) @ with_next, dtype=np.int64)

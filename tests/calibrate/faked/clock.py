"""Truth of a virtual card: how long each kernel takes, from the shipped fits of a real one, changed by a known ratio."""

import zlib
from dataclasses import replace
from functools import cache

import numpy as np

from capplan.hardware.device import Device, Efficiency
from capplan.operators.attention import decode_attention_time_s, prefill_attention_time_s
from capplan.operators.device_rates import DeviceRatio, kernel_rates
from capplan.operators.latent_attention import mla_bmm_time_s
from capplan.operators.matmul import matmul_time_s
from capplan.readers.calibration.measured_device import scaled_fit
from capplan.readers.catalogue.efficiency import efficiency_for

BACKEND_SLOWNESS = {"FLASH_ATTENTION": 2.2, "CUDNN_ATTENTION": 1.1, "EFFICIENT_ATTENTION": 3.0, "varlen": 1.5}
"""Over the attention of an engine."""
STREAMED_FRACTION, PASS_FLOOR_S = 0.92, 2e-6
LAUNCH_S = 6e-6
"""Host time of a launch outside a graph."""


class Truth:
    """What the kernels of a virtual card take; each answer is kept as long as the truth itself."""

    def __init__(self, device: Device, efficiency: Efficiency, ratio: DeviceRatio):
        self.device = device
        self.efficiency = efficiency
        """Of every kernel of every engine on this card: the record times the ratio."""
        self.ratio = ratio
        self.rates = cache(self._rates)
        self.matmul_s = cache(self._matmul_s)
        self.attention_s = cache(self._attention_s)
        self.bmm_s = cache(self._bmm_s)

    def _rates(self, kernel, *keys):
        for key in keys:
            for name, fit in self.efficiency.fits.items():
                if name == key or name.startswith(f"{key}@"):
                    return kernel_rates(kernel, self.device, key.partition("/")[2], fit)
        raise KeyError(keys)

    def _matmul_s(self, rows, inputs, outputs, fmt="bf16", weight=2.0, activation=2.0, quantise=False):
        rates = self.rates("matmul", f"matmul/{fmt}", "matmul/bf16")
        if not quantise:
            rates = replace(rates, quantise_passes=0.0)
        return float(matmul_time_s(rows, inputs, outputs, weight, activation, rates))

    def _attention_s(self, query, key, window, backend):
        sequences, heads, tokens, width = query
        kv_heads, keys = key
        rates = self.rates("attention", "attention/bf16")
        window = window or np.inf
        if tokens <= 16 < keys:
            seconds = decode_attention_time_s(
                sequences, keys, heads, kv_heads, width, width, window, 2.0, rates, float(tokens)
            )
        else:
            seconds = prefill_attention_time_s(
                sequences, tokens, keys - tokens, heads, kv_heads, width, width, window, 2.0, rates
            )
        return float(seconds) * BACKEND_SLOWNESS[backend]

    def _bmm_s(self, heads, tokens, inputs, outputs):
        rates = self.rates("latent_attention", "latent_attention/bf16")
        return float(mla_bmm_time_s(tokens, heads, inputs, outputs, 2.0, rates))

    def moved_s(self, moved_bytes):
        """Return the time of torch's own passes over memory, which nobody recorded."""
        reached = STREAMED_FRACTION * self.ratio.memory * self.device.memory_bytes_per_s
        return float(moved_bytes / reached + PASS_FLOOR_S * self.ratio.floor)


def truth_of(device: Device, ratio: DeviceRatio, spread: float = 0.0) -> Truth:
    """Return the kernels of a card: the record of its kind, or of its relative, times a ratio; each fit up to `spread` off."""
    record = efficiency_for(device)
    fits = {}
    for key, fit in record.fits.items():
        odd = 1.0 + spread * (zlib.crc32(key.encode()) % 1000 / 500.0 - 1.0)
        own = DeviceRatio(ratio.compute * odd, ratio.memory * odd, ratio.floor / odd, 1)
        fits[key] = scaled_fit(key, fit, own, "truth", borrowed=False)
    return Truth(device, Efficiency(device.name, fits), ratio)

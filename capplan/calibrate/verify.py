"""Verification: measured times of real layers against the predictions of the calibration."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from capplan.calibrate.kernels import prepare_arenas, random_operand
from capplan.calibrate.layers import RealLayer, built, cache_bytes, layer_bytes, refusal
from capplan.calibrate.machine import Target
from capplan.calibrate.timing import FULL, QUICK, Call, Effort, sampled
from capplan.engine.lookup import profile
from capplan.errors import InputError
from capplan.hardware.device import Device
from capplan.hardware.efficiency import Efficiency
from capplan.model.network import Layer, Network, layer_counts
from capplan.model.sharding import Sharding
from capplan.phases.cost import total_s
from capplan.phases.mixer_work import decode_cost, prefill_cost
from capplan.phases.rates import StepRates
from capplan.phases.token_work import layer_costs
from capplan.replica.rates import step_rates

COPIES = 3
"""Maximum number of layers run in sequence."""
CUDA_DECODES = tuple((batch, context) for batch in (1, 8, 32, 128, 256) for context in (512, 4096, 16384))
CUDA_PREFILLS = ((1, 256), (1, 1024), (1, 4096), (1, 8192), (4, 512))
CPU_DECODES = ((1, 256), (1, 2048), (4, 256), (4, 1024), (16, 256))
CPU_PREFILLS = ((1, 32), (1, 128), (1, 512), (2, 64))


@dataclass(frozen=True, slots=True)
class Proof:
    """Measured and predicted time of one shape of one kind of layer."""

    layer: str
    layers: int
    """How many of these the model has."""
    phase: str
    sequences: int
    tokens: int
    """New tokens of each sequence in prefill, cached tokens in decode."""
    measured_s: float
    predicted_s: float

    @property
    def error_fraction(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1.0


def verified(
    network: Network,
    target: Target,
    device: Device,
    efficiency: Efficiency,
    *,
    quick: bool,
    tell: Callable[[str], None] = lambda _line: None,
) -> list[Proof]:
    """Return measured and predicted times of one layer of each kind in a model.

    Parameters
    ----------
    network : the model; its weights and cache are bf16 whatever its format
    target : the machine
    device : the same machine in the predictions
    efficiency : from its calibration
    quick : fewer repeats
    tell : receives progress messages

    Returns
    -------
    one row per kind of layer, phase, batch and context; kinds that torch cannot run are left out and reported
    """
    plain = _in_bf16(network)
    prepare_arenas(target.device, (), target.cold_bytes)
    decodes, prefills = (CUDA_DECODES, CUDA_PREFILLS) if target.is_cuda else (CPU_DECODES, CPU_PREFILLS)
    proofs: list[Proof] = []
    refused: list[str] = []
    for number, (layer, count) in enumerate(layer_counts(plain)):
        title = _layer_title(number, layer)
        why = refusal(layer)
        if why:
            refused.append(f"{title}: {why}")
            tell(f"left out: {title}: {why}")
            continue
        fitting = fitted_to_memory(layer, target, tell)
        rates = _evenly_routed(
            step_rates(
                _of(plain, fitting), device, efficiency, profile=profile("vllm"), kv_format="bf16"
            ).rates
        )
        trial = _Trial(plain, fitting, title, count, target, rates, QUICK if quick else FULL)
        proofs += trial.rows(decodes, prefills, tell)
    if not proofs:
        raise InputError(f"{network.name}: none of its layers can be built\n  " + "\n  ".join(refused))
    return proofs


def _layer_title(number: int, layer: Layer) -> str:
    """Return a short name of the kind of layer."""
    mixer = "mla" if any(type(m).__name__ == "LatentAttention" for m in layer.mixers) else "attention"
    feed = f"{layer.experts.experts} experts" if layer.experts else "dense"
    return f"{number + 1}: {mixer}, {feed}"


def _in_bf16(network: Network) -> Network:
    """Return the network with every matrix in bf16."""
    layers = tuple(
        replace(
            layer,
            projections=tuple(replace(p, weight_format="bf16") for p in layer.projections),
            experts=replace(layer.experts, weight_format="bf16") if layer.experts else None,
        )
        for layer in network.layers
    )
    return replace(network, layers=layers, lm_head=replace(network.lm_head, weight_format="bf16"))


def _evenly_routed(rates: StepRates) -> StepRates:
    """Return the rates for a router that spreads tokens evenly, as the random weights of the built layers do."""
    return replace(
        rates, experts={name: replace(one, router_skew=0.0) for name, one in rates.experts.items()}
    )


def _of(network: Network, layer: Layer) -> Network:
    return replace(network, layers=(layer,))


def fitted_to_memory(layer: Layer, target: Target, tell: Callable[[str], None]) -> Layer:
    """Return the layer, with fewer experts if one copy of it would take more than half of the usable memory."""
    trial = layer
    while layer_bytes(trial) > target.usable_bytes / 2 and trial.experts:
        if trial.experts.experts // 2 < trial.experts.experts_per_token:
            break
        trial = replace(trial, experts=replace(trial.experts, experts=trial.experts.experts // 2))
    if trial.experts and layer.experts and trial.experts.experts < layer.experts.experts:
        tell(
            f"memory holds {trial.experts.experts} of {layer.experts.experts} experts: timing and prediction both use that many"
        )
        router = tuple(
            replace(p, outputs=trial.experts.experts) if p.name == "router" else p for p in trial.projections
        )
        trial = replace(trial, projections=router)
    if layer_bytes(trial) > target.usable_bytes / 2:
        raise InputError(
            f"one layer takes {layer_bytes(trial) / 1e9:.1f} GB, but only {target.usable_bytes / 1e9:.1f} GB may be used\n"
            "  verify a smaller model on this device"
        )
    return trial


@dataclass(frozen=True, slots=True)
class _Trial:
    """One kind of layer on one machine."""

    network: Network
    layer: Layer
    title: str
    count: int
    target: Target
    rates: StepRates
    effort: Effort

    def rows(
        self,
        decodes: Sequence[tuple[int, int]],
        prefills: Sequence[tuple[int, int]],
        tell: Callable[[str], None],
    ) -> list[Proof]:
        room = self.target.usable_bytes - layer_bytes(self.layer)
        copies = int(np.clip(room // (2 * layer_bytes(self.layer)) + 1, 1, COPIES))
        real = [built(self.layer, self.target.device) for _ in range(copies)]
        rows = []
        for phase, shapes in (("prefill", prefills), ("decode", decodes)):
            for sequences, tokens in shapes:
                if copies * cache_bytes(self.layer, sequences, tokens) > room / 2:
                    tell(f"left out: {self.title} {phase} of {sequences} x {tokens}: its cache does not fit")
                    continue
                try:
                    measured_s = self.measured_s(real, phase, sequences, tokens)
                except torch.OutOfMemoryError:
                    tell(f"left out: {self.title} {phase} of {sequences} x {tokens}: out of memory")
                    continue
                predicted_s = self.predicted_s(phase, sequences, tokens)
                rows.append(Proof(self.title, self.count, phase, sequences, tokens, measured_s, predicted_s))
        return rows

    def measured_s(self, real: Sequence[RealLayer], phase: str, sequences: int, tokens: int) -> float:
        device = self.target.device
        rows = sequences * tokens if phase == "prefill" else sequences
        residual = random_operand((rows, self.network.hidden_size), "bf16", device)
        calls: list[Call] = []
        for one in real:
            if phase == "prefill":
                calls.append(partial(one.prefill, residual, sequences))
            else:
                calls.append(partial(one.decode, residual, one.caches(sequences, tokens, device)))
        with torch.inference_mode():
            return sampled(self.target, calls, self.effort).seconds

    def predicted_s(self, phase: str, sequences: int, tokens: int) -> float:
        sharding, decode = Sharding(), phase == "decode"
        rows = float(sequences if decode else sequences * tokens)
        costs = layer_costs(self.network, self.layer, rows, sharding, self.rates, decode=decode)
        for mixer in self.layer.mixers:
            if decode:
                costs.append(decode_cost(mixer, float(sequences), float(tokens), 1.0, 2.0, self.rates))
            else:
                costs.append(prefill_cost(mixer, float(sequences), float(tokens), 0.0, 1.0, 2.0, self.rates))
        return float(total_s(costs))
